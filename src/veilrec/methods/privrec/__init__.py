"""PrivRec and DP-PrivRec (Wang et al. 2021) with their baselines."""
