"""What an adversary sees of simulated devices, and what is true of them.

The uploads are made as a round makes them: the plan's learner, its mechanism, its coding of numbers. Where noise lies
on the sum of a round, the adversary knows what everybody else sent, as differential privacy has it, and so sees one
device's bounded update with the noise of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from veilrec import _draws
from veilrec._arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.device.learner import Cohort, LocalData, OwnSources
from veilrec.device.news_log import OwnImpressions
from veilrec.device.taking_part import examples_if_asked
from veilrec.errors import BadInput
from veilrec.models.news_content import NewsContent
from veilrec.models.news_model import NewsInput
from veilrec.plan import Plan
from veilrec.privacy.randomness import FastSource
from veilrec.simulate.simulation import one_of
from veilrec.updates import Round, Uploads, filled, to_vectors
from veilrec.wire import codec

View = Literal["message", "sum", "update"]
SEEN: Mapping[View, str] = {
    "message": "the message of a device, as it reaches the server",
    "sum": "the noisy sum of a round, seen by somebody who knows what everybody else sent",
    "update": "a device's bounded update before any noise: what the server sees, which the method trusts",
}
Observation = Mapping[str, Doubles]  # what is seen of every tensor of the model; 0 where a message says nothing
_MOST_NEWS = 4_000  # that are looked at: those that anybody clicked, and others
_FEWEST = 2  # devices: one is attacked, one is the attacker's own


@dataclass(frozen=True)
class Known:
    """The public side: what the news say, and their vectors by the model that the devices were sent."""

    titles: Offsets  # [news, words], 0 behind the last
    vectors: Mapping[str, Floats]  # [news, width] each, by what they are


@dataclass(frozen=True)
class Clicks:
    """Who clicked what, [devices, news], of the news that are looked at."""

    devices: Offsets
    news: Offsets  # by their numbers
    clicked: Bools  # before the impressions that the devices learn from, and not shown in any of these
    shown: Bools  # in an impression: whoever made the page knows that

    def part(self, chosen: slice) -> Clicks:
        """Of some devices."""
        return Clicks(self.devices[chosen], self.news, self.clicked[chosen], self.shown[chosen])

    def halves(self) -> tuple[Clicks, Clicks]:
        """Those who are attacked, and the attacker's own: one less where they are odd."""
        attacked = len(self.devices) - len(self.devices) // 2
        return self.part(slice(attacked)), self.part(slice(attacked, None))


def public_news(plan: Plan, weights: Mapping[str, Floats]) -> Known:
    """The titles that the plan's ranker reads, and vectors of the news; methods without any are refused."""
    items, content = (getattr(plan.ranker, name, None) for name in ("items", "content"))
    if isinstance(content, NewsContent):  # no layer is over vectors of news: there are no rows to look at
        return Known(np.zeros((content.n_news, 1), np.int64), {})
    if not isinstance(items, NewsInput):
        raise BadInput("its model reads no titles, and the attack is about news: choose a method such as fednewsrec")
    nobody = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))
    scorer: Any = plan.ranker.model(weights, {}, nobody)
    states = scorer.states.numpy()
    vectors = {"news vectors": states} if states.ndim == 2 else {}
    if items.sentence.shape[1]:
        vectors["sentence vectors"] = items.sentence.numpy()
        for layer in plan.schema.dense:
            if len(layer.shape) == 2 and layer.shape[1] == items.sentence.shape[1]:
                vectors[f"sentence vectors behind {layer.name}"] = items.sentence.numpy() @ weights[layer.name].T
    return Known(items.title.numpy(), vectors)


def people_to_attack(data: LocalData, n_news: int, count: int, seed: int) -> tuple[Clicks, Clicks]:
    """Readers to attack, and as many of the attacker's own, or all there are."""
    if not isinstance(data, OwnImpressions):
        raise BadInput(
            "its devices keep no impressions, and the attack is about news: choose a method such as fednewsrec"
        )
    able = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
    if len(able) < _FEWEST:
        raise BadInput(f"only {len(able)} devices can learn: an attack needs {_FEWEST}, one of them the attacker's own")
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _draws.COHORT])))
    targets, own = clicks_of(data, generator.permutation(able)[: 2 * count], n_news, seed).halves()
    if not targets.clicked.any():
        raise BadInput("nobody of those attacked has clicked anything before: there is nothing to find; take more data")
    return targets, own


