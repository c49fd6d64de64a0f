"""The privacy statement: complete, in words, never an epsilon alone."""

import itertools
import json
import math
import re
from typing import get_args

import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.events import GaussianEvent, PureEvent, repeated
from veilrec.privacy.guarantee import Adjacency, Disclosure, Guarantee, Scope, Trust, Unit, no_guarantee
from veilrec.privacy.statement import Statement, detection, meaning

PROVEN = {"basis": "proven", "unit": "user", "adjacency": "replace-one", "epsilon": 1.0, "delta": 1e-6}
PROVEN |= {"scope": "whole run", "trust": "server"}
PUBLISHED = PROVEN | {"basis": "as published", "epsilon": 2.0, "delta": 0.0, "scope": "per message"}


def test_the_claim_of_a_paper_stands_beside_what_holds_and_no_epsilon_without_its_terms():
    text = " ".join(Statement(Guarantee(**PUBLISHED, honest_epsilon=12.0, honest_delta=0.0)).text().split())
    for found in re.finditer(r"[Ee]psilon \d|\(\d[^)]*\)-DP", text):
        following = text[found.start() : found.start() + 200]
        for term in ("per user", "replace-one", "per message", "trusting: server"):
            assert term in following
        assert "proven" in following or "as published" in following
    statement = Statement(
        Guarantee(**PUBLISHED, honest_epsilon=6172.0, honest_delta=0.0, honest_note="The wrong norm.")
    )
    published = statement.to_json()["published"]
    assert (published["claimed_epsilon"], published["honest_epsilon"]) == (2.0, 6172.0)
    text = statement.text()
    assert "The paper claims epsilon 2" in text
    assert "What holds is epsilon 6172" in text
    assert "The wrong norm." in text
    assert "weak promise" in text  # the meaning is that of the honest value
    assert "honestly (6172, 0)" in statement.guarantee.line()


def test_nothing_is_promised_and_it_says_so():
    statement = Statement(no_guarantee("Rows in plaintext."), method="fedmf")
    assert statement.summary() == "No privacy guarantee: what leaves the devices is not protected by noise."
    assert statement.text().count("Nothing is promised") == 1
    noisy = Statement(no_guarantee(), adds_noise=True).summary()
    assert "this run adds noise" in noisy
    assert "earlier run" in noisy
    assert "Rows in plaintext." in statement.text()
    assert "epsilon" not in statement.text().lower()
    assert statement.to_json()["published"] is None


def test_an_epsilon_binds_the_operator_only_where_the_operator_does_not_add_the_noise():
    def parts(trust):
        return Statement(Guarantee(**(PROVEN | {"trust": trust}))).to_json()

    for trust in ("server", "server sees only sums"):
        found = parts(trust)
        assert "who sees the results alone" in found["plain"]
        assert "but not the operator of the server" in found["against"]
        assert any(words.startswith("The operator adds the noise") for words in found["assumptions"])
    for trust in ("nobody", "server sees only noisy sums"):
        found = parts(trust)
        assert "the operator of the server included" in found["plain"]
        assert "not the operator" not in found["against"]
        assert not any("operator" in words for words in found["assumptions"])
    assert any("their part of the noise" in words for words in parts("server sees only noisy sums")["assumptions"])


def test_whoever_sees_the_clients_of_a_round_is_not_said_to_be_uncertain_who_took_part():
    terms = PROVEN | {"adjacency": "add-remove"}
    noisy, exact = (
        Statement(Guarantee(**(terms | {"trust": trust}))).to_json()
        for trust in ("server sees only noisy sums", "server sees only sums")
    )
    assert "not that they took part" in noisy["hidden"]
    assert "there at all" not in noisy["hidden"]
    assert any(words.startswith("That somebody takes part") for words in noisy["not_protected"])
    assert "was there at all" in exact["hidden"]  # to those who see the results alone
    assert not any(words.startswith("That somebody takes part") for words in exact["not_protected"])


