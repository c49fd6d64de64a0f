"""One file per method: which parts it puts together, and its paper."""
