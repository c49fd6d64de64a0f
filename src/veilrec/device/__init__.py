"""Everything that may see one user's data: local learning and the message that leaves."""
