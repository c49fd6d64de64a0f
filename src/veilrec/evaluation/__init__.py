"""Protocols, metrics and evaluation of serving modes."""
