"""From the text of a catalogue to what `veil` knows of its news; other news are read with the same words and axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Doubles, Floats, Indices
from veilrec.data.news_text import Vocabulary
from veilrec.data.population import ItemTable, Strings
from veilrec.methods.news.sentences import whole_vectors
from veilrec.methods.news.title_vectors import TitleAxes, learnt_titles
from veilrec.methods.veil.content import Titles
from veilrec.models.news_content import NO_NAME, NewsContent

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
        """Of any vectors of the same kind."""
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
    """Learnt from all news of a catalogue, whoever read them; titles that nobody wrote are not read."""
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
