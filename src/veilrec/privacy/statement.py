"""The privacy statement: one page that somebody who knows no mathematics can read, sign, or object to."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from veilrec.privacy.accounting.accountant import HOW, Detection, detection_by, detection_of
from veilrec.privacy.guarantee import Adjacency, Basis, Guarantee, Scope, Trust, Unit

_WIDTH = 96
FALSE_ALARMS = 0.01  # of the test that a statement speaks of
_MUCH = 1e-3  # a delta above it promises little
_NO_NOISE = "what leaves the devices is not protected by noise."
_NOT_COVERED = (
    "this run adds noise, but its model holds what was learnt before it, in the earlier run that it started from, and "
    "no promise covers both."
)
_NOT_AS_IT_IS = "No guarantee as it is: {why}. Without what stands in its way it would be this:"
_NOT_HERE = "Something of this is NOT SO here: {why}."

_WORDS = yaml.safe_load(Path(__file__).with_name("statement.yaml").read_text("utf-8"))
_UNIT: dict[Unit, str] = _WORDS["unit"]
_CONTRIBUTES: dict[Scope, str] = _WORDS["contributes"]
_ADJACENCY: dict[Adjacency, str] = _WORDS["adjacency"]
_SEEN_TO_TAKE_PART: str = _WORDS["seen_to_take_part"]
_SCOPE: dict[Scope, str] = _WORDS["scope"]
_TRUST: dict[Trust, str] = _WORDS["trust"]
_WHO: dict[Trust, str] = _WORDS["who"]
_COMES_TO: list[tuple[float, float, str]] = _WORDS["comes_to"]  # what a test finds, how often a guess is right, words
_OF: dict[Scope, str] = _WORDS["of"]
_WHETHER: dict[Unit, dict[Adjacency, str]] = _WORDS["whether"]
_ASSUMED_TRUST: dict[Trust, list[str]] = _WORDS["assumed"]
SECTIONS = tuple((title, part) for part, title in _WORDS["sections"].items())  # after what is promised: title, part
_BEYOND_UNIT: dict[Unit, str] = _WORDS["beyond_unit"]
_ALWAYS_OPEN: list[str] = _WORDS["always_open"]


@dataclass(frozen=True)
class Statement:
    """A guarantee with what is needed to understand it."""

    guarantee: Guarantee
    method: str = ""
    dataset: str = ""
    noise: tuple[str, ...] = ()  # what was done, in words with numbers: "Gaussian noise, 1.2 times the sensitivity"
    publication: tuple[str, ...] = ()  # what of a run may be published, or why nothing may
    queries: tuple[str, ...] = ()  # of a release: what clients may ask, and what that costs them together
    adds_noise: bool = False  # whether the run adds noise to its sums, be anything promised or not
    earlier: tuple[str, ...] = ()  # the runs that the model comes from

    @property
    def publishable(self) -> bool:
        """Whether the model may be published: decided once, when the run was made."""
        return self.guarantee.holds

    @property
    def simulated(self) -> bool:
        """Whether the clients were simulated in one place: the run itself protected nobody from whoever ran it."""
        return self.guarantee.disclosure is not None and bool(self.guarantee.disclosure.simulated)

    @property
    def obstacle(self) -> str:
        """Why a proven promise does not hold for the run as it is; empty where it does."""
        return self.guarantee.obstacle if self.guarantee.basis == "proven" else ""

    def to_json(self) -> dict[str, Any]:
        """The statement in parts."""
        g = self.guarantee
        told = {} if g.disclosure is None else asdict(g.disclosure)
        return {
            "method": self.method or None,
            "dataset": self.dataset or None,
            "guarantee": g.to_json(),
            "plain": self.plain(),
            "summary": self.summary(),
            "protected": self._protected(),
            "hidden": _hidden(g),
            "per": _SCOPE[g.scope].format(runs=self._runs()) if g.scope else None,
            "against": _TRUST[g.trust] if g.trust else None,
            "meaning": list(meaning(g)),
            **detection_to_json(g),
            "published": self._published(),
            "noise": list(self.noise),
            "assumptions": list(_assumptions(g, self.obstacle)),
            "not_protected": list(_not_protected(g)),
            "caveats": list(g.caveats),
            "publishable": self.publishable,
            "publication": list(self.publication),
            "simulated": self.simulated,
            "leaves": list(told.get("leaves", ())),
            "stays": list(told.get("stays", ())),
            "server_sees": [*told.get("server", ()), *filter(None, [told.get("simulated")])],
            "model_holds": list(told.get("published", ())),
            "queries": list(self.queries),
        }

    def text(self) -> str:
        """The statement as a page."""
        parts = self.to_json()
        of = " on ".join(filter(None, (self.method, self.dataset)))
        title = f"Privacy statement{': ' + of if of else ''}"
        sections = [
            ("In one sentence", [parts["plain"], parts["summary"]]),
            ("What is protected", [parts["protected"], parts["hidden"]]),
            ("For how long", [parts["per"]]),
            ("Against whom", [parts["against"]]),
            ("What the numbers mean", parts["meaning"]),
            ("What the paper says, and what holds", (parts["published"] or {}).get("words", [])),
            *((name, parts[key]) for name, key in SECTIONS),
        ]
        pages = [f"{title}\n{'=' * len(title)}"]
        pages += [_section(name, [line for line in lines if line]) for name, lines in sections]
        return "\n\n".join(page for page in pages if page)

    def plain(self) -> str:
        """What is promised in words that need no explanation, without a formula."""
        g, test = self.guarantee, detection(self.guarantee)
        if g.basis == "none" or g.unit is None or g.adjacency is None or g.trust is None:
            return "Nothing is promised: what can be learnt about a person from this has no limit that we know."
        if test is None:
            return "A paper promises something here that does not hold; what can be learnt has no limit that we know."
        told = _strength(test).format(
            who=_WHO[g.trust], of=_OF[g.scope] if g.scope else "", whether=_WHETHER[g.unit][g.adjacency]
        )
        finds = f"finds {100.0 * test.found:.3g} at most" if test.found < 0.999 else "may find all of them"
        told = (
            f"{told}: the best guess is right {_percent(test.best_guess)} of the time at most, where a coin is right "
            f"half of the time; of 100 such cases, a test that is wrong about 1 in 100 others {finds}, where guessing "
            "finds 1."
        )
        return f"{_NOT_AS_IT_IS.format(why=self.obstacle)} {told}" if self.obstacle else told

    def summary(self) -> str:
        """One sentence that claims no more than the guarantee."""
        g = self.guarantee
        if g.basis == "none":
            words = f"No privacy guarantee: {_NOT_COVERED if self.adds_noise else _NO_NOISE}"
        elif self.obstacle:
            words = f"There is no guarantee as it is; without what stands in its way there would be: {g.line()}."
        elif g.basis == "proven":
            words = f"The guarantee{f', of {self._runs()} together' if self.earlier else ''}: {g.line()}."
        else:
            words = f"What its authors claim, and what holds: {g.line()}."
        if not self.simulated:
            return words
        covers = " It covers people against those who get the model." if self.publishable else ""
        return f"{words} The run was simulated where all data is: it hid nothing from whoever ran it.{covers}"

    def _protected(self) -> str | None:
        g = self.guarantee
        if g.unit is None or g.scope is None:
            return None
        several = self.earlier and g.scope == "whole run"
        return _UNIT[g.unit].format(scope=f"to {self._runs()}" if several else _CONTRIBUTES[g.scope])

    def _runs(self) -> str:
        if not self.earlier:
            return "the whole training"
        return f"this run and the earlier run{'s' if len(self.earlier) > 1 else ''} {', '.join(self.earlier)}"

    def _published(self) -> dict[str, Any] | None:
        g = self.guarantee
        if g.basis != "as published":
            return None
        claim = f"The paper claims epsilon {g.epsilon:g} and delta {g.delta:g} ({_terms(g, 'as published')})."
        if g.honest_epsilon is None:
            honest = "No finite epsilon is known to hold for it in these terms."
        else:
            honest = (
                f"What holds is epsilon {g.honest_epsilon:.4g} and delta {g.honest_delta:g} ({_terms(g, 'proven')})."
            )
        return {
            "claimed_epsilon": g.epsilon,
            "claimed_delta": g.delta,
            "honest_epsilon": g.honest_epsilon,
            "honest_delta": g.honest_delta,
            "words": [claim, honest, *filter(None, [g.honest_note])],
        }


def meaning(guarantee: Guarantee) -> tuple[str, ...]:
    """What epsilon and delta say about somebody who tries to find out; nothing where nothing is promised."""
    epsilon, delta = _holding(guarantee)
    test = detection(guarantee)
    if epsilon is None or delta is None or test is None:
        return ()
    lines = [
        *(_of_epsilon(epsilon, guarantee) if delta == 0.0 else _of_both(epsilon, delta, guarantee)),
        f"A test that wrongly accuses 1 in 100 can find {_percent(test.found)} of those whom it looks for, at most; "
        f"guessing finds 1 %. Where it is as likely as not, the best guess is right {_percent(test.best_guess)} of the "
        f"time, at most; a coin is right half of the time. This is {HOW[test.how]}.",
    ]
    if guarantee.scope in ("per message", "per round"):
        lines.append(f"All this is about one {guarantee.scope.removeprefix('per ')}: several tell more.")
    if test.found > 0.5:
        lines.append("This is a weak promise: such a test may find more than half of them.")
    if delta > _MUCH:
        lines.append(
            f"A delta of {delta:g} promises little: everything about {_percent(delta)} of the people may be told, "
            "and the delta still hold. Ask for one far below 1 over the number of people, such as 1e-6."
        )
    return tuple(lines)


def detection(guarantee: Guarantee) -> Detection | None:
    """What the best test can do against what holds, by the event where it is known; None where nothing holds."""
    epsilon, delta = _holding(guarantee)
    if epsilon is None or delta is None:
        return None
    stated = detection_by(epsilon, delta, false_alarms=FALSE_ALARMS)
    if guarantee.event is None:
        return stated
    done = detection_of(guarantee.event, false_alarms=FALSE_ALARMS)
    return Detection(min(done.found, stated.found), min(done.best_guess, stated.best_guess), done.how)


def detection_to_json(guarantee: Guarantee) -> dict[str, Any]:
    """What the best test can do, for `--json`."""
    test = detection(guarantee)
    return {
        "detected_at_1_percent_false_alarms": None if test is None else test.found,
        "best_guess": None if test is None else test.best_guess,
        "detection": None if test is None else HOW[test.how],
    }


def _holding(g: Guarantee) -> tuple[float | None, float | None]:
    return (g.honest_epsilon, g.honest_delta) if g.basis == "as published" else (g.epsilon, g.delta)


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
    worst = (
        f"Epsilon {epsilon:.4g} and delta {delta:g} ({_terms(guarantee)}): whatever somebody may conclude from what is "
        f"seen, the chance that they do is at most {_factor(epsilon)} times what it would be if it were otherwise, "
        f"plus {_one_in(delta)}."
    )
    if 2.0 * delta >= 1.0:
        return (worst,)
    more = "hardly ever more" if delta <= _MUCH else "more in those other cases"
    return (
        worst,
        f"So the odds of any guess about it change by a factor of {_factor(doubled)} (twice that) at most, but for a "
        f"chance of {_one_in(2.0 * delta)} at most: somebody who thought it 50 % likely can become "
        f"{_percent(_sure(doubled))} sure, and {more}.",
    )


def _strength(test: Detection) -> str:
    return next(words for found, guess, words in _COMES_TO if test.found <= found and test.best_guess <= guess)


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
    if chance > _MUCH:
        return _percent(chance)
    return f"1 in {1.0 / chance:,.0f}" if chance >= 1e-15 else f"{chance:g}"  # more digits say nothing


def _terms(g: Guarantee, basis: Basis = "proven") -> str:
    """With the basis of the number that they stand beside: what holds beside a paper's claim is proven."""
    return f"per {g.unit}, {g.adjacency}, {g.scope}, trusting: {g.trust}, {basis}"


