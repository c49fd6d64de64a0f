"""DP-PrivRec's adaptive bound as it is printed (Algorithm 2), to reproduce it; what holds is in `adaptive`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from veilrec._arrays import Doubles
from veilrec.privacy.accounting.accountant import Rounds
from veilrec.privacy.accounting.published import paper_convention
from veilrec.privacy.checks import positive
from veilrec.privacy.events import Event
from veilrec.privacy.mechanisms.adaptive import without_count
from veilrec.privacy.mechanisms.base import Calibration
from veilrec.privacy.mechanisms.bounding import BadUpdate, upload_norms
from veilrec.privacy.mechanisms.clipping import clip_factors, published_noise_split, scale_packed
from veilrec.privacy.mechanisms.updates import CohortSum
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import UNITS
from veilrec.privacy.sensitivity import on_lattice_l2, rounded_sum_l2
from veilrec.updates import BOUND, Round, Schema, Tensor, Uploads, copied


class PublishedAdaptiveSum(CohortSum):
    """Fixed cohorts; the count taken after clipping; noise outside of the server's rate.

    The bound may fall to 0 and below, as printed: min(1, S / norm) then turns updates round and gives them norm |S|.
    The noise is proportional to |S|, and at S = 0 nothing but the count is released.
    """

    name = "published-adaptive-sum"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("as-published",)

    def __init__(
        self,
        *,
        schema: Schema,
        clip_norm: float,
        noise_multiplier: float,
        count_share: float,
        server_rate: float,
        taking_part: Rounds,
        delta: float,
    ) -> None:
        positive(server_rate=server_rate)
        super().__init__(
            schema=schema, clip_norm=clip_norm, noise_multiplier=noise_multiplier, taking_part=taking_part, delta=delta
        )
        of_update, of_count = published_noise_split(noise_multiplier, count_share)  # z / sqrt(1 - h), z / sqrt(h)
        # Lines 8 and 9: theta + alpha_3 mean + N(0, (2 S z / M)^2 / (1 - h)): on the sum, M / alpha_3 times that.
        self.sigma = 2.0 * clip_norm * of_update / server_rate
        self.count_standard_deviation = 2.0 * of_count  # line 10: 2 z / M / sqrt(h) on the mean

    @property
    def claimed_epsilon(self) -> float:  # type: ignore[override]
        """Of one round as the paper counts: a release for every device of it."""
        people = self.taking_part
        return paper_convention(
            people.population,
            people.cohort,
            self.claimed_delta,
            releases=people.cohort,
            noise_multiplier=self.noise_multiplier,
        )

    def bound(self, uploads: Uploads, about: Round) -> Uploads:
        """Lines 22 and 23: clip, and then ask whether the norm is at most S."""
        clip_norm, kept = self._clip_norm(about), copied(self._part(without_count(uploads), about))
        norms = upload_norms(kept)
        if clip_norm > 0.0:
            factors = clip_factors(norms, clip_norm)
        else:
            factors = np.divide(clip_norm, norms, out=np.zeros_like(norms), where=norms > 0.0)
        for rows in (*kept.tables.values(), *kept.entries.values()):
            scale_packed(rows.offsets, rows.values, factors)
        for values in kept.dense.values():
            np.multiply(values, factors.reshape(-1, *(1,) * (values.ndim - 1)), out=values, casting="same_kind")
        counts = (upload_norms(kept) <= clip_norm).astype(np.float32).reshape(-1, 1)
        return replace(kept, dense={**kept.dense, BOUND: counts})

    def _clip_norm(self, about: Round) -> float:
        return self.clip_norm if about.clip_norm is None else about.clip_norm

    def reach(self, tensor: Tensor, about: Round, weight: int = 1) -> float:
        """The bound has any sign, and may be 0; a message counts for 1."""
        return weight * (1.0 if tensor.name == BOUND else max(abs(self._clip_norm(about)), self.clip_norm * 2.0**-20))

    def sigma_in(self, name: str, about: Round) -> float:
        """Proportional to the size of the bound; of the count, always the same."""
        if name == BOUND:
            return self.count_standard_deviation
        return self.sigma * abs(self._clip_norm(about) / self.clip_norm)

    def _noisy(self, total: Doubles, sigma: float, source: Source) -> Doubles:
        return total if sigma == 0.0 else super()._noisy(total, sigma, source)

    def check(self, uploads: Uploads, about: Round) -> None:
        """Refuse updates that are longer than the bound, and counts that no device sends."""
        most, norms = abs(self._clip_norm(about)), upload_norms(without_count(uploads))
        if (norms > most * (1.0 + 1e-6)).any():
            raise BadUpdate(f"an update has norm {norms.max():.6g}: this round takes at most {most:.6g}")
        counts = uploads.dense.get(BOUND)
        if counts is None or counts.shape != (uploads.count, 1) or not np.isin(counts, (0.0, 1.0)).all():
            raise BadUpdate("an update does not say whether it was within the bound, by 0 or 1")

    def facts(self) -> dict[str, float]:
        """The noise of the first round, which follows the bound, and that of the count."""
        return {**super().facts(), "count_standard_deviation": self.count_standard_deviation}

    def event(self) -> Event:
        """What one round really costs: one release of both, whoever is replaced moves the sum by 2 |S|, the count by 1.

        1/z^2 = (2 S / sigma)^2 + (1 / its noise)^2, with what rounding and the lattice add to both.
        """
        moved = rounded_sum_l2(self.sensitivity.value, self.taking_part.population)
        mu_update = on_lattice_l2(moved, self.dimension, self.sigma / UNITS) / self.sigma
        mu_count = 1.0 / self.count_standard_deviation + 1.0 / UNITS
        return self.taking_part.one_round(1.0 / math.hypot(mu_update, mu_count))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """None: the paper charges itself too much, so that there is nothing to refute."""
        return ()
