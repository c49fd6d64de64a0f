"""Message formats between client and server, and their validation."""
