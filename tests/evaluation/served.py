"""A news model made of numpy alone, with and without basis vectors, and people who read."""

import numpy as np

from veilrec.core.csr import Csr, offsets_of
from veilrec.data.population import Impressions, Strings
from veilrec.evaluation.serving import PublicTexts

DIM, NEWS, SUBJECTS = 8, 120, 4


class MeanModel:
    """A user is three times the mean of the clicked news; nobody's vector is zero."""

    def __init__(self, basis=None):
        generator = np.random.default_rng(1)
        self.subject = np.arange(NEWS) % SUBJECTS
        centres = 2.0 * np.eye(SUBJECTS, DIM)
        self.news = (centres[self.subject] + 0.4 * generator.normal(size=(NEWS, DIM))).astype(np.float32)
        self.longest = 10
        self.basis = None if basis is None else 3.0 * np.eye(basis, DIM)
        self.interests = None if self.basis is None else self.basis.astype(np.float32)
        self.pad = None if basis is None else np.zeros(DIM)

    def users(self, histories):
        whole = self.users_before_basis(histories)
        if self.basis is None:
            return whole
        scores = np.exp(whole @ self.basis.T / np.sqrt(DIM))
        return (scores / scores.sum(axis=1, keepdims=True) @ self.basis).astype(np.float32)

    def users_before_basis(self, histories):
        means = np.zeros((len(histories), DIM), np.float32)
        for row in range(len(histories)):
            clicked = histories.row(row)[-self.longest :]
            if len(clicked):
                means[row] = 3.0 * self.news[clicked].mean(axis=0)
        return means

    def users_in_slots(self, clicks, taken):
        counts = np.maximum(taken.sum(axis=1), 1)[:, np.newaxis]
        return np.asarray(3.0 * (clicks * taken[..., np.newaxis]).sum(axis=1) / counts)


def impressions(count=400, seed=2):
    """Readers of one subject each, who click on what is about it; some have no history."""
    generator = np.random.default_rng(seed)
    taste = generator.integers(0, SUBJECTS, count)
    lengths = generator.integers(0, 14, count)
    lengths[:2] = 0
    clicks = [SUBJECTS * generator.integers(0, NEWS // SUBJECTS, n) + t for n, t in zip(lengths, taste, strict=True)]
    three = generator.permuted(np.tile(np.arange(NEWS // SUBJECTS), (count, SUBJECTS, 1)), axis=2)[..., :3]
    of_each = SUBJECTS * three + np.arange(SUBJECTS)[:, np.newaxis]  # three news of every subject
    shown = generator.permuted(of_each.reshape(count, 12), axis=1).astype(np.int32)
    clicked = (shown % SUBJECTS == taste[:, np.newaxis]).astype(np.uint8)
    return Impressions(
        users=np.arange(count, dtype=np.int32),
        times=np.arange(count, dtype=np.int64),
        shown=Csr(np.arange(count + 1, dtype=np.int64) * 12, shown.ravel()),
        clicked=clicked.ravel(),
        histories=Csr(offsets_of(lengths), np.concatenate(clicks).astype(np.int32)),
        history_of=np.arange(count, dtype=np.int32),
    )


def texts():
    return PublicTexts(Strings.of(f"N{item}" for item in range(NEWS)), Strings.of("a title" for _ in range(NEWS)))


def categories():
    return [f"subject-{item % SUBJECTS}" for item in range(NEWS)]
