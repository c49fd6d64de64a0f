"""What leaves a client, what the server sees, and what is published: derived from a plan, never written by hand.

The parts of a plan say what a statement says of them: the schema names the tensors, the mechanism where noise is added
and what it clips, the reports what they tell, and a local trainer

    reads   what of its client's data a message is computed from (`READS`); unknown: everything that the client holds
    rows    which rows of a table it sends (`ROWS`), where no noise fills the table

`tests/privacy/test_disclosure.py` compares the words with the encoded messages of every method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from veilrec.core.errors import counted
from veilrec.core.schema import BOUND, Tensor
from veilrec.privacy.guarantee import Disclosure
from veilrec.privacy.mechanisms.reports import ItemHistogram, ItemReports, MadeOfReports, RandomisedReports
from veilrec.privacy.mechanisms.sums import UpdateMechanism

if TYPE_CHECKING:
    from veilrec.core.plan import Plan, ReportSpec

REPORT, EXAMPLES, GAIN = "item report", "number of examples", "gain"  # fields that are no tensor of the model
READS: Mapping[str, str] = {
    "items": "the items that its user has used",
    "order": "their order",
    "ratings": "their ratings",
    "features": "the features of its user",
    "impressions": "what its user was shown and clicked, and the history before it, in its order",
}
_EVERYTHING = "everything that the client holds"
ROWS: Mapping[str, str] = {
    "own": "Only the rows of its user's items are sent, so that a message shows which these are.",
    "touched": "Only the rows that training touched are sent: those of its user's items, and of others that it drew.",
    "words": "Only the rows of the words that stand in what its user read and was shown are sent.",
    "all": "Every row is sent.",
}
_SIMULATED = (
    "This run was simulated: all data lay in one place, and nothing of it was hidden from whoever ran it. What stands"
    " here is what clients send, and what a server sees, where the same plan runs on clients."
)
_SHARE = "The client adds its part of the noise of the sum, and a mask."
_MASK = " A mask hides it."
_WITH_SHARES = "with the noise that clients have added"
_SHOWN = 6  # names of tensors in a sentence, before they stand in one of their own


def disclosure_of(plan: Plan, *, masked: bool = False, simulated: bool = False) -> Disclosure:
    """Derive what a plan discloses.

    Args:
        plan: as it runs, with distributed noise where clients add it.
        masked: whether secure aggregation hides single messages.
        simulated: whether clients were simulated in one place.
    """
    mechanism, learnt = plan.mechanism, plan.schema.learnt.tensors
    reads = getattr(plan.trainer, "reads", None)
    source = _EVERYTHING if reads is None else _listed([READS[name] for name in reads])
    fields, masked = [tensor.name for tensor in learnt], masked or mechanism.noise_on == "share"
    times = counted(plan.participations, "round")
    leaves = [
        f"In each round that it takes part in, {times} at most: how training changed {_named(fields)}, computed from"
        f" {source}. {_protection(plan, masked=masked)}",
        *_places(plan, learnt, masked=masked),
    ]
    if len(fields) > _SHOWN:
        leaves.append(f"The {len(fields)} tensors are {_listed([f'`{name}`' for name in fields])}.")
    if plan.sends_examples:
        fields.append(EXAMPLES)
        leaves.append("In the same message: the number of examples that it trained on, exact.")
    if plan.reports is not None:
        fields.append(REPORT)
        leaves.append(_report(plan.reports))
    if plan.model_selection is not None:
        fields.append(GAIN)
        mechanism_of_gains = plan.model_selection.mechanism
        noise = _SHARE if mechanism_of_gains.shares is not None else "It carries no noise when it leaves."
        leaves.append(
            "After the last round, from validation clients alone, which never train: the gain, by how much better the"
            f" trained model ranks their clicks than the start, one number clipped to {mechanism_of_gains.clip:g}."
            f" {noise}"
        )
    return Disclosure(
        fields=tuple(fields),
        leaves=tuple(leaves),
        stays=_stays(plan, reads),
        server=tuple(_server(plan, masked=masked)),
        published=tuple(_published(plan)),
        simulated=_SIMULATED if simulated else "",
    )


def _protection(plan: Plan, *, masked: bool) -> str:
    """How a message is protected on its client, whatever is done to the sum afterwards."""
    mechanism = plan.mechanism
    if isinstance(mechanism, MadeOfReports):
        return "The client adds noise to its attention and labels first, and the message is computed from these alone."
    noise = getattr(plan.trainer, "noise", None) is not None
    before = " The client adds noise to attention and labels before it trains on its clicks." if noise else ""
    clip, mask = _clip(mechanism), _MASK if masked else ""
    match mechanism.noise_on:
        case "message":
            return f"{clip} The client adds noise to every number that it sends.{mask}{before}"
        case "share":
            return f"{clip} {_SHARE}{before}"
        case "sum":
            return f"{clip} It carries no noise when it leaves.{mask}{before}"
    return f"{clip} Nothing adds noise to the message itself.{mask}{before}"


def _clip(mechanism: UpdateMechanism) -> str:
    if mechanism.is_linear:
        return "It is not clipped."
    norm = getattr(getattr(mechanism, "inner", mechanism), "clip_norm", None)
    return "It is clipped." if norm is None else f"It is clipped, by a bound of {norm:.4g} at most."


def _places(plan: Plan, learnt: Sequence[Tensor], *, masked: bool) -> list[str]:
    """What the places say that numbers are sent for; under masks there are none to be seen."""
    told, mechanism = [], plan.mechanism
    chosen = [tensor.name for tensor in learnt if mechanism.chooses_entries(tensor)]
    tables = [tensor.name for tensor in learnt if tensor.by_row and tensor.name not in chosen]
    if plan.round_planner.leaves_out:
        told.append("A message is about the part of the model that its round names, which everybody may know.")
    if chosen and not masked:
        told.append(f"Of {_named(chosen)} the largest numbers are sent: which ones these are depends on its data.")
    if any(tensor.name == BOUND for tensor in learnt):
        noise = "with its part of the noise" if mechanism.noise_on == "share" else "exact"
        told.append(f"Of these, `{BOUND}` tells whether the others had to be clipped, {noise}.")
    if masked and (tables or chosen):
        told.append(ROWS["all"])
    elif tables and mechanism.noise_on != "message":
        told.append(ROWS[getattr(plan.trainer, "rows", "touched")])
    return told


def _report(reports: ReportSpec) -> str:
    """The report on items, in words."""
    mechanism = reports.mechanism
    when = "Once, before the first round" if reports.once else "Before a round"
    if not reports.once:
        when += ", drawn anew each time" if reports.fresh else ", the same each time"
    return f"{when}: a report on items, {_bits(mechanism)}"


def _bits(mechanism: ItemReports) -> str:
    if isinstance(mechanism, RandomisedReports):
        lie = 1.0 - mechanism.keep_probability
        return f"one bit for each item, which the client turns round with probability {lie:.3g} (randomised response)."
    named = "all items that its user has used"
    if isinstance(mechanism, ItemHistogram):
        named = f"{mechanism.max_items:,} of its user's items at most, drawn by chance where there are more"
    if mechanism.shares is not None:
        return f"which names {named}. {_SHARE}"
    return f"which names {named}, exact and without noise."


def _stays(plan: Plan, reads: Sequence[str] | None) -> tuple[str, ...]:
    """What no message holds: what the client keeps, and the order where nothing is computed from it."""
    kept = list(plan.trainer.fresh_private_state(np.zeros(1, np.int64), 0))
    told = []
    if kept:
        told.append(f"The client keeps {_named(kept)} and does not send it; what it sends is computed with it.")
    chosen = any(plan.mechanism.chooses_entries(tensor) for tensor in plan.schema.learnt.tensors)
    if reads is not None and not chosen and not {"order", "impressions"} & set(reads):
        told.append("Nothing that is sent depends on the order of the items.")
    return tuple(told)


def _server(plan: Plan, *, masked: bool) -> list[str]:
    """What reaches the server, by how messages travel and where noise is added."""
    noise_on, reports = plan.mechanism.noise_on, plan.reports
    if masked:
        noise = {"share": _WITH_SHARES, "message": "with the noise of every client"}
        told = [f"The sum over the clients of a round, {noise.get(noise_on, 'exact')}, and no single message."]
    else:
        each = "with its noise" if noise_on == "message" else "as it leaves"
        told = [f"Every message by itself, {each}, and which client sent it."]
    if noise_on == "sum":
        told.append("The server adds the noise, and has to be trusted (central differential privacy).")
    if reports is not None:
        hidden = masked and reports.mechanism.under_masks
        told.append("The sum of all reports." if hidden else "Every report by itself.")
        if reports.mechanism.shares is not None:
            told[-1] = f"The sum of all reports, {_WITH_SHARES}."
    if plan.model_selection is not None:
        shares = plan.model_selection.mechanism.shares
        gains = "The sum of all gains, exact." if masked else "Every validation client's gain by itself."
        told.append(gains if shares is None else f"The sum of all gains, {_WITH_SHARES}.")
    return told


def _published(plan: Plan) -> list[str]:
    """What a model, and a release of it, holds."""
    noise = {
        "sum": "with the noise that the server has added",
        "share": _WITH_SHARES,
        "message": "of messages with noise",
        "nothing": "without noise of their own",
    }
    learnt = [tensor.name for tensor in plan.schema.learnt.tensors]
    told = [f"{_named(learnt)}, learnt from sums {noise[plan.mechanism.noise_on]}."]
    others = [tensor.name for tensor in plan.schema.tensors if not tensor.learnt]
    if others and plan.reports is not None:
        noisy = isinstance(plan.reports.mechanism, RandomisedReports) or hasattr(plan.reports.mechanism, "sigma")
        counts = "noisy counts" if noisy else "exact counts"
        told.append(f"{_named(others)}, from the {counts} of the reports, or public before the first round.")
    elif others:
        told.append(f"{_named(others)}, public before the first round.")
    told.append("The ids, titles and categories of the items, the settings, and this statement.")
    return told


def _named(names: Sequence[str]) -> str:
    shown = [f"`{name}`" for name in names]
    return f"{len(names)} tensors of the model" if len(names) > _SHOWN else _listed(shown)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
