"""Torch modules and their numpy scorers."""
