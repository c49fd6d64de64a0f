"""The calculators: [vec] values of privacy-math.md sections 1, 3 and 5."""

from __future__ import annotations

import math
from typing import Any

import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.budget import Wish, epsilon_of_training, noise_of_message


@pytest.mark.parametrize(
    ("wish", "name", "value"),
    [
        ({"mechanism": "gaussian", "epsilon": 1, "delta": 1e-6}, "sigma", 4.224679),
        ({"mechanism": "gaussian", "epsilon": 1, "delta": 1e-6, "sensitivity": 0.04}, "sigma", 0.168987),
        ({"mechanism": "attention", "epsilon": 1, "delta": 1e-6, "pad_probability": 0.5}, "sigma", 3.998930),
        ({"mechanism": "attention", "epsilon": 1, "delta": 1e-6}, "sigma", 5.974598),
        ({"mechanism": "attention", "epsilon": 10, "delta": 1e-3, "pad_probability": 0.5}, "sigma", 0.525477),
        ({"mechanism": "attention", "epsilon": 1, "pad_probability": 0.5}, "scale", 1.342390),
        ({"mechanism": "attention", "epsilon": 1, "clip_norm": 0.4}, "scale", 1.258506),
        ({"mechanism": "attention", "epsilon": 1, "clip_norm": 0.8, "basis": 3}, "scale", 1.8),
        ({"mechanism": "laplace", "epsilon": 0.5, "sensitivity": 3.0}, "scale", 6.0),
        ({"mechanism": "randomised-response", "epsilon": 2}, "keep_probability", 0.880797),
        ({"mechanism": "k-ary", "epsilon": 1, "candidates": 5}, "keep_probability", 0.4046),
        ({"mechanism": "k-ary", "epsilon": 5, "candidates": 5}, "keep_probability", 0.9738),
        ({"mechanism": "label", "epsilon": 1, "candidates": 37}, "keep_probability", 0.070207),
        ({"mechanism": "label", "epsilon": 2, "candidates": 37}, "keep_probability", 0.170298),
        ({"mechanism": "label", "epsilon": 4, "candidates": 37}, "keep_probability", 0.602641),
    ],
)
def test_noise_of_the_notes(wish: dict[str, Any], name: str, value: float) -> None:
    plan = noise_of_message(Wish(**wish))
    digits = len(str(value).partition(".")[2])
    assert plan.settings[name] == pytest.approx(value, abs=0.51 * 10**-digits + 2e-7)
    assert plan.guarantee.epsilon == wish["epsilon"]
    assert plan.guarantee.basis == "proven"


def test_chances_of_a_response_add_up_and_differ_by_epsilon() -> None:
    settings = noise_of_message(Wish(mechanism="k-ary", epsilon=1.5, candidates=9)).settings
    assert settings["keep_probability"] + 8 * settings["other_probability"] == pytest.approx(1.0)
    assert math.log(settings["keep_probability"] / settings["other_probability"]) == pytest.approx(1.5)


def test_one_bit_is_one_click_more_or_less() -> None:
    plan = noise_of_message(Wish(mechanism="randomised-response", epsilon=2.0))
    assert (plan.guarantee.unit, plan.guarantee.adjacency) == ("click", "add-remove")


def test_padding_covers_clicks_only() -> None:
    plain = noise_of_message(Wish(mechanism="attention", epsilon=1.0, delta=1e-6)).guarantee
    padded = noise_of_message(Wish(mechanism="attention", epsilon=1.0, delta=1e-6, pad_probability=0.5)).guarantee
    assert (plain.unit, padded.unit) == ("history", "click")
    assert any("Padding" in caveat for caveat in padded.caveats)


def test_a_delta_that_is_not_needed_is_not_spent() -> None:
    guarantee = noise_of_message(Wish(mechanism="laplace", epsilon=1.0, delta=1e-6)).guarantee
    assert guarantee.delta == 0.0
    assert "delta 0" in guarantee.caveats[-1]


def test_a_training_of_section_5() -> None:
    rounds = Rounds(rounds=1000, sampling="poisson", population=4800, cohort=30)
    guarantee = epsilon_of_training(1.0, 1e-6, rounds).guarantee
    assert guarantee.epsilon == pytest.approx(1.2978, abs=1e-4)
    assert (guarantee.unit, guarantee.adjacency, guarantee.scope) == ("user", "add-remove", "whole run")


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"mechanism": "gauss", "epsilon": 1.0}, "did you mean gaussian"),
        ({"mechanism": "gaussian", "epsilon": 0.0, "delta": 1e-6}, "epsilon is 0"),
        ({"mechanism": "gaussian", "epsilon": -2.0, "delta": 1e-6}, "epsilon is -2"),
        ({"mechanism": "gaussian", "epsilon": 1.0}, "give --delta"),
        ({"mechanism": "gaussian", "epsilon": 1.0, "delta": 1.0}, "delta is 1"),
        ({"mechanism": "laplace", "epsilon": 1.0, "delta": 0.0}, "delta is 0"),
        ({"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-6, "sensitivity": 0.0}, "sensitivity is 0"),
        ({"mechanism": "attention", "epsilon": 1.0, "sensitivity": 1.0}, "takes no --sensitivity"),
        ({"mechanism": "attention", "epsilon": 1.0, "clip_norm": 0.0}, "clip_norm is 0"),
        ({"mechanism": "attention", "epsilon": 1.0, "basis": 0}, "basis is 0"),
        ({"mechanism": "attention", "epsilon": 1.0, "pad_probability": 1.0}, "pad_probability is 1"),
        ({"mechanism": "label", "epsilon": 1.0}, "needs --candidates"),
        ({"mechanism": "k-ary", "epsilon": 1.0, "candidates": 1}, "needs --candidates"),
        ({"mechanism": "randomised-response", "epsilon": 1000.0}, "no finite epsilon describes that"),
        ({"mechanism": "label", "epsilon": 1.0, "candidates": 5, "pad_probability": 0.5}, "takes no --padding"),
    ],
)
def test_what_cannot_be_planned_is_refused(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        noise_of_message(Wish(**wish))
