"""How the communication paper counts: one way, item vectors only, all devices of all rounds, in millions."""

from __future__ import annotations

from dataclasses import dataclass

from veilrec.report.reproduce.experiment import Extra, Grid

_ROUNDS = 400


@dataclass(frozen=True)
class Setup:
    """The size of the paper's training on one data set with one model."""

    name: str
    rows: int  # items as the paper counts them
    width: int  # floats of an item
    devices: int  # of a round

    @property
    def messages(self) -> int:
        """Messages of the whole run."""
        return self.devices * _ROUNDS

    def total(self, rows: float | None = None) -> float:
        """Millions of parameters when every message carries so many rows; all of them by default."""
        return (self.rows if rows is None else rows) * self.width * self.messages / 1e6

    def mean_rows(self, millions: float) -> float:
        """How many rows a message has on average, if the total is so many millions."""
        return millions * 1e6 / (self.width * self.messages)


MF_100K = Setup("MovieLens 100K", 1683, 32, 100)  # 1,682 films and a row that is never used
MF_1M = Setup("MovieLens 1M", 3706, 32, 200)
NCF_100K = Setup("MovieLens 100K", 1683, 160, 100)
NCF_1M = Setup("MovieLens 1M", 3706, 160, 200)
SVD_RANK = 16
_HEAD = ("printed, M", "method", "data", "what the arithmetic gives")


def mf_counts() -> Extra:
    """Where the totals of Table 2 and Fig. 9 come from."""
    rows = [
        _whole("2154.24", "FedMF, DP-FedMF", MF_100K),
        _part("698.67", "Priv-FedMF-Sub", MF_100K),
        _whole("9487.36", "FedMF, DP-FedMF", MF_1M),
        _part("2907.85", "Priv-FedMF-Sub", MF_1M),
        ("4785.93", "DP-FedMF-SVD", MF_1M.name, _svd()),
        ("4943.68", "DP-FedMF-TopK", MF_1M.name, _top_half()),
    ]
    return Extra((_grid(rows),))


def ncf_counts() -> Extra:
    """Where the totals of Fig. 14 come from."""
    mf_share = MF_1M.mean_rows(2907.846)
    misfit = (
        f"{NCF_1M.mean_rows(4421.2):.2f} of {NCF_1M.rows} rows of {NCF_1M.width} a message (9.3 %); the same selection "
        f"as in Priv-FedMF-Sub ({mf_share:.2f} rows) gives {NCF_1M.total(mf_share):.1f}: the total does not fit it"
    )
    rows = [
        _whole("10771.2", "FedNCF, DP-FedNCF", NCF_100K),
        _part("4200.0", "Priv-FedNCF-Sub-Compress", NCF_100K),
        _whole("47436.8", "FedNCF, DP-FedNCF", NCF_1M),
        ("4421.2", "Priv-FedNCF-Sub-Compress", NCF_1M.name, misfit),
    ]
    return Extra((_grid(rows),))


def _grid(rows: list[tuple[str, str, str, str]]) -> Grid:
    return Grid("How the paper counts", _HEAD, rows, words=frozenset({1, 2, 3}))


def _whole(printed: str, method: str, setup: Setup) -> tuple[str, str, str, str]:
    product = (
        f"{setup.rows} x {setup.width} x {setup.devices} devices x {_ROUNDS} rounds = {setup.total():.2f}"
    )
    return printed, method, setup.name, product


def _part(printed: str, method: str, setup: Setup) -> tuple[str, str, str, str]:
    rows = setup.mean_rows(float(printed))
    share = f"{rows:.2f} of {setup.rows} rows of {setup.width} a message, on average ({100 * rows / setup.rows:.1f} %)"
    return printed, method, setup.name, share


def _svd() -> str:
    numbers = SVD_RANK * (MF_1M.rows + MF_1M.width + 1)
    return (
        f"rank {SVD_RANK}: {SVD_RANK} x ({MF_1M.rows} + {MF_1M.width} + 1) x {MF_1M.messages} messages = "
        f"{numbers * MF_1M.messages / 1e6:.2f}"
    )


def _top_half() -> str:
    half = MF_1M.total() / 2
    over = 4943.68 - half
    return (
        f"half of all entries: {half:.2f}; the printed total is {over:.2f} more, {over * 1e6 / MF_1M.messages:.0f} "
        f"numbers a message, which we cannot explain; with the position of every entry counted too, {2 * half:.2f}"
    )
