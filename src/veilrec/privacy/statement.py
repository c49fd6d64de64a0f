"""The privacy statement: one page that somebody who knows no mathematics can read, sign, or object to."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import Any

from veilrec.privacy.guarantee import Adjacency, Guarantee, Scope, Trust, Unit

_WIDTH = 96

_UNIT: dict[Unit, str] = {
    "click": "one click: one item that a person used, viewed or rated",
    "history": "a person's whole history of clicks, as it stands when the message is made",
    "user": "everything that one person ever contributes",
}
_ADJACENCY: dict[Adjacency, str] = {
    "replace-one": "whether it was this {unit} or any other one in its place (replace-one)",
    "add-remove": "whether this {unit} was there at all or not (add-remove)",
}
_SCOPE: dict[Scope, str] = {
    "per message": "each single message; what several messages of one person give away adds up",
    "per round": "one round of training; what several rounds give away adds up",
    "whole run": "the whole training, all its rounds together",
    "lifetime": "everything that a device sends in its life",
}
_TRUST: dict[Trust, str] = {
    "nobody": "everybody, the operator of the server included: the noise is added on the device",
    "server sees only sums": "everybody who sees the results, and the operator of the server as well, "
    "because it learns sums over many devices and no single message",
    "server": "everybody who sees the results, but not the operator of the server: it receives what each "
    "device sends and adds the noise, and has to be trusted",
}
_ASSUMED_TRUST: dict[Trust, tuple[str, ...]] = {
    "nobody": ("The software on the device is the one that was examined.",),
    "server sees only sums": (
        "Secure aggregation works, and enough devices finish the round honestly.",
        "The software on the device is the one that was examined.",
    ),
    "server": ("The operator adds the noise, keeps no single message, and tells nobody.",),
}
_BEYOND_UNIT: dict[Unit, str] = {
    "click": "Habits that show in many clicks of one person: only single clicks are covered.",
    "history": "Earlier and later versions of the history: each message is a new one.",
    "user": "Several accounts of one person: they count as several people.",
}
_ALWAYS_OPEN = (
    "What can be learnt about people in general, and then guessed about somebody who never took part.",
    "What the network shows: addresses, times, that a device takes part, and the sizes of its messages.",
)


@dataclass(frozen=True)
class Statement:
    """A guarantee with what is needed to understand it."""

    guarantee: Guarantee
    method: str = ""
    dataset: str = ""
    noise: tuple[str, ...] = ()
    """What was done, in words with numbers: "Gaussian noise, 1.2 times the sensitivity"."""
    simulated: bool = False
    """Whether the devices were simulated in one place: then nobody's data was protected by the run itself."""
    publication: tuple[str, ...] = ()
    """What of a run may be published, or why nothing may."""
    publishable: bool = False

    def to_json(self) -> dict[str, Any]:
        """The statement in parts."""
        g = self.guarantee
        return {
            "method": self.method or None,
            "dataset": self.dataset or None,
            "guarantee": g.to_json(),
            "summary": self.summary(),
            "protected": _UNIT[g.unit] if g.unit else None,
            "hidden": _hidden(g),
            "per": _SCOPE[g.scope] if g.scope else None,
            "against": _TRUST[g.trust] if g.trust else None,
            "meaning": list(meaning(g)),
            "published": self._published(),
            "noise": list(self.noise),
            "assumptions": list(_assumptions(g)),
            "not_protected": list(_not_protected(g)),
            "caveats": list(g.caveats),
            "publishable": self.publishable,
            "publication": list(self.publication),
            "simulated": self.simulated,
        }

    def text(self) -> str:
        """The statement as a page."""
        parts = self.to_json()
        of = " on ".join(filter(None, (self.method, self.dataset)))
        title = f"Privacy statement{': ' + of if of else ''}"
        sections = [
            ("In one sentence", [parts["summary"]]),
            ("What is protected", [parts["protected"], parts["hidden"]]),
            ("For how long", [parts["per"]]),
            ("Against whom", [parts["against"]]),
            ("What the numbers mean", parts["meaning"]),
            ("What the paper says, and what holds", (parts["published"] or {}).get("words", [])),
            ("How", parts["noise"]),
            ("What has to be true for this", parts["assumptions"]),
            ("What is not protected", parts["not_protected"]),
            ("What may be published", parts["publication"]),
            ("To be kept in mind", parts["caveats"]),
        ]
        pages = [f"{title}\n{'=' * len(title)}"]
        pages += [_section(name, [line for line in lines if line]) for name, lines in sections]
        return "\n\n".join(page for page in pages if page)

    def summary(self) -> str:
        """One sentence that claims no more than the guarantee."""
        g = self.guarantee
        if g.basis == "none":
            words = "Nothing is promised: what leaves the devices is not protected by noise."
        elif g.basis == "proven":
            words = f"The guarantee: {g.line()}."
        else:
            words = f"What its authors claim, and what holds: {g.line()}."
        if not self.simulated:
            return words
        if self.publishable:
            return f"{words} The run was simulated where all data is: it covers people against those who get the model."
        return f"{words} This was a simulated run, which protects nobody."

    def _published(self) -> dict[str, Any] | None:
        g = self.guarantee
        if g.basis != "as published":
            return None
        claim = f"The paper claims epsilon {g.epsilon:g} and delta {g.delta:g} {_terms(g)}."
        if g.honest_epsilon is None:
            honest = "No finite epsilon is known to hold for it in these terms."
        else:
            honest = f"What holds is epsilon {g.honest_epsilon:.4g} and delta {g.honest_delta:g} {_terms(g)}."
        return {
            "claimed_epsilon": g.epsilon,
            "claimed_delta": g.delta,
            "honest_epsilon": g.honest_epsilon,
            "honest_delta": g.honest_delta,
            "words": [claim, honest, *filter(None, [g.honest_note])],
        }


