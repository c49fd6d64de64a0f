"""What a message promises, and what it gives away."""
