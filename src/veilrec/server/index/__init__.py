"""The best items of every query, exactly: an index of blocks that bounds most of a catalogue away."""
