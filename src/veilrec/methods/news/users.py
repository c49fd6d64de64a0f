"""A trained news model as serving sees it: histories in, user vectors out."""

from __future__ import annotations

import numpy as np
import torch

from veilrec._arrays import Bools, Doubles, Floats
from veilrec._csr import Csr
from veilrec.errors import BadInput
from veilrec.methods.news.ranker import NewsScorer
from veilrec.models.interests import Interests


class NewsUsers:
    """The user vectors of a model that has some, and what private queries need beside them."""

    def __init__(self, scorer: NewsScorer) -> None:
        self._scorer = scorer
        self._interests = scorer.model if isinstance(scorer.model, Interests) else None

    @property
    def longest(self) -> int:
        """The latest clicks that a user is known by."""
        return self._scorer.longest

    @property
    def news(self) -> Floats:
        """The vectors of all news, [items, dim]; of a model without user vectors, all that it knows of a news."""
        vectors: Floats = self._scorer.states.numpy()
        return vectors

    @property
    def basis(self) -> Doubles | None:
        """The model's basis vectors, [B, dim]; None where it has none."""
        return None if self._interests is None else self._interests.basis_vectors().detach().numpy().astype(np.float64)

    @property
    def interests(self) -> Floats | None:
        """The user vector that the model puts together of one interest alone, for each of them: [B, dim]."""
        if self._interests is None:
            return None
        with torch.inference_mode():
            together: Floats = self._interests.reconstruct(torch.eye(len(self._interests.basis))).numpy()
        return together

    @property
    def pad(self) -> Doubles | None:
        """What a padded click looks like, [dim]; None where the model has no pad."""
        return None if self._interests is None else self._interests.pad_state().detach().numpy().astype(np.float64)

    def users(self, histories: Csr) -> Floats:
        """The user vectors that the model ranks with."""
        return self._scorer.fold_in(histories).user_vectors(np.arange(len(histories), dtype=np.int64))

    def users_before_basis(self, histories: Csr) -> Floats:
        """Those that are decomposed over its basis vectors."""
        everybody = np.arange(len(histories), dtype=np.int64)
        return self._scorer.fold_in(histories).vectors_before_basis(everybody, self._with_basis())

    def users_in_slots(self, clicks: Doubles, taken: Bools) -> Doubles:
        """The same for clicks in places, some of them perhaps pads: [devices, slots, dim] -> [devices, dim]."""
        with torch.inference_mode():
            encoded = self._with_basis().whole_user(
                torch.from_numpy(clicks.astype(np.float32)), torch.from_numpy(taken)
            )
        return encoded.numpy().astype(np.float64)

    def _with_basis(self) -> Interests:
        if self._interests is None:
            raise BadInput("the model of this run has no basis vectors")
        return self._interests
