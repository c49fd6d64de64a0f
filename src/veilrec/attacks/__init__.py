"""Attacks on what training and serving send: membership, inversion, gradient rows, poisoning, repeated queries."""
