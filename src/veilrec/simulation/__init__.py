"""Many clients in one process, in several processes, or on Ray, driving the code that real clients run."""
