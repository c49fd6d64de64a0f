"""Code that never sees a user's data in plaintext: aggregation, optimisers, coordinator, checkpoints."""
