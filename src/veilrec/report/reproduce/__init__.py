"""Tables and figures of papers run again: the paper's numbers beside ours."""
