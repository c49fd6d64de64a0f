"""Plan, round specs, client updates, fixed-point sums, keyed random streams and errors."""
