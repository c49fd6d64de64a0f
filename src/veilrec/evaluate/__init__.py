"""Metrics and protocols: what a model is asked, and how well it answered."""
