"""`veil`: public content, a few private sums, and everything personal on the device."""
