"""Calculators for people who plan: noise of one message for an epsilon, epsilon of a training for a noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from veilrec.core.errors import BadInput, counted, unknown_name
from veilrec.privacy.accounting.accountant import Rounds, epsilon_for
from veilrec.privacy.accounting.gaussian import base_epsilon, padded_mu
from veilrec.privacy.checks import attention_l1, attention_l2, positive, probability
from veilrec.privacy.events import Event, GaussianEvent, LaplaceEvent, PureEvent, ResponseEvent, SampledEvent
from veilrec.privacy.guarantee import Guarantee, Unit

Calculable = Literal["gaussian", "laplace", "randomised-response", "k-ary", "attention", "label"]

_UNITS: dict[Calculable, Unit] = {
    "gaussian": "history",
    "laplace": "history",
    "attention": "history",
    "k-ary": "history",
    "randomised-response": "click",
    "label": "click",
}
_OPTIONS: dict[Calculable, tuple[str, ...]] = {
    "gaussian": ("sensitivity", "padding"),
    "laplace": ("sensitivity", "padding"),
    "attention": ("padding", "basis", "clip"),
    "randomised-response": (),
    "k-ary": ("candidates",),
    "label": ("candidates",),
}
_CAVEATS: dict[Calculable, str] = {
    "gaussian": "The sensitivity is taken to be that of replacing a whole history.",
    "laplace": "The sensitivity is taken to be that of replacing a whole history, in the L1 norm.",
    "attention": "The attention is noised before anything else is made of it; normalise it afterwards.",
    "k-ary": "Every new answer about the same value costs again; send the old answer instead.",
    "randomised-response": "Per bit: swapping an item changes two bits and costs twice as much, a whole "
    "vector as many times as it has bits. Every new answer about the same bit costs again.",
    "label": "The label is drawn over all candidates first, and the negatives after it, without looking at "
    "the click. A click that also stands in a history costs there as well.",
}
_LEAST_NOISE = 1e-6  # an epsilon of 5e11 a round
_MOST_ROUNDS = 2**31 - 1
_EXACT = "For exact noise; drawn on a lattice, as veilrec does, it takes a little more."
_PADDED = "Padding helps single clicks only, and needs a fresh secret mask for every message."


@dataclass(frozen=True, kw_only=True)
class Wish:
    """One message, and what it should promise."""

    mechanism: Calculable
    epsilon: float
    delta: float | None = None
    """Needed by Gaussian noise; attention without it takes Laplace noise; the others hold with delta 0."""
    sensitivity: float | None = None
    """L2 of gaussian, L1 of laplace; 1 if left out. That of the attention follows from the two below."""
    pad_probability: float | None = None
    """Of gaussian, laplace and attention; 0 if left out."""
    basis: int | None = None
    """Of attention with Laplace noise; 5 if left out."""
    clip_norm: float | None = None
    """Of attention; 1 if left out."""
    candidates: int | None = None
    """Categories of k-ary, items of the impression of label."""

    def __post_init__(self) -> None:
        if self.mechanism not in get_args(Calculable):
            raise unknown_name("mechanism", self.mechanism, get_args(Calculable))
        positive(epsilon=self.epsilon)
        if self.delta is not None:
            probability(delta=self.delta)
        self._refuse_what_means_nothing()

    def _refuse_what_means_nothing(self) -> None:
        given = {
            "sensitivity": self.sensitivity,
            "padding": self.pad_probability,
            "basis": self.basis,
            "clip": self.clip_norm,
            "candidates": self.candidates,
        }
        for name, value in given.items():
            if value is not None and name not in _OPTIONS[self.mechanism]:
                raise BadInput(f"{self.mechanism} takes no --{name}: leave it out")
        if self.basis is not None and self.delta is not None:
            raise BadInput(
                "--basis counts with Laplace noise only, and --delta asks for Gaussian noise: leave one of them out"
            )


@dataclass(frozen=True)
class Setting:
    """Numbers to set, and what they promise."""

    settings: Mapping[str, Any]
    guarantee: Guarantee


def noise_of_message(wish: Wish) -> Setting:
    """The least noise that keeps the wish."""
    match wish.mechanism:
        case "gaussian":
            if wish.delta is None:
                raise BadInput("Gaussian noise has no epsilon without a delta: give --delta, such as 1e-6")
            return _gaussian(wish, _given_sensitivity(wish), wish.delta)
        case "laplace":
            return _laplace(wish, _given_sensitivity(wish))
        case "attention":
            clip_norm = 1.0 if wish.clip_norm is None else wish.clip_norm
            if wish.delta is None:
                return _laplace(wish, attention_l1(clip_norm, 5 if wish.basis is None else wish.basis))
            return _gaussian(wish, attention_l2(clip_norm), wish.delta)
        case _:
            return _response(wish)


def epsilon_of_training(noise_multiplier: float, delta: float, rounds: Rounds) -> Setting:
    """What a training with Gaussian noise on the sum of each cohort's clipped updates spends on a user."""
    if not noise_multiplier >= _LEAST_NOISE:
        raise BadInput(f"noise_multiplier is {noise_multiplier}, which protects nobody: give at least {_LEAST_NOISE:g}")
    if rounds.rounds > _MOST_ROUNDS:
        raise BadInput(f"rounds is {rounds.rounds}: give at most {_MOST_ROUNDS:,}")
    try:
        with np.errstate(all="ignore"):  # what overflows is refused below
            epsilon = epsilon_for(noise_multiplier, delta, rounds)
    except OverflowError:
        epsilon = math.inf
    if not math.isfinite(epsilon):
        raise BadInput(
            f"noise_multiplier {noise_multiplier:g} over {counted(rounds.rounds, 'round')} spends more than can be"
            " counted, which protects nobody: give more noise, or fewer rounds"
        )
    guarantee = Guarantee(
        basis="proven",
        unit="user",
        adjacency=rounds.adjacency,
        epsilon=epsilon,
        delta=delta,
        scope="whole run",
        trust="server",
        caveats=("A server that is trusted with the clipped updates adds them up and adds the noise.",),
        event=rounds.event(noise_multiplier),
    )
    return Setting({"noise_multiplier": noise_multiplier, "sampling_rate": rounds.rate}, guarantee)


