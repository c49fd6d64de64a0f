"""Recommendation methods, one folder per paper; each method returns a Plan."""
