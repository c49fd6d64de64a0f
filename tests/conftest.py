"""What every test shares: one thread, and small populations written as lists."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy or torch load their thread pools

import hypothesis
import numpy as np
import pytest

from veilrec.core.csr import Csr

hypothesis.settings.register_profile("veilrec", deadline=None)  # no test fails because the machine is busy
hypothesis.settings.load_profile("veilrec")


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def packed():
    def pack(rows):
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return Csr(offsets, np.array([item for row in rows for item in row], np.int32))

    return pack


@pytest.fixture(scope="session")
def tiny_train():
    """40 clients with 1 to 12 of 60 items; clients 0 and 7 have none."""
    generator = np.random.default_rng(20)
    lengths = generator.integers(1, 13, 40)
    lengths[[0, 7]] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = [generator.choice(60, length, replace=False) for length in lengths]
    return Csr(offsets, np.concatenate(rows).astype(np.int32))
