"""The public content of a catalogue as similarities: some for each kind of feature, none of how it is sorted.

- category, categories: the cosine of idf-weighted sets; for several values also whether the sets are the same;
- number (and the year that a title ends with): e^(-distance / h), with a wide and a narrow h;
- text: the cosine of vectors of titles (TF-IDF and latent semantic analysis, or sentence vectors of title and
  categories by the public model MiniLM), and its third power.
The products of different features' first similarities are kernels too: alike in both.

In which coordinates weights are learnt: those in which features of synthetic histories are uncorrelated.

Noise is as large in every direction, so that what moves scores a lot needs few steps and gets little of it. How
features vary is learnt from no one: histories are made up, each next item drawn as much like the last ones as content
says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import polars as pl

from veilrec.client.veil import Reading
from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.features import UNKNOWN, Side
from veilrec.data.population import ItemTable, Strings
from veilrec.data.text_files import unpack
from veilrec.methods.news.text_vectors import learnt_sentences, learnt_titles
from veilrec.models.veil import ALONE, Content, decays_of, second_moment

Titles = Literal["off", "words", "sentences"]  # how texts are read

_MAX_VALUES = 1500  # of a table: the most frequent; the others are like nothing
_MAX_NUMBERS = 128  # that are told apart
_WIDE, _NARROW = 6.0, 24.0  # h, in parts of the standard deviation over the catalogue
_CENTRES = 16  # of a number in the basis
_MAX_PRODUCTS = 6
_PAIRS, _SEED = 200_000, 5  # by which kernels are scaled
_OF_OTHERS = 0.7  # weights in the basis
_OF_TEXTS = {"words": 0.5, "sentences": 1.0}
_TEXT_DIM = 64


@dataclass
class _Found:
    """What was found so far, feature by feature."""

    tables: list[Floats] = field(default_factory=list)
    codes: list[Indices] = field(default_factory=list)
    first: list[int] = field(default_factory=list)  # the first similarity of each feature
    further: list[tuple[int, int]] = field(default_factory=list)  # kernels beside those
    columns: list[Doubles] = field(default_factory=list)  # of the basis

    def add(self, codes: Indices, *tables: Doubles) -> list[int]:
        """Similarities over the same values of one feature."""
        places = []
        for table in tables:
            places.append(len(self.tables))
            self.tables.append(table.astype(np.float32))
            self.codes.append(codes.astype(np.int32))
        self.first.append(places[0])
        return places


def content_of(items: Side | None, catalogue: ItemTable | None, n_items: int, *, dim: int, titles: Titles) -> Content:
    """All that features and titles say."""
    found = _Found()
    sets = [] if items is None else _sets(found, items)
    numbers = [] if items is None else _numbers(found, items)
    if catalogue is not None:
        years = _years(catalogue)
        if years is not None:
            numbers.append(_number(found, years))
    for same in sets:
        found.further += [(same, number) for number in numbers]
    texts = np.zeros((n_items, 0), np.float32)
    if catalogue is not None and titles != "off":
        texts = _texts(catalogue, titles)
        found.columns.append(_OF_TEXTS[titles] * texts.astype(np.float64))
    return _packed(found, texts, _basis(found.columns, n_items, dim))


def _sets(found: _Found, items: Side) -> list[int]:
    """Categories; the places of the similarities that ask for the same set."""
    same_sets = []
    for place, feature in enumerate(items.categories):
        start = int(items.starts[place])
        members = np.zeros((len(items), feature.codes), np.bool_)
        inside = (items.codes >= start) & (items.codes < start + feature.codes)
        members[np.nonzero(inside)[0], (items.codes - start)[inside]] = True
        members[:, UNKNOWN] = False
        counts = members.sum(axis=0)
        useful = (counts > 1) & (counts < len(items))
        if not useful.any():
            continue
        chosen = members[:, useful]
        idf = np.log(len(items) / counts[useful])
        sets, codes = _distinct(chosen)
        cosine = _unit(sets * idf)
        if feature.kind == "categories":
            flags = _unit(sets.astype(np.float64))
            places = found.add(codes, cosine @ cosine.T, (flags @ flags.T > 0.999).astype(np.float64))
            same_sets.append(places[1])
        else:
            found.add(codes, cosine @ cosine.T)
        found.columns.append(_OF_OTHERS * _unit(chosen * idf))
    return same_sets


def _distinct(members: Bools) -> tuple[Doubles, Indices]:
    """Distinct rows, the most frequent ones, and which each item has; the first is empty and stands for the others."""
    rows, places, counts = np.unique(members, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    order = order[rows[order].any(axis=1)][: _MAX_VALUES - 1]
    number = np.zeros(len(rows), np.int32)
    number[order] = np.arange(1, len(order) + 1, dtype=np.int32)
    kept = np.vstack([np.zeros((1, members.shape[1])), rows[order]])
    return kept, number[places.reshape(-1)]


def _numbers(found: _Found, items: Side) -> list[int]:
    return [_number(found, values.astype(np.float64)) for values in items.numbers.T if np.ptp(values) > 0.0]


def _number(found: _Found, values: Doubles) -> int:
    """A wide and a narrow similarity; whatever is missing is like nothing. The place of the wide one."""
    known = np.isfinite(values)
    levels = np.unique(values[known])
    if len(levels) > _MAX_NUMBERS:
        levels = np.unique(np.quantile(values[known], np.linspace(0.0, 1.0, _MAX_NUMBERS), method="nearest"))
    codes = np.where(known, 1 + np.abs(values[:, np.newaxis] - levels).argmin(axis=1), 0).astype(np.int32)
    spread = float(values[known].std())
    apart = np.abs(levels[:, np.newaxis] - levels)
    tables = []
    for part in (_WIDE, _NARROW):
        table = np.zeros((len(levels) + 1, len(levels) + 1))
        table[1:, 1:] = np.exp(-apart * part / spread)
        tables.append(table)
    centres = np.unique(np.quantile(values[known], np.linspace(0.0, 1.0, _CENTRES)))
    width = np.maximum(np.gradient(centres), spread / _NARROW) if len(centres) > 1 else np.array([spread])
    near = np.exp(-0.5 * ((np.where(known, values, np.inf)[:, np.newaxis] - centres) / width) ** 2)
    found.columns.append(_OF_OTHERS * _unit(near))
    places = found.add(codes, *tables)
    found.further.append((places[1], ALONE))
    return places[0]


def _years(catalogue: ItemTable) -> Doubles | None:
    """The year in brackets at the end of titles, where most have one."""
    year = unpack(catalogue.titles).str.extract(r"\((\d{4})\)[^()]*(?:\([^()]*\))?\s*$").cast(pl.Float64)
    values = year.fill_null(float("nan")).to_numpy()
    known = np.isfinite(values)
    return values if known.mean() > 0.5 and np.ptp(values[known]) > 0.0 else None


def _texts(catalogue: ItemTable, titles: Titles) -> Floats:
    """Vectors of length 1, or 0 where nothing is known: [items, d]."""
    if titles == "words":
        return learnt_titles(catalogue, _TEXT_DIM)[0]
    if catalogue.abstracts is None:  # a title alone says little to a reader who does not know the film
        categories = Strings.of(text.replace("|", ", ") for text in catalogue.categories)
        catalogue = replace(catalogue, abstracts=categories)
    return learnt_sentences(catalogue, _TEXT_DIM)[0]


def _basis(columns: list[Doubles], n_items: int, dim: int) -> Floats:
    """Principal directions of all columns, each as long as the root of its singular value."""
    if not columns or dim == 0:
        return np.zeros((n_items, 0), np.float32)
    whole = np.concatenate(columns, axis=1)
    left, values, _ = np.linalg.svd(whole - whole.mean(axis=0), full_matrices=False)
    kept = min(dim, int(np.count_nonzero(values > 1e-6 * values[0])))
    left = left[:, :kept] * np.where(left[np.abs(left[:, :kept]).argmax(axis=0), np.arange(kept)] < 0, -1.0, 1.0)
    basis = left * np.sqrt(values[:kept])
    length = np.sqrt(max(float((basis**2).sum(axis=1).mean()), 1e-12))
    return np.asarray(basis / length, np.float32)


def _packed(found: _Found, texts: Floats, basis: Floats) -> Content:
    n_items, n_tables = len(texts), len(found.tables)
    kernels = [(place, ALONE) for place in found.first] + list(found.further)
    products = [(a, b) for n, a in enumerate(found.first) for b in found.first[n + 1 :]]
    kernels += products[:_MAX_PRODUCTS]
    if texts.shape[1]:
        kernels += [(n_tables, ALONE), (n_tables + 1, ALONE)]
    widths = np.array([len(table) for table in found.tables], np.int64)
    starts: Offsets = np.concatenate([[0], np.cumsum(widths**2)[:-1]]).astype(np.int64) if n_tables else widths
    content = Content(
        codes=np.stack(found.codes) if n_tables else np.zeros((0, n_items), np.int32),
        tables=np.concatenate([np.zeros(0, np.float32), *(table.ravel() for table in found.tables)]),
        starts=starts,
        widths=widths,
        texts=texts,
        kernels=np.array(kernels, np.int32).reshape(-1, 2),
        scales=np.ones(len(kernels), np.float32),
        basis=basis,
    )
    return _scaled(content)


def _scaled(content: Content) -> Content:
    """Scale kernels so that they vary by 1 over pairs of items; leave those out that never vary."""
    pairs = np.random.default_rng(_SEED).integers(0, content.n_items, (2, _PAIRS)).astype(np.int32)
    spread = content.similar(pairs[0], pairs[1]).std(axis=0)
    varies = spread > 1e-6
    return Content(
        content.codes,
        content.tables,
        content.starts,
        content.widths,
        content.texts,
        content.kernels[varies],
        (1.0 / spread[varies]).astype(np.float32),
        content.basis,
    )


def _unit(rows: Doubles) -> Doubles:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9))


_HISTORIES, _LENGTH, _TARGETS, _BESIDE = 600, 60, 3, 12
_COORDINATES_SEED, _TRIED, _PULL, _JUMP, _NEAR = 9, 64, 3.0, 0.25, 8
_ALIKE = 2.4  # of all kernels together; chosen on the validation items of ML-100K, between 0.5 and 15
_SMALLEST = 1e-2  # of the largest variance: what is below is taken for that
# Popularity and its second form vary together, the others by themselves: differences of two items, in logarithms.
_OF_POPULARITY, _TOGETHER, _COORDINATES_OF_OTHERS = 2.0, 1.8, 1.5


def whitening_of(content: Content, reading: Reading) -> Floats:
    """Weights = whitening @ coordinates."""
    n_popular, size = reading.popularity_features(), reading.features(content)
    moment = np.zeros((size, size))
    moment[:n_popular, :n_popular] = _COORDINATES_OF_OTHERS * np.eye(n_popular)
    moment[:2, :2] = [[_OF_POPULARITY, _TOGETHER], [_TOGETHER, _OF_POPULARITY]]
    if content.n_kernels:
        moment[n_popular:, n_popular:] = _of_kernels(content, reading)
    values, vectors = np.linalg.eigh(moment)
    return np.asarray(vectors / np.sqrt(np.maximum(values, _SMALLEST * values[-1])), np.float32)


def start_of(content: Content, reading: Reading, whitening: Floats) -> Floats:
    """Where weights begin, in these coordinates: items are as likely as they are popular, and liked for being alike."""
    weights = np.zeros(len(whitening))
    weights[0] = 1.0
    weights[reading.popularity_features() :] = _ALIKE / max(content.n_kernels * len(reading.recency), 1)
    return np.asarray(np.linalg.solve(whitening.astype(np.float64), weights), np.float32)


def _of_kernels(content: Content, reading: Reading) -> Doubles:
    generator = np.random.default_rng(_COORDINATES_SEED)
    histories = _made_up(content, generator)
    ends = np.arange(_LENGTH - 1, _LENGTH - 1 - _TARGETS, -1)
    differences = []
    for history in histories:
        beside = generator.integers(0, content.n_items, (_TARGETS, _BESIDE)).astype(np.int32)
        candidates = np.column_stack([history[ends], beside])
        described = content.features(history, ends, candidates, decays_of(reading.recency), reading.latest)
        differences.append((described[:, 1:] - described[:, :1]).reshape(-1, described.shape[2]))
    return second_moment(np.concatenate(differences))


def _made_up(content: Content, generator: np.random.Generator) -> Indices:
    """Histories side by side, one item after another: [histories, length]."""
    histories = np.zeros((_HISTORIES, _LENGTH), np.int32)
    histories[:, 0] = generator.integers(0, content.n_items, _HISTORIES)
    rows = np.arange(_HISTORIES)
    for place in range(1, _LENGTH):
        tried = generator.integers(0, content.n_items, (_HISTORIES, _TRIED)).astype(np.int32)
        recent = histories[rows, generator.integers(max(0, place - _NEAR), place, _HISTORIES)]
        alike = np.zeros((_HISTORIES, _TRIED))
        for item in (histories[:, place - 1], recent):
            pairs = content.similar(np.repeat(item, _TRIED), tried.reshape(-1))
            alike += pairs.mean(axis=1).reshape(_HISTORIES, _TRIED)
        pull = np.where(generator.random(_HISTORIES) < _JUMP, 0.0, _PULL)[:, np.newaxis]
        best = (pull * alike + generator.gumbel(size=alike.shape)).argmax(axis=1)
        histories[:, place] = tried[rows, best]
    return histories
