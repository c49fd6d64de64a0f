"""What runs beside one user's data."""
