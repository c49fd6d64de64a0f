"""Secure aggregation of whole numbers: two protocols over the same masks, as state machines over bytes."""
