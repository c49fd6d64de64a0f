"""Dataset readers; each yields one packed Population of users, items and interactions."""
