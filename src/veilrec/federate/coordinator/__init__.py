"""What runs where no user's data is."""
