"""Attacks on our own claims: epsilon from below, from what a mechanism really sends."""
