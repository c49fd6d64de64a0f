"""What is counted, as Prometheus reads it: requests and their times, by route and status, and nothing of anybody."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

_EDGES = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Counts and a histogram of seconds for every route template and status: a closed list, however many ask."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[list[int], list[float]]] = {}

    def note(self, route: str, status: int, seconds: float, size: int) -> None:
        """One answered request: its route template, its status, its time, the bytes of its answer."""
        entry = self._seen.get((route, status))
        if entry is None:
            entry = self._seen[route, status] = ([0] * (len(_EDGES) + 1), [0.0, 0.0])
        entry[0][bisect_left(_EDGES, seconds)] += 1
        entry[1][0] += seconds
        entry[1][1] += size

    def count(self, route: str, status: int) -> int:
        """How many requests of a route ended with a status."""
        entry = self._seen.get((route, status))
        return 0 if entry is None else sum(entry[0])

    def text(self, gauges: Iterable[tuple[str, str, float]]) -> str:
        """The page at /metrics; `gauges` are (name, what it is, value)."""
        lines = []
        for name, what, value in gauges:
            lines += [f"# HELP veilrec_{name} {what}", f"# TYPE veilrec_{name} gauge", f"veilrec_{name} {value:.15g}"]
        seen = sorted(self._seen.items())
        lines += ["# HELP veilrec_request_seconds Time to answer.", "# TYPE veilrec_request_seconds histogram"]
        for (route, status), (counts, (seconds, _)) in seen:
            labels, total = f'route="{route}",status="{status}"', 0
            for edge, number in zip((*map(str, _EDGES), "+Inf"), counts, strict=True):
                total += number
                lines.append(f'veilrec_request_seconds_bucket{{{labels},le="{edge}"}} {total}')
            lines.append(f"veilrec_request_seconds_sum{{{labels}}} {seconds:.9g}")
            lines.append(f"veilrec_request_seconds_count{{{labels}}} {total}")
        lines += ["# HELP veilrec_answer_bytes_total Bytes of answers.", "# TYPE veilrec_answer_bytes_total counter"]
        for (route, status), (_, (_, size)) in seen:
            lines.append(f'veilrec_answer_bytes_total{{route="{route}",status="{status}"}} {size:.15g}')
        return "\n".join(lines) + "\n"
