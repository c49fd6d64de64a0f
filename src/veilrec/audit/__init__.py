"""Audits of mechanisms, plans and serving modes, and the contract that every method is tested against."""