def test_numbers_and_words_of_epsilon_and_delta():
    chance, odds, detected, *_ = meaning(Guarantee(**(PROVEN | {"epsilon": math.log(3.0), "delta": 1e-6})))
    assert "at most 3 times what it would be if it were otherwise, plus 1 in 1,000,000" in chance
    assert "factor of 6 (twice that) at most, but for a chance of 1 in 500,000" in odds
    assert "85.7 % sure" in odds
    assert "can find 3 % " in detected
    assert not any("fail" in line for line in (chance, odds, detected))
    odds, detected, *_ = meaning(Guarantee(**(PROVEN | {"epsilon": math.log(3.0), "delta": 0.0})))
    assert "factor of 3 at most" in odds
    assert "75 % sure" in odds
    assert "can find 3 % " in detected
    parts = Statement(Guarantee(**PROVEN, event=GaussianEvent(0.2367))).to_json()
    assert parts["detected_at_1_percent_false_alarms"] == pytest.approx(0.0184, abs=1e-4)
    assert parts["best_guess"] == pytest.approx(0.5471, abs=1e-4)
    assert Statement(no_guarantee()).to_json()["best_guess"] is None
    for delta, warned in ((1e-6, False), (1e-3, False), (0.01, True), (0.5, True)):
        words = " ".join(meaning(Guarantee(**(PROVEN | {"delta": delta}))))
        assert ("promises little" in words) == warned
        assert ("hardly ever more" in words) == (not warned)
        assert "1 in 1 " not in words


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (1.0, 1e-6), (8.0, 1e-6), (8.0, 1e-2)])
def test_the_odds_pass_twice_the_factor_as_seldom_as_said(epsilon, delta):
    from scipy.special import ndtr

    mu = mu_for(epsilon, delta)

    def passes(loss):
        return float(ndtr(mu / 2 - loss / mu))  # the privacy loss of Gaussian noise is N(mu^2 / 2, mu^2)

    assert passes(epsilon) > 2.0 * delta  # so delta is not the chance that the bound fails
    assert passes(epsilon + math.log(2.0)) <= 2.0 * delta


def test_guarantees_are_read_back_as_written():
    for guarantee in (
        Guarantee(**PROVEN, caveats=("a", "b")),
        Guarantee(**PUBLISHED, honest_epsilon=3.0, honest_delta=1e-6, honest_note="x"),
        no_guarantee("c"),
        Guarantee(**PROVEN, event=repeated(GaussianEvent(0.3), 4)),
    ):
        assert Guarantee.from_json(json.loads(json.dumps(guarantee.to_json()))) == guarantee


def test_the_event_says_how_many_a_test_finds_and_how_often_a_guess_is_right():
    # privacy-math.md, corrections: 21.3 % and 77.8 %, where epsilon 8 and delta 1e-6 alone would say 99.97 %.
    known = Guarantee(**(PROVEN | {"epsilon": 8.0}), event=repeated(GaussianEvent(1.0 / 2.06512), 10))
    words = " ".join(meaning(known))
    assert "can find 21.3 % of those" in words
    assert "right 77.8 % of the time" in words
    assert "exact, from the trade-off curve" in words
    assert "weak" not in words
    alone = " ".join(meaning(Guarantee(**(PROVEN | {"epsilon": 8.0}))))
    assert "can find 99.97 % of those" in alone
    assert "from epsilon and delta alone" in alone
    assert "weak promise" in alone
    known = Guarantee(**(PROVEN | {"epsilon": 8.0}), event=repeated(GaussianEvent(1.0 / 2.06512), 10))
    plain = Statement(known).plain()
    assert plain.startswith("Somebody who sees the results alone can do better than guess")
    assert "right 77.8 % of the time" in plain
    assert "finds 21.3 at most" in plain
    response = Guarantee(**(PROVEN | {"epsilon": 3.0, "delta": 0.0}), event=PureEvent(3.0))
    assert Statement(response).plain().startswith("This is a weak promise")  # 20 of 100 found, but 95 % guessed


def test_the_event_is_that_of_what_holds():
    claim = Guarantee(**PUBLISHED, honest_epsilon=12.0, honest_delta=0.0, event=PureEvent(12.0))
    test = detection(claim)
    assert test.found > 0.99
    assert detection(Guarantee(**PUBLISHED)) is None
    assert detection(no_guarantee()) is None
    with pytest.raises(ValueError, match="promises nothing"):
        Guarantee("none", event=PureEvent(1.0))


