"""Code that may see one user's data: local training, private queries, on-device ranking, local storage."""
