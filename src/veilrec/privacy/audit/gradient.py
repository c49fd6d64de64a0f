"""PrivateRec's training gradient in miniature: why "the gradient is post-processing of noisy attention" does not hold.

Words make news (mean of embeddings), news make the user (mean of the history), the user makes attention over basis
vectors, and that is clipped, noised and normalised (GetPrivAttn). The backward pass then runs through the noise to the
raw history: a word that only the history holds gets a gradient row that is zero if, and only if, its news is not there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Bools, Doubles, Offsets
from veilrec.privacy.randomness import Source, uniforms
from veilrec.privacy.samplers import add_gaussian

_WORDS, _WIDTH, _BASIS, _HISTORY, _TITLE, _CANDIDATES = 60, 8, 5, 4, 3, 5
TELLING_WORD = 0  # in the title of the click that is replaced, and nowhere else


@dataclass(frozen=True)
class ToyTraining:
    """One sample of one user, and the parameters that everybody has."""

    embedding: Doubles  # [words, width]
    basis: Doubles  # [basis, width]
    history: Offsets  # [clicks, words of a title]
    replacement: Offsets  # [words of a title], what the first click is replaced with
    candidates: Offsets  # [candidates, words of a title]; the first is the label
    clip_norm: float
    sigma: float
    padding: float  # probability that a click is replaced with a pad (a news vector of zeros)

    def word_row_moves(self, side: int, draws: int, source: Source) -> Bools:
        """Whether the gradient row of the telling word is non-zero, in each of so many messages."""
        titles = self.history.copy()
        if side == 1:
            titles[0] = self.replacement
        kept = uniforms(source, draws * len(titles)).reshape(draws, -1) >= self.padding  # [n, clicks]
        news = self.embedding[titles].mean(axis=1)
        user = kept @ news / len(titles)  # [n, width]
        on_user = self._gradient_on_user(user, source)
        occurrences = kept @ (titles == TELLING_WORD).mean(axis=1) / len(titles)
        row = occurrences[:, np.newaxis] * on_user
        return np.asarray((row != 0.0).any(axis=1))

    def _gradient_on_user(self, user: Doubles, source: Source) -> Doubles:
        attention = _softmax(user @ self.basis.T)  # [n, basis]
        norms = np.linalg.norm(attention, axis=1, keepdims=True)
        factor = np.minimum(1.0, self.clip_norm / norms)
        noisy = add_gaussian(attention * factor, sigma=self.sigma, source=source)
        active = np.maximum(noisy, 0.0)
        total = active.sum(axis=1, keepdims=True)
        safe = np.where(total > 0.0, total, 1.0)
        private = active / safe

        options = self.embedding[self.candidates].mean(axis=1)  # [candidates, width]
        surprise = _softmax(private @ self.basis @ options.T)
        surprise[:, 0] -= 1.0
        d_private = surprise @ options @ self.basis.T
        # backwards through normalisation (ReLU), clipping, softmax
        d_noisy = (noisy > 0.0) * (d_private - (private * d_private).sum(axis=1, keepdims=True)) / safe
        along = (attention * d_noisy).sum(axis=1, keepdims=True) / norms**2
        d_attention = factor * (d_noisy - np.where(factor < 1.0, attention * along, 0.0))
        d_logits = attention * (d_attention - (attention * d_attention).sum(axis=1, keepdims=True))
        return np.asarray(d_logits @ self.basis)


def toy_training(*, clip_norm: float, sigma: float, padding: float, seed: int = 0) -> ToyTraining:
    """A made-up user of a made-up model; only the first click of the history holds the telling word."""
    generator = np.random.default_rng(seed)
    titles = generator.permutation(np.arange(1, _WORDS))[: (_HISTORY + 1 + _CANDIDATES) * _TITLE].reshape(-1, _TITLE)
    titles[0, 0] = TELLING_WORD
    return ToyTraining(
        embedding=generator.normal(size=(_WORDS, _WIDTH)),
        basis=generator.normal(size=(_BASIS, _WIDTH)),
        history=titles[:_HISTORY],
        replacement=titles[_HISTORY],
        candidates=titles[_HISTORY + 1 :],
        clip_norm=clip_norm,
        sigma=sigma,
        padding=padding,
    )


def _softmax(logits: Doubles) -> Doubles:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