def test_a_statement_of_one_message_or_run_says_so():
    message = Statement(Guarantee(**PUBLISHED, honest_epsilon=12.0, honest_delta=0.0))
    assert "from one message" in message.plain()
    assert "contributes to this message" in message.text()
    assert "about one message" in " ".join(message.to_json()["meaning"])
    run = Statement(Guarantee(**PROVEN)).to_json()
    assert run["protected"].endswith("contributes to this run")
    assert "another training on the same people adds" in run["per"]
    both = Statement(Guarantee(**PROVEN), earlier=("first",)).to_json()
    for part in ("protected", "per", "summary"):
        assert "this run and the earlier run first" in both[part]


def test_what_is_simulated_seeded_or_claimed_in_vain_says_so():
    why = "whoever knows the seed can draw the noise again"
    seeded = Statement(Guarantee(**PROVEN, obstacle=why))
    assert seeded.plain().startswith(f"No guarantee as it is: {why}. Without what stands in its way it would be this:")
    assert seeded.plain().endswith(Statement(Guarantee(**PROVEN)).plain())
    least = "There is no guarantee as it is; without what stands in its way there would be: (1,"
    assert seeded.summary().startswith(least)
    plain = Statement(Guarantee(**PROVEN))
    told = Disclosure(("items",), ("the change of `items`",), (), ("every message",), ("`items`",), "It was simulated.")
    for obstacle in ("", "by a seed"):  # what a simulation hides and what may be published do not contradict each other
        simulated = Statement(Guarantee(**PROVEN, disclosure=told, obstacle=obstacle))
        assert "it hid nothing from whoever ran it" in simulated.summary()
        assert ("covers people against those who get the model" in simulated.summary()) == (obstacle == "")
        assert (simulated.publishable, simulated.guarantee.holds) == (obstacle == "",) * 2
        assert "protects nobody" not in simulated.text()
        for words in ("the change of `items`", "every message", "It was simulated."):
            assert words in " ".join(simulated.text().split()).replace("The change", "the change").replace(
                "Every m", "every m"
            )
        assert Guarantee.from_json(json.loads(json.dumps(simulated.guarantee.to_json()))) == simulated.guarantee
    assert simulated.to_json()["assumptions"][-1] == "Something of this is NOT SO here: by a seed."
    read_off = Statement(Guarantee(**PROVEN, obstacle="the items are what people used"))
    assert not re.search("seed|secure noise", read_off.text() + read_off.guarantee.promise())
    promise = simulated.guarantee.promise()
    assert promise.startswith("no guarantee as it is; without what stands in its way it would be (1,")
    assert "NOT SO" not in plain.text()
    claimed = Statement(Guarantee(**PUBLISHED))
    assert "No finite epsilon is known to hold" in claimed.text()
    assert claimed.guarantee.line().endswith("as published; that does not hold")
    assert claimed.to_json()["meaning"] == []


def test_every_combination_has_all_its_sections():
    for unit, adjacency, scope, trust in itertools.product(*map(get_args, (Unit, Adjacency, Scope, Trust))):
        terms = {"unit": unit, "adjacency": adjacency, "scope": scope, "trust": trust}
        statement = Statement(Guarantee(**(PROVEN | terms), caveats=("Mind this.",)), method="m", dataset="d")
        parts = statement.to_json()
        for name in ("summary", "protected", "hidden", "per", "against", "meaning", "assumptions", "caveats"):
            assert parts[name], name
        text = " ".join(statement.text().split())
        for words in (unit, adjacency, scope, f"trusting: {trust}", "proven", "Mind this.", "m on d", "1 in 1,000,000"):
            assert words in text
        assert json.loads(json.dumps(parts)) == parts


def test_what_is_no_guarantee_is_refused():
    for fields in ({}, {"basis": "proven"}, PROVEN | {"epsilon": -1.0}, PROVEN | {"more": 1}):
        with pytest.raises(BadInput, match="not a privacy guarantee"):
            Guarantee.from_json(fields)
    infinite = {"honest_epsilon": math.inf, "honest_delta": 0.0}
    for extra in ({"honest_epsilon": 1.0}, {"honest_delta": 0.1}, infinite):
        with pytest.raises(ValueError, match="honest|finite"):
            Guarantee(**PUBLISHED, **extra)
    with pytest.raises(ValueError, match="as published"):
        Guarantee(**PROVEN, honest_epsilon=1.0, honest_delta=0.0)
