"""Releases served over HTTP: the application, its middleware, the top-k index."""
