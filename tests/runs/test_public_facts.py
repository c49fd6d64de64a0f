"""What a run makes public of people beside noise: the items, features read off logs, and how many people there are."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import yaml

from veilrec.core.errors import BadInput
from veilrec.federation.facts import FederationFacts
from veilrec.federation.making import FederationOptions, make
from veilrec.methods.private import rounded_people
from veilrec.runs.release import ReleaseOptions, make_release, refuse_unpublishable
from veilrec.runs.request import DECLARED, RunRequest, prepare
from veilrec.runs.training import train
from veilrec.server.round_specs import CohortSampler, CohortSettings
from veilrec.simulation.simulation import Simulation
from veilrec.wire.signing import new_key

ITEMS = 30


def log_of(people, changed=0):
    """Uses of so many people; `changed` moves what everybody used."""
    rows = [
        f"u{user},i{(user * 7 + step * (3 + changed)) % ITEMS},{user % 5}"
        for user in range(people)
        for step in range(6)
    ]
    return "user,item,size\n" + "\n".join(rows) + "\n"


def put(folder, people=57, schema=None, changed=0):
    folder.mkdir(exist_ok=True)
    (folder / "log.csv").write_text(log_of(people, changed))
    (folder / "items.csv").write_text("item,name\n" + "".join(f"i{n},Item {n}\n" for n in range(ITEMS + 1)))
    (folder / "people.csv").write_text("user,age\n" + "".join(f"u{n},{20 + n}\n" for n in range(people)))
    if schema is not None:
        (folder / "log.features.yaml").write_text(yaml.safe_dump(schema))
    return f"csv:{folder / 'log.csv'}"


def asked(data, *settings, method="private-popularity", **more):
    return RunRequest(method, data, protocol="loo-full", settings=settings, noise="secure", **more)


TABLE = {"items": {"file": "items.csv", "title": "name"}}


@pytest.mark.parametrize(
    ("schema", "public_catalogue", "reason"),
    [
        (
            None,
            False,
            "the catalogue is the set of items that people used: bring a table of all items, or say --public-",
        ),
        (None, True, None),
        ({"items": {"file": "items.csv"}}, False, None),
        (TABLE, False, None),
        ({"items": {"features": {"size": {"kind": "number"}}}}, True, "size of items come from columns of the log"),
        ({"items": {"title": "size"}}, True, "take them from a table of items"),
        (
            TABLE | {"users": {"features": {"size": {"kind": "category"}}}},
            False,
            "values of people's size are read off",
        ),
        (TABLE | {"users": {"features": {"size": {"kind": "category", "values": ["1", "2"]}}}}, False, None),
        (
            TABLE | {"users": {"file": "people.csv", "features": {"age": {"kind": "number", "low": 0}}}},
            False,
            "high of people's age are read off their data: give them in log.features.yaml",
        ),
    ],
)
def test_what_is_read_off_peoples_data_keeps_a_run_from_being_published(tmp_path, schema, public_catalogue, reason):
    data = put(tmp_path / "own", schema=schema)
    prepared = prepare(asked(data, public_catalogue=public_catalogue))
    found, told = prepared.obstacle(), " ".join(prepared.guarantee().remarks())
    if reason is None:
        assert found is None
        assert ("--public-catalogue" in told) == public_catalogue
        return
    assert reason in found and reason in told and "\n" not in found
    train(prepared, tmp_path / "run")
    assert not json.loads((tmp_path / "run" / "result.json").read_text())["publishable"]
    with pytest.raises(BadInput, match="not publishable: no noise covers what is read off people's data"):
        refuse_unpublishable(tmp_path / "run", ReleaseOptions())
    # and neither is what starts from it, noise or not
    later = prepare(asked(put(tmp_path / "later", schema=TABLE), start_from=tmp_path / "run"))
    assert "the earlier run run is not to be published for the same reason" in later.obstacle()


def test_an_item_outside_of_the_table_is_told(tmp_path):
    data = put(tmp_path / "own", schema=TABLE)
    (tmp_path / "own" / "items.csv").write_text("item,name\n" + "".join(f"i{n},Item {n}\n" for n in range(2, ITEMS)))
    assert "2 of the items, which no table lists, are the set of items" in prepare(asked(data)).obstacle()


def published(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "model").iterdir())}


def test_published_files_know_no_users_and_items_in_public_order_whatever_was_used(tmp_path):
    for name, changed in (("one", 0), ("other", 1)):
        train(prepare(asked(put(tmp_path / name, 57 + changed, TABLE, changed))), tmp_path / f"{name}-run")
    one, other = published(tmp_path / "one-run"), published(tmp_path / "other-run")
    assert one["items.safetensors"] == other["items.safetensors"]
    assert one["ranker.json"] == other["ranker.json"] and one["guarantee.json"] == other["guarantee.json"]
    assert one != other
    release = make_release(tmp_path / "one-run", tmp_path / "release", new_key(tmp_path / "key"), ReleaseOptions())
    assert release.protected
    written = one | {path.name: path.read_bytes() for path in (tmp_path / "release").rglob("*") if path.is_file()}
    del written["manifest.sig"]  # random digits
    assert not [
        name for name, content in written.items() if b"u41" in content or b"57" in content.partition(b'"files"')[0]
    ]


def test_equal_runs_and_their_releases_are_equal_files(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(time.time())))
    data, key = put(tmp_path / "own", schema=TABLE), new_key(tmp_path / "key")
    both = []
    for name in ("one", "other"):
        train(prepare(asked(data), secret=bytes(32)), tmp_path / name / "run")
        make_release(tmp_path / name / "run", tmp_path / name / "release", key, ReleaseOptions())
        files = [path for part in ("run/model", "release") for path in (tmp_path / name / part).rglob("*")]
        both.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in files if path.is_file()})
    assert both[0] == both[1] and len(both[0]) > 8
    # the library writes metadata in an order of chance, which two files may share
    assert not [name for name, content in both[0].items() if b"__metadata__" in content]


def test_a_run_that_goes_on_has_the_nominal_number_of_people_too(tmp_path):
    data = put(tmp_path / "own", schema=TABLE)
    settings = ("cohort.size=20", "selection.threshold=0.1", "selection.max_items=20", "privacy.epsilon=1000")
    prepared = prepare(asked(data, *settings, method="priv-fedmf-sub", rounds=4), secret=bytes(32))
    whole, later = prepared.trainer, prepare(prepared.request, secret=bytes(32)).trainer
    for number in range(2):
        whole.step(number)
    later.load_state({name: np.array(values) for name, values in whole.state().items()}, 2)
    for number in (2, 3):
        told = [trainer._ask(number, trainer.sampler.draw(number))[0].reports for trainer in (whole, later)]
        assert told == [60, 60]  # of 57
        whole.step(number)
        later.step(number)
    assert all(np.array_equal(later.parts().weights[name], part) for name, part in whole.parts().weights.items())


def test_a_number_of_people_is_rounded_up_so_that_one_more_changes_nothing():
    counts = np.array([1, 9, 10, 57, 60, 61, 99, 100, 101, 943, 999, 1000, 1001, 6040, 94_057])
    rounded = [rounded_people(int(count)) for count in counts]
    assert rounded == [10, 10, 10, 60, 60, 70, 100, 100, 110, 950, 1000, 1000, 1100, 6100, 95_000]
    many = np.array([rounded_people(count) for count in range(1, 20_000)])
    assert (many >= np.arange(1, 20_000)).all()
    assert (np.diff(many) > 0).sum() < 300


PLANNED = ("dp-fedmf", "dpals", "veil", "private-gram", "priv-fedmf-sub", "dp-privrec")


@pytest.mark.parametrize("method", PLANNED)
def test_a_plan_is_the_same_with_one_person_more(tmp_path, method):
    plans = []
    for people in (57, 58):
        data = put(
            tmp_path / f"{people}",
            people,
            TABLE | {"items": TABLE["items"] | {"features": {"name": {"kind": "category"}}}},
        )
        prepared = prepare(asked(data, "cohort.size=20", method=method, rounds=2))
        assert isinstance(prepared.trainer, Simulation)
        assert prepared.trainer.sampler.people == prepared.problem.people == 60
        plans.append(
            (
                prepared.plan.mechanism.facts(),
                prepared.plan.server,
                prepared.plan.max_clients,
                prepared.guarantee().to_json(),
            )
        )
        assert "chosen for 60 people, the true number rounded up" in " ".join(prepared.guarantee().caveats)
    assert plans[0] == plans[1]


def test_a_given_number_of_people_stands_and_one_that_is_too_small_is_refused(tmp_path):
    data = put(tmp_path / "own", schema=TABLE)
    prepared = prepare(asked(data, people=500))
    assert prepared.plan.mechanism.taking_part.population == prepared.trainer.sampler.people == 500
    assert prepared.description()["nominal_people"] == 500
    assert "chosen for 500 people, as was said" in " ".join(prepared.guarantee().caveats)
    with pytest.raises(BadInput, match="--people is 56, and 57 clients can learn: give from 57 to"):
        prepare(asked(data, people=56))
    with pytest.raises(BadInput, match="--people is for methods that add noise, and fedmf adds none"):
        prepare(RunRequest("fedmf", data, protocol="loo-full", people=60))


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "cyclic"])
@pytest.mark.parametrize("secret", [None, bytes(32)])
def test_the_chance_to_be_drawn_is_that_of_the_nominal_number(sampling, secret):
    settings, eligible = CohortSettings(size=20, sampling=sampling), np.arange(100, 140)
    sampler = CohortSampler(settings, eligible, 3, secret=secret, people=80)
    drawn = [sampler.draw(number) for number in range(400)]
    assert all(np.isin(clients, eligible).all() and (np.diff(clients) > 0).all() for clients in drawn)
    often = np.bincount(np.concatenate(drawn) - 100, minlength=40)
    if sampling == "cyclic":  # once in 80 / 20 rounds, exactly
        assert (often == 100).all()
    assert abs(often.mean() / 400 - 0.25) < 0.02  # 20 of 80, and not of 40: 400 * 40 draws
    with pytest.raises(BadInput, match="--people is 39, and 40 clients can learn"):
        CohortSampler(settings, eligible, 3, secret=secret, people=39)


def test_a_federation_sends_no_catalogue_that_people_made(tmp_path):
    data = put(tmp_path / "own")
    wishes = FederationOptions(
        method="dp-fedmf", data=data, clients=12, protocol="loo-full", settings=("cohort.size=0",), rounds=1
    )
    with pytest.raises(BadInput, match="every client would get it, and no noise covers .* the set of items that"):
        make(tmp_path / "refused", wishes)
    assert not (tmp_path / "refused").exists()
    made = make(tmp_path / "declared", replace(wishes, public_catalogue=True)).federation
    assert DECLARED in made.guarantee["caveats"]
    put(tmp_path / "own", schema=TABLE)
    made = make(tmp_path / "listed", wishes).federation
    assert DECLARED not in made.guarantee["caveats"]
    known = FederationFacts(tmp_path / "listed", made)
    assert (known.plan.mechanism.taking_part.population, known.problem.n_items) == (12, ITEMS + 1)


def test_the_number_of_people_counts_who_learns_by_the_draws_of_this_very_run():
    data = "synthetic-news:users=50,news=200"  # of 50 readers 39 learn, or 42, by the draws
    for secret, noise in ((None, "seeded"), (bytes(32), "secure")):
        prepared = prepare(RunRequest("privaterec", data, noise=noise, settings=("cohort.size=5",)), secret=secret)
        learning = int((prepared.trainer.data.rows.lengths() > 0).sum())
        assert learning <= prepared.problem.people == rounded_people(learning)
