"""Exact top-k index over item vectors."""
