"""Test vectors of `veil`: a small catalogue as a release carries it, histories, and the scores that Python gives."""

import base64
from dataclasses import replace

import numpy as np
from safetensors.numpy import save

from veilrec.client.released import one_history, packed, program_of, unpacked
from veilrec.client.veil import Reading, ReleasedSums, Steps
from veilrec.client.veil_ranker import Learnt, VeilRanker
from veilrec.models.veil import ALONE, Content, ItemPlaces

N_ITEMS, WORDS, WIDTH, DIRECTIONS = 40, 6, 5, 3
SIDES = (4, 4, 7)  # of the tables: two over the values of one feature, one over those of another
SPANS = {"recency": (1.0, 8.0, 100.0), "taste_recency": (3.0, 30.0), "popularity_recency": (2.0, 40.0)}
READING = Reading(**SPANS, latest=9, targets=6, negatives=4)
LENGTHS = (0, 1, 3, 4, 5, 8, 12, 25, 40)
PLAIN_KERNELS = [(0, ALONE), (1, ALONE), (2, ALONE), (0, 2), (1, 2), (3, ALONE), (4, ALONE), (0, 3)]


def _numbers(generator, *shape, size=1.0):
    return (size * generator.standard_normal(shape)).astype(np.float32)


def _content(generator, *, plain):
    """Synthetic; with texts and kernels, or of a catalogue of which nothing is known."""
    if not plain:
        nothing = np.zeros(0, np.int64)
        empty, none = np.zeros((N_ITEMS, 0), np.float32), np.zeros(0, np.float32)
        codes, kernels = np.zeros((0, N_ITEMS), np.int32), np.zeros((0, 2), np.int32)
        return Content(
            codes, none, starts=nothing, widths=nothing, texts=empty, kernels=kernels, scales=none, basis=empty
        )
    feature, other = (generator.integers(0, side, N_ITEMS).astype(np.int32) for side in (SIDES[0], SIDES[2]))
    tables = []
    for side in SIDES:
        table = generator.random((side, side)).round(3)
        tables.append(((table + table.T) / 2.0).astype(np.float32).ravel())
    widths = np.array(SIDES, np.int64)
    texts = generator.standard_normal((N_ITEMS, WORDS))
    texts[5] = 0.0  # of which nothing is known
    texts /= np.maximum(np.linalg.norm(texts, axis=1, keepdims=True), 1e-9)
    return Content(
        codes=np.stack([feature, feature, other]),
        tables=np.concatenate(tables),
        starts=np.cumsum(widths**2) - widths**2,
        widths=widths,
        texts=texts.astype(np.float32),
        kernels=np.array(PLAIN_KERNELS, np.int32),
        scales=generator.uniform(0.5, 3.0, len(PLAIN_KERNELS)).astype(np.float32),
        basis=_numbers(generator, N_ITEMS, WIDTH, size=0.5),
    )


def made(seed, *, plain, directions, caution, passes=1):
    """A ranker and what was learnt, of numbers that mean nothing."""
    generator = np.random.default_rng([91, seed])
    content = _content(generator, plain=plain)
    features, width = READING.features(content), content.basis.shape[1] + directions
    whitening = _numbers(generator, features, features, size=0.2) + np.eye(features, dtype=np.float32)
    popularity = np.column_stack([generator.uniform(-3.0, 6.0, N_ITEMS), generator.uniform(0.0, 0.8, N_ITEMS)])
    values, expected = _numbers(generator, N_ITEMS, directions), _numbers(generator, N_ITEMS, directions, size=0.3)
    gains = generator.uniform(0.1, 2.0, (N_ITEMS, directions)).astype(np.float32)
    learnt = Learnt(
        ReleasedSums.of(popularity.astype(np.float32), ItemPlaces(values, gains, expected), content, passes),
        _numbers(generator, features, size=0.3),
        _numbers(generator, READING.tastes(width), width, size=0.5),
    )
    reading = replace(READING, place_passes=passes)
    ranker = VeilRanker(content, reading, whitening, Steps(units={}, shares={}), caution, 7 + seed)
    return ranker, learnt


def _case(name, ranker, learnt, seed):
    generator = np.random.default_rng([92, seed])
    program, arrays = program_of(ranker), packed(ranker, learnt)
    model = unpacked(program, arrays, N_ITEMS)
    histories = []
    for length in LENGTHS:
        history = generator.permutation(N_ITEMS)[:length].astype(np.int32)
        scores = model.fold_in(one_history(history)).score_all(np.zeros(1, np.int64))[0]
        weights = model.own_weights(history)
        rounded = {"scores": np.round(scores.astype(np.float64), 6), "weights": np.round(weights.astype(np.float64), 6)}
        histories.append({"history": history.tolist()} | {key: values.tolist() for key, values in rounded.items()})
    return {"name": name, "program": program, "file": base64.b64encode(save(arrays)).decode(), "histories": histories}


def veil():
    """Catalogues with everything, without own weights, without places of items, and of which nothing is known."""
    usual, cases = {"plain": True, "directions": DIRECTIONS, "caution": 30.0}, []
    for seed, (name, changed) in enumerate(
        {
            "everything": {},
            "little caution": {"caution": 0.5},
            "everybody's weights": {"caution": 0.0},
            "no places": {"directions": 0},
            "no content": {"plain": False, "directions": 0},
            "two passes": {"directions": 2 * DIRECTIONS, "caution": 0.5, "passes": 2},
        }.items()
    ):
        cases.append(_case(name, *made(seed, **usual | changed), seed))
    ranker, learnt = made(9, **usual)
    return {"items": N_ITEMS, "cases": cases, "broken": _broken(ranker, learnt)}


def _broken(ranker, learnt):
    """Releases that lead out of their tables, are not finite, or rank in another way."""
    program, arrays = program_of(ranker), packed(ranker, learnt)
    found = []
    for name, at, value in (("codes", (2, 3), SIDES[2]), ("kernels", (4, 1), 5), ("starts", 1, 0)):
        changed = getattr(ranker.content, name).copy()
        changed[at] = value
        found.append((program, packed(replace(ranker, content=replace(ranker.content, **{name: changed})), learnt)))
    not_finite = learnt.weights.copy()
    not_finite[2] = np.nan
    two = program["reading"] | {"place_passes": 2}  # of three directions
    found += [
        (program, packed(ranker, replace(learnt, weights=not_finite))),
        (program, packed(ranker, replace(learnt, map=learnt.map[1:]))),
        (program, {name: values for name, values in arrays.items() if name != "whitening"}),
        (program | {"ranks": "otherwise"}, arrays),
        (program | {"formulas": program["formulas"] + 1}, arrays),
        (program | {"formulas": 3}, arrays),
        (program | {"formulas": 2, "reading": two}, arrays),
    ]
    for odd in ({"place_passes": 3}, {"recency": [1.0]}, {"recency": "all"}):
        found.append((program | {"reading": program["reading"] | odd}, arrays))
    return [{"program": how, "file": base64.b64encode(save(what)).decode()} for how, what in found]
