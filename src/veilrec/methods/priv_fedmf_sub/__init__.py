"""Priv-FedMF-Sub and Priv-FedNCF-Sub-Compress (Xue et al. 2026) with their baselines."""
