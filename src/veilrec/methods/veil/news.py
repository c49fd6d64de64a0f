"""`veil` where clients have seen impressions: public text ranks, and a few small sums say what everybody likes.

1. Public: vectors of the news by their words or as sentences, categories, how long titles are.
2. On the client: how near a candidate is to the own history. Nothing of it leaves.
3. Learnt, by noisy sums of clipped gradients: how much each kind of nearness counts, and what everybody likes of news.

How far all rounds together go is decided before the first, from what is known: the number of people, and the noise.
With few people or much noise the ranking stays near where public text put it, and does no harm.

From the text of a catalogue to what `veil` knows of its news; other news are read with the same words and axes.

A trained `veil` of news as a run keeps it: with all that reads news which it has never seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from veilrec.client.news_data import OwnImpressions, pack_logs
from veilrec.client.rankers import Arrays
from veilrec.client.veil_news import KINDS, SCALES, TASTE, VeilNewsLocalTrainer, VeilNewsModel
from veilrec.core.arrays import Doubles, Floats, Indices
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.schema import Schema, Tensor
from veilrec.data.news_text import Vocabulary
from veilrec.data.population import ItemTable, Strings
from veilrec.evaluation.split import has_both_labels
from veilrec.methods.base import NewsData, Problem
from veilrec.methods.fednewsrec.fednewsrec import PUBLIC
from veilrec.methods.news.text_vectors import TitleAxes, learnt_titles, whole_vectors
from veilrec.methods.private import noisy_sum, proven
from veilrec.methods.veil.content import Titles
from veilrec.models.news_content import NO_NAME, NewsContent
from veilrec.privacy.guarantee import Guarantee
from veilrec.server.aggregation import ServerRate

if TYPE_CHECKING:
    from veilrec.methods.veil.method import VeilConfig
    from veilrec.privacy.mechanisms.distributed import NoisySum


_WORDS, _SENTENCES = 64, 32  # numbers of a view
_LENGTH = 0.25  # of one standard deviation of the length of titles, in the appeal
_SLOPE = 5.0  # what a cosine counts before anything is learnt
_OF_NAMES = (0.1, 0.1)  # times that: the same category, the same subcategory
# Features by view: words; sentences of titles, and of titles with abstracts, by their soft maximum and by their mean.
_START = {"off": (), "words": (1.0,), "sentences": (0.2, 0.4, 0.4)}
_MEANS = {"off": (), "words": ((1.0,),), "sentences": ((1.0, 0.0, 0.0), (0.0, 0.0, 0.5), (0.0, 0.0, 0.5))}
_SOFTS = {"off": (), "words": ((0.0,),), "sentences": ((0.0, 0.0, 0.0), (0.0, 0.5, 0.0), (0.0, 0.5, 0.0))}
_SMALLEST = 1e-9


@dataclass(frozen=True)
class View:
    """Principal components of vectors over a catalogue."""

    mean: Doubles  # [dim]
    axes: Doubles  # [dim, width]
    spread: Doubles  # [width]: standard deviations; 0 where the news do not differ

    @classmethod
    def of(cls, vectors: Floats, width: int) -> View:
        """The first so many components."""
        exact = vectors.astype(np.float64)
        mean = exact.mean(axis=0)
        centred = exact - mean
        _, axes = np.linalg.eigh(centred.T @ centred)
        axes = axes[:, ::-1][:, :width]
        axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])] < 0, -1.0, 1.0)
        spread = (centred @ axes).std(axis=0)
        return cls(mean, axes, np.where(spread > _SMALLEST * max(float(spread.max(initial=0.0)), 1.0), spread, 0.0))

    def components(self, vectors: Floats) -> Doubles:
        """Principal components of any vectors of this kind."""
        return np.asarray((vectors.astype(np.float64) - self.mean) @ self.axes)

    def white(self, components: Doubles) -> Doubles:
        """Each of spread 1 over the catalogue, all of mean squared length 1."""
        scale = np.where(self.spread > 0.0, 1.0 / np.where(self.spread > 0.0, self.spread, 1.0), 0.0)
        return np.asarray(components * scale / np.sqrt(max(1, len(self.spread))))


@dataclass(frozen=True)
class NewsReading:
    """All that turns any news into what the model knows of them; made of a public catalogue."""

    titles: Titles
    words: TitleAxes | None  # None: titles are not read
    views: tuple[View, ...]  # words; then titles, and titles with abstracts, as sentences
    length: tuple[float, float]  # of titles, in characters: mean and standard deviation
    categories: tuple[str, ...]
    subcategories: tuple[str, ...]
    rarity: Floats  # [subcategories]: ln(news / news in it)

    def read(self, catalogue: ItemTable) -> NewsContent:
        """What is known of these news."""
        components = [
            view.components(vectors) for view, vectors in zip(self.views, self._vectors(catalogue), strict=True)
        ]
        own, kinds = names_of(catalogue)
        features = len(_START[self.titles]) + len(_OF_NAMES)
        start = np.array([*_START[self.titles], *_OF_NAMES], np.float32) * np.float32(_SLOPE)
        return NewsContent(
            vectors=_side_by_side([_unit(part) for part in components], len(own)),
            ends=np.cumsum([part.shape[1] for part in components], dtype=np.int64),
            means=_padded(_MEANS[self.titles], features),
            softs=_padded(_SOFTS[self.titles], features),
            categories=_codes(own, self.categories),
            subcategories=_codes(kinds, self.subcategories),
            rarity=self.rarity,
            appeal=self._appeal(catalogue, components),
            start=start,
        )

    def _vectors(self, catalogue: ItemTable) -> list[Floats]:
        if self.words is None:
            return []
        own = self.words.vectors(catalogue)
        return [own] if self.titles == "words" else [own, *_sentences(catalogue)]

    def _appeal(self, catalogue: ItemTable, components: list[Doubles]) -> Floats:
        """The whitened vector of the title, as a sentence where it is read so, and how long it is."""
        if not components:
            return np.zeros((len(catalogue.titles), 0), np.float32)
        chosen = min(1, len(components) - 1)
        mean, spread = self.length
        long = (_lengths(catalogue) - mean) / spread * _LENGTH
        white = self.views[chosen].white(components[chosen])
        return np.ascontiguousarray(np.concatenate([white, long[:, np.newaxis]], axis=1), np.float32)

    def tables(self, prefix: str) -> dict[str, NDArray[Any]]:
        """As a saved model keeps it, beside `titles`."""
        found: dict[str, NDArray[Any]] = {"length": np.array(self.length), "rarity": self.rarity}
        for number, view in enumerate(self.views):
            found |= {f"view{number}.{name}": getattr(view, name) for name in ("mean", "axes", "spread")}
        names = {"categories": self.categories, "subcategories": self.subcategories}
        if self.words is not None:
            found |= {"words.rarity": self.words.rarity, "words.axes": self.words.axes}
            names["words"] = self.words.words.words
        for name, values in names.items():
            packed = Strings.of(values)
            found |= {f"{name}.offsets": packed.offsets, f"{name}.data": packed.data}
        return {prefix + name: values for name, values in found.items()}

    @classmethod
    def restored(cls, titles: Titles, tables: Mapping[str, NDArray[Any]], prefix: str) -> NewsReading:
        """What `tables` was taken from."""
        own = {name.removeprefix(prefix): values for name, values in tables.items() if name.startswith(prefix)}

        def named(name: str) -> tuple[str, ...]:
            return tuple(Strings(own[f"{name}.offsets"], own[f"{name}.data"]))

        words = None
        if "words.axes" in own:
            words = TitleAxes(Vocabulary(named("words")), own["words.rarity"], own["words.axes"])
        count = sum(name.endswith(".spread") for name in own)
        views = tuple(View(*(own[f"view{n}.{part}"] for part in ("mean", "axes", "spread"))) for n in range(count))
        mean, spread = own["length"].tolist()
        return cls(titles, words, views, (mean, spread), named("categories"), named("subcategories"), own["rarity"])


def reading_of(catalogue: ItemTable, titles: Titles) -> NewsReading:
    """Fit the reading of news to a public catalogue; without titles none are read."""
    if len(catalogue.titles.data) == 0:
        titles = "off"
    words, views = None, []
    if titles != "off":
        vectors, words = learnt_titles(catalogue, _WORDS)
        views.append(View.of(vectors, _WORDS))
    if titles == "sentences":
        views += [View.of(vectors, _SENTENCES) for vectors in _sentences(catalogue)]
    lengths = _lengths(catalogue)
    spread = float(lengths.std()) if len(lengths) else 0.0
    own, kinds = names_of(catalogue)
    known = tuple(sorted(set(kinds) - {""}))
    counts = np.bincount(_codes(kinds, known) + 1, minlength=len(known) + 1)[1:]
    rarity = np.log(max(1, len(kinds)) / np.maximum(counts, 1)).astype(np.float32)
    return NewsReading(
        titles,
        words,
        tuple(views),
        (float(lengths.mean()) if len(lengths) else 0.0, spread if spread > 0.0 else 1.0),
        tuple(sorted(set(own) - {""})),
        known,
        rarity,
    )


def names_of(catalogue: ItemTable) -> tuple[list[str], list[str]]:
    """Category, and category with subcategory, of every news; empty where there is none."""
    own = list(catalogue.categories)
    if catalogue.subcategories is None:
        return own, own
    both = zip(own, catalogue.subcategories, strict=True)
    return own, [f"{category}/{name}" if name else category for category, name in both]


def _sentences(catalogue: ItemTable) -> list[Floats]:
    return [whole_vectors(replace(catalogue, abstracts=None)), whole_vectors(catalogue)]


def _lengths(catalogue: ItemTable) -> Doubles:
    return np.array([len(title) for title in catalogue.titles], np.float64)


def _codes(names: list[str], known: tuple[str, ...]) -> Indices:
    place = {name: number for number, name in enumerate(known)}
    return np.array([place.get(name, NO_NAME) for name in names], np.int32)


def _unit(vectors: Doubles) -> Doubles:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _SMALLEST))


def _side_by_side(parts: list[Doubles], count: int) -> Floats:
    return np.ascontiguousarray(np.concatenate([np.zeros((count, 0)), *parts], axis=1), np.float32)


def _padded(rows: tuple[tuple[float, ...], ...], features: int) -> Floats:
    """Rows of a table of features, with zeros for those that come of names."""
    table = np.zeros((len(rows), features), np.float32)
    for view, row in enumerate(rows):
        table[view, : len(row)] = row
    return table


_CONTENT, _READING = "content.", "reading."
_NOBODY = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))


@dataclass(frozen=True)
class VeilNewsRanker:
    """Everything public that a client needs beside the released weights."""

    kind: ClassVar[str] = "veil-news"
    reading: NewsReading
    content: NewsContent
    latest: int  # clicks of a history that count

    def settings(self) -> dict[str, Any]:
        """What makes this ranker again, but for the arrays."""
        return {"titles": self.reading.titles, "latest": self.latest}

    def tables(self, weights: Arrays) -> dict[str, NDArray[Any]]:
        """What is known of the news, and how others are read."""
        return {**self.content.arrays(_CONTENT), **self.reading.tables(_READING)}

    @classmethod
    def restored(cls, settings: Mapping[str, Any], tables: Arrays) -> VeilNewsRanker:
        """The ranker that settings and tables were taken from."""
        reading = NewsReading.restored(settings["titles"], tables, _READING)
        return cls(reading, NewsContent.from_arrays(tables, _CONTENT), int(settings["latest"]))

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> ReadingModel:
        """Known users are those with a history."""
        return ReadingModel(self.content, weights, histories, self.latest).reading(self.reading)


class ReadingModel(VeilNewsModel):
    """A trained model that also scores other news."""

    _reader: NewsReading

    def reading(self, reader: NewsReading) -> ReadingModel:
        """This model, which reads news so."""
        self._reader = reader
        return self

    def fold_in(self, histories: Csr) -> ReadingModel:
        """New users do what all others do."""
        return super().fold_in(histories).reading(self._reader)

    def on(self, catalogue: ItemTable) -> ReadingModel:
        """Score other news with this model; its users come with their histories."""
        return ReadingModel(self._reader.read(catalogue), self.weights, _NOBODY, self.latest).reading(self._reader)


SUMS = "Sums are released: in every round of everybody's gradients; the epsilon is that of all together."
# Chosen on train users: of a sample of MIND, learning from earlier days and ranking later ones, and of synthetic-news
# (docs/veil-news.md says what was seen beside them).
SETTLED = 80.0  # mean messages that all steps together come to where neither chance nor noise is in the way
AGREED = 0.07  # how much doubt, as below, costs one step of the reach


def clients(config: VeilConfig, problem: Problem) -> OwnImpressions:
    """What clients learn from: what their users were shown and clicked."""
    return OwnImpressions(pack_logs(_news(problem).impressions, len(problem.train), config.history))


def _news(problem: Problem) -> NewsData:
    if problem.news is None:
        raise ValueError("this problem has no impressions")
    if not has_both_labels(problem.news.impressions).any():
        raise BadInput(
            "veil has nothing to learn from: no train impression has both a click and an item without one; bring"
            " impressions with both"
        )
    return problem.news


def plan(config: VeilConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    reading = reading_of(_news(problem).catalogue, config.titles)
    content = reading.read(_news(problem).catalogue)
    sizes = {SCALES: content.n_features, TASTE: content.appeal.shape[1], KINDS: len(content.rarity)}
    schema = Schema(tuple(Tensor(name, (size,), by_row=False) for name, size in sizes.items() if size))
    n_clients = problem.people or int((clients(config, problem).rows.lengths() > 0).sum())
    mechanism = noisy_sum(
        replace(config.privacy, clip_norm=1.0),
        config.cohort,
        schema,
        rounds=problem.rounds,
        clients=n_clients,
        keeps_state=False,
    )
    in_round = config.people or config.cohort.among(n_clients)
    return Plan(
        schema=schema,
        start={tensor.name: np.zeros(tensor.shape, np.float32) for tensor in schema.tensors},
        trainer=VeilNewsLocalTrainer(content),
        mechanism=mechanism,
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="sum",
        server=ServerRate(rate=reach(mechanism, in_round, problem.rounds) / (problem.rounds * in_round)),
        ranker=VeilNewsRanker(reading, content, config.history),
        clients_per_batch=250,
    )


def reach(mechanism: NoisySum, people: int, rounds: int) -> float:
    """How many mean messages all steps together come to: SETTLED, or less by how much the mean is in doubt.

    The mean message of N people is in doubt by who they happen to be, its squared error being 1 / N at most (messages
    are of length 1), and by the noise: P sigma^2 / N^2 over its P numbers, where sigma is that of one sum as good as
    all rounds together. Shrinking in proportion is what a Gaussian prior on the mean asks for.
    """
    sigma = mechanism.sigma / math.sqrt(rounds)
    doubt = 1.0 / people + mechanism.dimension * (sigma / people) ** 2
    return 1.0 / (1.0 / SETTLED + doubt / AGREED)


def guarantee(config: VeilConfig) -> Guarantee:
    """User-level over the whole run."""
    return proven(config.privacy, config.cohort, SUMS, public=PUBLIC, keeps_state=False)
