"""Compiled (numba) and batched kernels for local training and scoring, each checked against autograd."""
