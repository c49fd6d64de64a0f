"""Attacks on our own claims: a lower bound on epsilon, from what a mechanism really sends, that may not pass its claim."""
