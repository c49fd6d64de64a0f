"""PrivateRec (Liu et al. 2022) with its baselines."""
