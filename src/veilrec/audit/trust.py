"""Which trust models a method has: read off plans of twelve clients, never written by hand.

For every trust model a cell says yes, with the mechanisms that prove it and where the proof stands, or no, with the
reason. `server` needs a proven plan; `server sees only sums` one whose every sum can be masked; `server sees only noisy
sums` one whose updates, reports and gains all carry noise of the clients; `nobody` a setting with noise on messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from veilrec.audit.method import tiny_config, tiny_plan
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.federation.making import check_sums
from veilrec.methods.base import Method, configure, ready, setting_names
from veilrec.methods.registry import METHODS, cached, get, settings_of
from veilrec.privacy.guarantee import TRUSTS, Guarantee, Trust
from veilrec.privacy.mechanisms.base import Mechanism
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.reports import MadeOfReports
from veilrec.privacy.mechanisms.schedules import AdaptiveSum, TreeSum
from veilrec.privacy.mechanisms.sums import GainSum

STRONGEST_LAST: tuple[Trust, ...] = tuple(reversed(TRUSTS))
_DISTRIBUTED = "privacy.noise=distributed"
_PAGE = "privacy.md"
_SECTIONS: tuple[tuple[type[Any], str], ...] = (  # of docs/privacy.md, by mechanism; the first that fits
    (DistributedNoiseSum, "distributed-noise"),
    (MadeOfReports, "the-audit-of-a-method"),
    (TreeSum, "when-sampling-cannot-be-trusted"),
    (AdaptiveSum, "adaptive-bounds"),
    (GainSum, "the-last-comparison-validation-clients"),
)
_ANY_OTHER = "noise-on-a-computer"


@dataclass(frozen=True)
class TrustCell:
    """Whether a method has a trust model: what proves it, or why not."""

    has: bool
    mechanisms: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()  # of docs/privacy.md, one for each mechanism
    settings: tuple[str, ...] = ()  # that it takes
    reason: str = ""

    def words(self) -> str:
        """Describe it in one line."""
        if not self.has:
            return f"no: {self.reason}"
        by = ", ".join(self.mechanisms)
        return f"yes, by {by} (docs/{_PAGE}#{self.sections[0]}){self.taking()}"

    def taking(self) -> str:
        """Settings that it takes, in words."""
        return f" with --set {' --set '.join(self.settings)}" if self.settings else ""


Row = dict[Trust, TrustCell]


def trust_models(method: Method[Any], data: str | None = None) -> Row:
    """The trust models of a method, from the least to the most that a server may know."""
    config, _ = configure(method, preset="tuned", dataset="")
    guarantee = method.guarantee(config)
    if method.plan is None:
        return dict.fromkeys(STRONGEST_LAST, _no(f"it has no plan for clients ({_first_caveat(guarantee)})"))
    own = _settings(method)
    plan, _ = tiny_plan(method, own, data)
    nobody = _by_messages(method, own, data, guarantee)
    if guarantee.basis != "proven":
        return _of_unproven(method, plan, nobody)
    return {
        "server": _proven(plan),
        "server sees only sums": _or_reason(lambda: _masked(method, own, data)),
        "server sees only noisy sums": _or_reason(lambda: _shared(tiny_plan(method, (*own, _DISTRIBUTED), data)[0])),
        "nobody": nobody,
    }


def _settings(method: Method[Any]) -> tuple[str, ...]:
    """Settings with which a plan needs no package beside: whose vectors texts have makes no difference to noise."""
    config, _ = configure(method, preset="tuned", dataset="")
    with suppress(BadInput):
        ready(method, config)
        return ()
    return ("text.sentences=titles",) if "text.sentences" in setting_names(method.config) else ()


def _first_caveat(guarantee: Guarantee) -> str:
    return guarantee.caveats[0].rstrip(".") if guarantee.caveats else guarantee.line()


def _no(reason: str) -> TrustCell:
    return TrustCell(has=False, reason=reason)


def _or_reason(make: Callable[[], TrustCell]) -> TrustCell:
    try:
        return make()
    except BadInput as refused:
        return _no(str(refused))


def _of_unproven(method: Method[Any], plan: Plan, nobody: TrustCell) -> Row:
    """The row of a method without a guarantee: what can be masked is masked all the same."""
    relative = f"; its private relative is {method.private_relative}" if method.private_relative else ""
    nothing = f"{plan.mechanism.name} adds no noise, so that nothing is proven"
    masked = "single messages can be hidden all the same (--trust sums)"
    try:
        check_sums(plan)
    except BadInput as refused:
        masked = f"nor can its messages be hidden: {refused}"
    none = _no(f"{nothing}{relative}")
    return {
        "server": none,
        "server sees only sums": _no(f"{nothing}; {masked}"),
        "server sees only noisy sums": none,
        "nobody": nobody,
    }


def _mechanisms(plan: Plan) -> list[Mechanism[Any, Any]]:
    """Everything that releases something of people's data."""
    reports = [] if plan.reports is None else [plan.reports.mechanism]
    gains = [] if plan.model_selection is None else [plan.model_selection.mechanism]
    return [plan.mechanism, *reports, *gains]


def _proven(plan: Plan, *settings: str) -> TrustCell:
    found = _mechanisms(plan)
    names = tuple(_named(mechanism) for mechanism in found)
    return TrustCell(True, names, tuple(_section(mechanism) for mechanism in found), settings)


def _named(mechanism: Any) -> str:
    inner = getattr(mechanism, "inner", None)
    return mechanism.name if inner is None else f"{mechanism.name} of {inner.name}"