def clicks_of(data: OwnImpressions, devices: Offsets, n_news: int, seed: int) -> Clicks:
    """The truth about some devices; of a large catalogue, all clicked news and some others."""
    clicked = np.zeros((len(devices), n_news), np.bool_)
    shown = np.zeros((len(devices), n_news), np.bool_)
    for row, device in enumerate(devices):
        for history, impression in _blocks(data.rows.row(int(device))):
            clicked[row, history] = True
            shown[row, impression] = True
    clicked &= ~shown
    news = np.arange(n_news)
    if n_news > _MOST_NEWS:
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _draws.MODEL])))
        anybody = clicked.any(axis=0)
        free = max(0, _MOST_NEWS - int(anybody.sum()))
        others = generator.permutation(np.flatnonzero(~anybody))[:free]
        news = np.sort(np.concatenate([np.flatnonzero(anybody), others]))
    return Clicks(devices, news.astype(np.int64), clicked[:, news], shown[:, news])


def _blocks(row: Indices) -> Iterator[tuple[Indices, Indices]]:
    """Histories and what was shown, impression by impression."""
    at = 0
    while at < len(row):
        past, shown = int(row[at]), int(row[at + 1] + row[at + 2])
        first = at + 3
        yield row[first : first + past], row[first + past : first + past + shown]
        at = first + past + shown


def views_of(plan: Plan) -> tuple[View, ...]:
    """What somebody sees whom the method protects against, and what the server sees where the method trusts it."""
    return ("sum", "update") if plan.mechanism.noise_on == "sum" else ("message",)


def is_noisy(plan: Plan, view: View) -> bool:
    """Whether all that is seen has noise on it."""
    return view != "update" and plan.mechanism.noise_on != "nothing"


@dataclass(frozen=True)
class Scene:
    """Devices that learn from their data with a model, so many rounds each."""

    plan: Plan
    data: LocalData
    weights: Mapping[str, Floats]
    rounds: int
    seed: int


def observe(scene: Scene, devices: Offsets, views: Sequence[View]) -> Iterator[Mapping[View, Observation]]:
    """What is seen of one device after the other, the mean over its rounds; nobody else is in them."""
    plan = scene.plan
    for begin in range(0, len(devices), plan.devices_at_once):
        some = devices[begin : begin + plan.devices_at_once]
        by_round = [_round(scene, some, views, number) for number in range(scene.rounds)]
        for rounds in zip(*by_round, strict=True):  # of one device
            yield {view: _mean([seen[view] for seen in rounds]) for view in views}


def _mean(seen: Sequence[Observation]) -> Observation:
    if len(seen) == 1:
        return seen[0]
    return {name: np.mean([one[name] for one in seen], axis=0) for name in seen[0]}


def _round(
    scene: Scene, devices: Offsets, views: Sequence[View], number: int
) -> Iterator[dict[View, dict[str, Doubles]]]:
    plan, seed = scene.plan, scene.seed
    about = plan.agenda.next(number, scene.weights, None)
    private = plan.learner.fresh_private_state(devices, seed)
    noise = OwnSources(lambda device: FastSource(seed, _draws.LOCAL_NOISE, number, device))
    cohort = Cohort(devices, scene.data.take(devices), private, seed, noise)
    learned = plan.learner.learn(cohort, scene.weights, about)
    bounded = plan.mechanism.bound(examples_if_asked(learned.uploads, plan.tells_examples), about)
    for row, device in enumerate(devices):
        source = FastSource(seed, _draws.NOISE, number, int(device), one_generator=True)
        yield {view: seen_of(plan, one_of(bounded, row), about, view, source) for view in views}


def seen_of(plan: Plan, update: Uploads, about: Round, view: View, source: FastSource) -> dict[str, Doubles]:
    """What is seen of one device's bounded update."""
    schema = about.view(plan.schema)
    if view == "message":
        update = codec.rounded(plan.mechanism.perturb(update, about, source), schema)
    vector = to_vectors(filled(update, schema) if view == "sum" else update, schema)[0]
    seen, start = {}, 0
    for tensor in schema.tensors:
        seen[tensor.name] = vector[start : start + tensor.size].reshape(tensor.shape)
        start += tensor.size
    if view == "sum":
        plan.mechanism.protect(seen, about, source)
    return seen
