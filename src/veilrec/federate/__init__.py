"""A plan over a real network: processes that share nothing but bytes, and survive being killed at any point.

`device` holds what runs beside one user's data, `coordinator` what never sees any; they meet in `tasks` and `identity`.
"""
