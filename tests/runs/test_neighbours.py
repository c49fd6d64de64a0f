"""One person more, whoever that is: what clients add up moves by that person's own message, and by nothing else."""

import json

import numpy as np
import pytest
import yaml

from tests.methods.tiny_news import SMALL
from veilrec.privacy import samplers
from veilrec.privacy.events import ComposedEvent, GaussianEvent, ParallelEvent, SampledEvent, training_event
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train

ITEMS, PEOPLE = 30, 41
SECRET = bytes(range(32))
SCHEMA = {
    "items": {"file": "items.csv", "title": "name", "features": {"kind": {"kind": "category", "values": ["a", "b"]}}},
    "users": {"file": "people.csv", "features": {"age": {"kind": "number", "low": 0, "high": 99}}},
}


class Tap:
    """Noise on sums: records every sum, and gives what an earlier run was given, so that both go on alike."""

    def __init__(self, before=None):
        self.sums, self.sigmas, self.given, self._before = [], [], [], before

    def __call__(self, total, *, sigma, source):
        self.sums.append(np.array(total, np.float64))
        self.sigmas.append(sigma)
        before = self._before
        out = _add_gaussian(total, sigma=sigma, source=source) if before is None else before.given[len(self.given)]
        self.given.append(np.array(out))
        return out

    def moved(self, other):
        """How far the sums of two runs lie apart, all in standard deviations of their noise."""
        assert self.sigmas == other.sigmas
        pairs = zip(self.sums, other.sums, self.sigmas, strict=True)
        return sum(float((((one - two) / sigma) ** 2).sum()) for one, two, sigma in pairs) ** 0.5


_add_gaussian = samplers.add_gaussian


def put_ratings(folder, more):
    """Uses of people u00 to u40, and of those of `more`."""
    folder.mkdir(parents=True)
    people = [f"u{number:02d}" for number in range(PEOPLE)]
    uses = {who: [(n * 7 + step * 3) % ITEMS for step in range(5 + n % 4)] for n, who in enumerate(people)} | more
    lines = [
        f"{who},i{item:02d},{1 + (item + place) % 5},{1e9 + place:.0f}"
        for who, own in uses.items()
        for place, item in enumerate(own)
    ]
    (folder / "log.csv").write_text("user,item,rating,time\n" + "\n".join(lines) + "\n")
    (folder / "items.csv").write_text(
        "item,name,kind\n" + "".join(f"i{n:02d},Film {n},{'ab'[n % 2]}\n" for n in range(ITEMS))
    )
    (folder / "people.csv").write_text("user,age\n" + "".join(f"{who},{20 + len(own)}\n" for who, own in uses.items()))
    (folder / "log.features.yaml").write_text(yaml.safe_dump(SCHEMA))
    return f"csv:{folder / 'log.csv'}"


def put_news(folder, more):
    """Impressions of the same people."""
    folder.mkdir(parents=True)
    words = ["rain", "wind", "goal", "match", "vote", "law", "tax", "bank", "film", "star", "song", "wine"]
    lines = [
        {
            "item": f"i{n:02d}",
            "title": " ".join(words[(n * 3 + k * (1 + n % 4)) % 12] for k in range(4)),
            "category": "ab"[n % 2],
        }
        for n in range(ITEMS)
    ]
    everybody = {f"u{number:02d}": list(range(number, number + 4)) for number in range(PEOPLE)} | more
    for who, firsts in everybody.items():
        for place, first in enumerate(firsts):
            shown = [f"i{(first * 5 + k) % ITEMS:02d}" for k in range(5)]
            past = [f"i{(first + k) % ITEMS:02d}" for k in range(3)]
            lines.append({"user": who, "time": 10**9 + place, "shown": shown, "clicked": shown[:1], "history": past})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"impressions:{folder / 'log.jsonl'}"


def trained(monkeypatch, folder, put, more, method, settings, protocol, before=None):
    """A run of such people, with the sums that it added noise to."""
    tap = Tap(before)
    monkeypatch.setattr(samplers, "add_gaussian", tap)
    data = put(folder / "own", more)
    rounds = None if method in ("private-gram", "dpals", "private-popularity") else 3
    protocol = protocol or ("loo-full" if put is put_ratings else "mind")
    request = RunRequest(method, data, 0, protocol, settings=settings, rounds=rounds, noise="secure", people=50)
    prepared = prepare(request, secret=SECRET)
    train(prepared, folder / "run")
    assert prepared.obstacle() is None
    return prepared, tap


def spent(event):
    """The squared ratio of sensitivity to noise of Gaussian releases, that of the larger group where there are two."""
    match event:
        case GaussianEvent(mu) | SampledEvent(mu, 1.0):
            return mu**2
        case ComposedEvent(parts):
            return sum(count * spent(part) for part, count in parts)
        case ParallelEvent(groups):
            return max(map(spent, groups))
    raise AssertionError(f"{event} is not Gaussian")


def published(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "run" / "model").iterdir())}


EVERYTHING = [*range(ITEMS - 1), 3, 3]  # one of them again and again
BY_STARS = ("cohort.size=0", "model.popularity=false", "local.loss=logistic", "local.positives=liked")


@pytest.mark.parametrize(
    ("method", "put", "settings", "protocol"),
    [
        ("dp-fedmf", put_ratings, (), ""),
        ("dp-fedmf", put_ratings, ("cohort.available=0.7", "cohort.drop_out=0.3"), ""),
        ("dp-fedncf-dgc", put_ratings, (), ""),
        ("priv-fedmf-sub", put_ratings, (), ""),
        ("dp-privrec", put_ratings, ("cohort.size=0",), ""),
        ("dp-privrec", put_ratings, BY_STARS, "holdout-users-liked"),
        ("dp-privrec", put_ratings, ("cohort.size=0", "features.users=[age]"), "holdout-records"),
        ("private-gram", put_ratings, (), ""),
        ("veil", put_ratings, (), ""),
        ("veil", put_news, (), ""),
        ("privaterec", put_news, (), ""),
        ("privaterec", put_news, ("train_share=0.7",), ""),
        ("privaterec", put_news, ("training=sums", "pads=words", *SMALL), ""),
    ],
)
def test_one_person_more_moves_sums_by_one_message_and_nothing_else(
    tmp_path, monkeypatch, method, put, settings, protocol
):
    first, sums = trained(monkeypatch, tmp_path / "few", put, {}, method, settings, protocol)
    most = spent(training_event(first.plan)) ** 0.5
    for who in ("a", "u20x", "z0"):  # before all others, among them, and behind them; one of them validates
        more = {who: EVERYTHING}
        other_run, other = trained(monkeypatch, tmp_path / who, put, more, method, settings, protocol, before=sums)
        assert other.moved(sums) <= most * (1 + 1e-6), who
        # whoever got the same noisy sums makes the same of them, and has the same files, to the byte
        assert other_run.trainer.selection == first.trainer.selection
        assert published(tmp_path / who) == published(tmp_path / "few"), who
