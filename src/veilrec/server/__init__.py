"""Everything that never sees a user's data: rounds, aggregation, optimisers."""