def meaning(guarantee: Guarantee) -> tuple[str, ...]:
    """What epsilon and delta say about somebody who tries to find out; nothing where nothing is promised."""
    if guarantee.basis == "as published":
        epsilon, delta = guarantee.honest_epsilon, guarantee.honest_delta
    else:
        epsilon, delta = guarantee.epsilon, guarantee.delta
    if epsilon is None or delta is None:
        return ()
    detected = most_detected(epsilon, delta, false_alarms=0.01)
    lines = [
        *(_of_epsilon(epsilon, guarantee) if delta == 0.0 else _of_both(epsilon, delta, guarantee)),
        f"A test that wrongly accuses 1 in 100 can find {_percent(detected)} of those whom it looks for, at "
        "most; guessing finds 1 %.",
    ]
    if detected > 0.5:
        lines.append("This is a weak promise: such a test may find more than half of them.")
    return tuple(lines)


def _of_epsilon(epsilon: float, guarantee: Guarantee) -> tuple[str, ...]:
    return (
        f"Epsilon {epsilon:.4g} ({_terms(guarantee)}): whatever is seen, the odds of any guess about it "
        f"change by a factor of {_factor(epsilon)} at most. Somebody who thought it 50 % likely can become "
        f"{_percent(_sure(epsilon))} sure, not more.",
    )


def _of_both(epsilon: float, delta: float, guarantee: Guarantee) -> tuple[str, ...]:
    # Delta is no chance of failure: the odds pass e^epsilon more often than that. But the chance that they pass
    # e^(epsilon + t) is at most delta / (1 - e^-t), because E[(1 - e^(epsilon - loss))_+] <= delta; t = log 2 here.
    doubled = epsilon + math.log(2.0)
    return (
        f"Epsilon {epsilon:.4g} and delta {delta:g} ({_terms(guarantee)}): whatever somebody may conclude from what is "
        f"seen, the chance that they do is at most {_factor(epsilon)} times what it would be if it were otherwise, "
        f"plus {_one_in(delta)}.",
        f"So the odds of any guess about it change by a factor of {_factor(doubled)} (twice that) at most, but for a "
        f"chance of {_one_in(min(2.0 * delta, 1.0))} at most: somebody who thought it 50 % likely can become "
        f"{_percent(_sure(doubled))} sure, and hardly ever more.",
    )


def most_detected(epsilon: float, delta: float, *, false_alarms: float) -> float:
    """The largest share of true positives that (epsilon, delta) allows at this share of false ones."""
    linear = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    mirrored = 1.0 - math.exp(-epsilon) * (1.0 - delta - false_alarms)
    return min(1.0, linear, mirrored)


def _sure(epsilon: float) -> float:
    return 1.0 / (1.0 + math.exp(-epsilon))


def _factor(epsilon: float) -> str:
    if epsilon < 4.0:
        return f"{math.exp(epsilon):.3g}"
    return f"{math.exp(epsilon):,.0f}" if epsilon < 20.0 else f"10^{epsilon / math.log(10.0):,.0f}"


def _percent(share: float) -> str:
    if share < 0.99:
        return f"{100.0 * share:.3g} %"
    return f"{100.0 * share:.2f} %" if share < 0.9999 else "practically 100 %"


def _one_in(chance: float) -> str:
    return f"1 in {1.0 / chance:,.0f}" if chance >= 1e-15 else f"{chance:g}"  # more digits say nothing


def _terms(g: Guarantee) -> str:
    return f"per {g.unit}, {g.adjacency}, {g.scope}, trusting: {g.trust}"


def _hidden(g: Guarantee) -> str | None:
    if g.adjacency is None or g.unit is None:
        return None
    return f"What stays uncertain: {_ADJACENCY[g.adjacency].format(unit=g.unit)}."


def _assumptions(g: Guarantee) -> tuple[str, ...]:
    if g.trust is None:
        return ()
    if g.basis == "as published":
        return ("The paper's own assumptions; this calibration is for comparing with its tables, not for people.",)
    return (*_ASSUMED_TRUST[g.trust], "The noise comes from a cryptographic source and is never drawn again or logged.")


def _not_protected(g: Guarantee) -> tuple[str, ...]:
    if g.basis == "none" or g.unit is None:
        return ("Everything that is sent, and what can be concluded from it.", _ALWAYS_OPEN[1])
    whether = "That somebody takes part: only what they contribute is hidden."
    return (_BEYOND_UNIT[g.unit], *((whether,) if g.adjacency == "replace-one" else ()), *_ALWAYS_OPEN)


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + ("" if words[-1] in ".!?" else ".")


def _section(name: str, lines: list[str]) -> str:
    if not lines:
        return ""
    wrapped = [textwrap.fill(_sentence(line), _WIDTH, initial_indent="  ", subsequent_indent="  ") for line in lines]
    return "\n".join([name, *wrapped])