def _hidden(g: Guarantee) -> str | None:
    if g.adjacency is None or g.unit is None:
        return None
    words = _SEEN_TO_TAKE_PART if _shows_who(g) else _ADJACENCY[g.adjacency].format(unit=g.unit)
    return f"What stays uncertain: {words}."


def _shows_who(g: Guarantee) -> bool:
    """Whether an attacker whom add-remove is promised against sees who takes part: nothing stands in for an update."""
    return g.adjacency == "add-remove" and g.trust == "server sees only noisy sums"


def _assumptions(g: Guarantee, obstacle: str) -> tuple[str, ...]:
    if g.trust is None:
        return ()
    if g.basis == "as published":
        return ("The paper's own assumptions; this calibration is for comparing with its tables, not for people.",)
    source = "The noise comes from a cryptographic source and is never drawn again or logged."
    return (*_ASSUMED_TRUST[g.trust], source, *([_NOT_HERE.format(why=obstacle)] if obstacle else ()))


def _not_protected(g: Guarantee) -> tuple[str, ...]:
    if g.basis == "none" or g.unit is None:
        return ("Everything that is sent, and what can be concluded from it.", _ALWAYS_OPEN[1])
    whether = "That somebody takes part: only what they contribute is hidden."
    shown = g.adjacency == "replace-one" or _shows_who(g)
    return (_BEYOND_UNIT[g.unit], *((whether,) if shown else ()), *_ALWAYS_OPEN)


def sentence(words: str) -> str:
    """Words as a sentence: a capital at its beginning and a stop at its end."""
    return words[0].upper() + words[1:] + ("" if words[-1] in ".!?" else ".")


def _section(name: str, lines: list[str]) -> str:
    if not lines:
        return ""
    wrapped = [textwrap.fill(sentence(line), _WIDTH, initial_indent="  ", subsequent_indent="  ") for line in lines]
    return "\n".join([name, *wrapped])
