"""What the features of a data set are, and of how many users or items each is unknown."""

from __future__ import annotations

from dataclasses import dataclass

from veilrec._words import counted
from veilrec.data.own_features import UNKNOWN_NUMBERS
from veilrec.data.population import Population
from veilrec.features import Kind


@dataclass(frozen=True)
class FeatureReport:
    """One feature of users or of items."""

    side: str  # "users" or "items"
    name: str
    kind: Kind
    values: int  # of a category, without the unknown one
    low: float  # of a number
    high: float
    unknown: float  # the share of users or items of whom it is not known

    def told(self) -> str:
        """In words."""
        if self.kind == "number":
            what = f"number from {self.low:g} to {self.high:g}"
        else:
            what = f"{self.kind}, {counted(self.values, 'value')}"
        return f"{what}, {self.unknown:.1%} unknown"


def check_features(population: Population) -> tuple[FeatureReport, ...]:
    """The features of users, then those of items."""
    if population.features is None:
        return ()
    found = []
    for name, side in (("users", population.features.users), ("items", population.features.items)):
        shares = dict(zip((f.name for f in side.categories), side.unknown().mean(axis=0).tolist(), strict=True))
        for feature in side.features:
            silent = int(population.facts.get(f"{UNKNOWN_NUMBERS}{name}.{feature.name}", 0)) / max(1, len(side))
            share = silent if feature.kind == "number" else float(shares[feature.name])
            count = len(feature.values)
            found.append(FeatureReport(name, feature.name, feature.kind, count, feature.low, feature.high, share))
    return tuple(found)
