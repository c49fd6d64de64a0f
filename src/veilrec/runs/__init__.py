"""A run on disk: request, train, checkpoint, resume, open, release."""
