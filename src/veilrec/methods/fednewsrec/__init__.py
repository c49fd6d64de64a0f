"""FedNewsRec (Qi et al. 2020) with its baselines."""
