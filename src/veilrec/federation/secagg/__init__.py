"""Secure aggregation of integers: helper-based and pairwise protocols as state machines over bytes."""