def _section(mechanism: Mechanism[Any, Any]) -> str:
    if getattr(mechanism, "shares", None) is not None:
        return dict(_SECTIONS)[DistributedNoiseSum]
    return next((section for kind, section in _SECTIONS if isinstance(mechanism, kind)), _ANY_OTHER)


def _masked(method: Method[Any], own: tuple[str, ...], data: str | None) -> TrustCell:
    """Yes where every sum can be made under masks; of some clients, where the method asks some in a round."""
    settings: tuple[str, ...] = ()
    try:
        check_sums(_of_some(method, own, data))
    except BadInput:
        settings = ("cohort.sampling=fixed",)
        check_sums(_of_some(method, (*own, *settings), data))
    return _proven(tiny_plan(method, (*own, *settings), data)[0], *settings)


def _of_some(method: Method[Any], settings: tuple[str, ...], data: str | None) -> Plan:
    """A tiny plan whose rounds have half of the clients, unless the method asks everybody."""
    plan, problem = tiny_plan(method, settings, data)
    usual, _ = configure(method, preset="tuned", dataset="", settings=settings)
    if not usual.cohort.size or method.plan is None:
        return plan
    config = tiny_config(method, settings)
    cohort = replace(config.cohort, size=max(1, len(problem.train) // 2))
    return method.plan(config.model_copy(update={"cohort": cohort}), problem)


def _shared(plan: Plan) -> TrustCell:
    """Yes where everything that is summed has noise of the clients."""
    check_sums(plan)
    for mechanism in _mechanisms(plan):
        if mechanism.trust not in ("server sees only noisy sums", "nobody"):
            return _no(f"the server adds the noise of {mechanism.name}")
    return _proven(plan, _DISTRIBUTED)


def _by_messages(method: Method[Any], own: tuple[str, ...], data: str | None, guarantee: Guarantee) -> TrustCell:
    """Whether some setting gives every message a proven noise of its own."""
    claimed = None
    if guarantee.basis == "proven" and guarantee.trust == "nobody":
        return _proven(tiny_plan(method, own, data)[0])
    for setting in _choices(method):
        try:
            config, _ = configure(method, preset="tuned", dataset="", settings=[*own, setting])
            found = method.guarantee(config)
        except BadInput:
            continue
        if found.trust == "nobody" and found.basis == "proven":
            return _proven(tiny_plan(method, (*own, setting), data)[0], setting)
        if found.trust == "nobody":
            claimed = f"{setting} only claims it: {found.basis}, not proven"
    plan, _ = tiny_plan(method, own, data)
    if plan.mechanism.noise_on == "sum":
        beside = f"; {claimed}" if claimed is not None else ""
        return _no(f"the noise is on sums, and no message has enough of its own{beside}")
    if claimed is not None:
        return _no(claimed)
    alone = [m.name for m in _mechanisms(plan)[1:] if m.trust == "nobody" and m.calibration == "proven"]
    covers = f"; {', '.join(alone)} cover what they report and nothing else" if alone else ""
    return _no(f"{plan.mechanism.name} adds no noise to updates{covers}")


def _choices(method: Method[Any]) -> Iterable[str]:
    """Every single choice that a setting offers."""
    return (f"{s['name']}={choice}" for s in settings_of(method) for choice in s["choices"] if choice != s["tuned"])


def read_trust_models() -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Rows of the built-in methods by name and data set, as JSON has them; the usual data set's name is empty."""
    return cached("trust", lambda: {name: _rows(get(name)) for name in METHODS})


def of_method(name: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Rows of one method, which may be a file, by data set."""
    method = get(name)
    return read_trust_models()[method.name] if method.name in METHODS else _rows(method)


def _rows(method: Method[Any]) -> dict[str, dict[str, dict[str, Any]]]:
    return {data or "": to_json(trust_models(method, data)) for data in (None, *method.made_up[1:])}


def to_json(row: Row) -> dict[str, dict[str, Any]]:
    """Cells by trust model, ready for JSON."""
    return {trust: asdict(cell) | {"words": cell.words()} for trust, cell in row.items()}


def table(rows: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]) -> list[str]:
    """Lay out rows as a table in Markdown: what proves a yes, and below it the reasons of every no, by number."""
    lines, reasons = cells_of(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    padded = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    return [*padded, "", *reasons]


def cells_of(rows: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]) -> tuple[list[list[str]], list[str]]:
    """Head and lines of the table, in Markdown, and the numbered reasons."""
    reasons: dict[str, int] = {}
    lines = [["method", *STRONGEST_LAST]]
    for name, by_data in rows.items():
        for data, row in by_data.items():
            shown = f"`{name}`{f' on `{data}`' if data else ''}"
            lines.append([shown, *(_cell(row[trust], reasons) for trust in STRONGEST_LAST)])
    return lines, [f"{number}. {reason}" for reason, number in reasons.items()]


def _cell(cell: Mapping[str, Any], reasons: dict[str, int]) -> str:
    if not cell["has"]:
        return f"no ({reasons.setdefault(cell['reason'], len(reasons) + 1)})"
    proofs = [f"[{name}]({_PAGE}#{at})" for name, at in zip(cell["mechanisms"], cell["sections"], strict=True)]
    settings = "".join(f" `{setting}`" for setting in cell["settings"] if setting != _DISTRIBUTED)
    return f"yes: {', '.join(proofs)}{settings}"