def _gaussian(wish: Wish, sensitivity: float, delta: float) -> Setting:
    padding = wish.pad_probability or 0.0
    mu = padded_mu(wish.epsilon, delta, pad_probability=padding)
    settings = {"noise": "gaussian", "sigma": sensitivity / mu, "sensitivity": sensitivity}
    event = SampledEvent(mu, 1.0 - padding, "padding") if padding else GaussianEvent(mu)
    return _setting(wish, settings, delta, event)


def _laplace(wish: Wish, sensitivity: float) -> Setting:
    inner = base_epsilon(wish.epsilon, pad_probability=wish.pad_probability or 0.0)
    settings = {"noise": "laplace", "scale": sensitivity / inner, "sensitivity": sensitivity}
    return _setting(wish, settings, 0.0, None if wish.pad_probability else LaplaceEvent(inner))


def _response(wish: Wish) -> Setting:
    candidates = 2 if wish.mechanism == "randomised-response" else wish.candidates
    if candidates is None or candidates < 2:
        raise BadInput(f"{wish.mechanism} needs --candidates: a number of at least 2")
    odds = math.exp(-wish.epsilon)
    keep = 1.0 / (1.0 + (candidates - 1) * odds)  # e^eps / (e^eps + C - 1)
    if keep == 1.0:
        raise BadInput(
            f"at epsilon {wish.epsilon:g} (per message, trusting nobody) every answer would be the true one,"
            " to the last bit of a double: no finite epsilon describes that; ask for 30 or less"
        )
    settings = {"candidates": candidates, "keep_probability": keep, "other_probability": keep * odds}
    event = PureEvent(wish.epsilon) if candidates == 2 else ResponseEvent(wish.epsilon, candidates)
    return _setting(wish, settings, 0.0, event)


def _setting(wish: Wish, settings: Mapping[str, Any], delta: float, event: Event | None) -> Setting:
    for name in ("sigma", "scale"):
        if name in settings and not 0.0 < settings[name] < math.inf:
            raise BadInput(
                f"{name} would be {settings[name]}, beyond what a computer can count: give an epsilon and a sensitivity"
                " nearer to 1"
            )
    padded = bool(wish.pad_probability)
    caveats = [_CAVEATS[wish.mechanism]]
    if "noise" in settings:
        caveats.append(_EXACT)
    if padded:
        caveats.append(_PADDED)
    if wish.delta is not None and delta == 0.0:
        caveats.append("No delta is needed: this holds with delta 0.")
    guarantee = Guarantee(
        basis="proven",
        unit="click" if padded else _UNITS[wish.mechanism],
        adjacency="add-remove" if wish.mechanism == "randomised-response" else "replace-one",
        epsilon=wish.epsilon,
        delta=delta,
        scope="per message",
        trust="nobody",
        caveats=tuple(caveats),
        event=event,
    )
    return Setting(settings, guarantee)


def _given_sensitivity(wish: Wish) -> float:
    sensitivity = 1.0 if wish.sensitivity is None else wish.sensitivity
    positive(sensitivity=sensitivity)
    return sensitivity
