"""The client side of a federation: what runs beside one user's data."""
