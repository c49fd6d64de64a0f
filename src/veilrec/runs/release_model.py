"""What of a trained run a release carries beside its `model/` folder: vectors, the encoder, interests, offers.

A release at work: opened, checked, and ready to rank on a client or to take in new items on a server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.client.queries import PRIVATE, Serving
from veilrec.client.rankers import Arrays, FactorModel, FcfModel, ModelParts
from veilrec.client.recommender import ItemTexts, QueryBudget, RecommenderClient, ServerLink, build_client
from veilrec.client.released import (
    ITEMS_FILE,
    RANKING_FILE,
    SERVING_FILE,
    ReleasedCatalogue,
    ReleasedFactors,
    ReleasedModel,
    ReleasedNews,
    ReleasedRanker,
    offers_of,
    packed,
    program_of,
    unpacked,
)
from veilrec.client.veil_ranker import VeilModel, VeilRanker
from veilrec.core.arrays import Floats
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput, unknown_name
from veilrec.data.population import ItemTable, Strings
from veilrec.evaluation.serving import SIMULATED, ServedModel, guarantee_of, made_up_histories, make_plan, pooled_space
from veilrec.models.scores import Model
from veilrec.privacy.mechanisms.attention import PaddedAttention, PrivateAttention
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, PooledInterest
from veilrec.privacy.randomness import SeededSource
from veilrec.runs.model_files import ModelFiles, load_model
from veilrec.serving.answering import FromInterest, FromPooled, best_of
from veilrec.wire.releases import BadRelease, Release

_NOBODY = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))
_FIRST = np.zeros(1, np.int64)
_NO_HISTORY = Csr(np.zeros(2, np.int64), np.zeros(0, np.int32))
_MAX_DIFFERENT = 1e-4  # of a user vector by torch and by the released encoder, relative to its length
_CHECKED = 40  # histories on which encoders are compared
_MAX_ROUNDED = 0.05  # of a score by the numbers of a release, in standard deviations of scores
_READERS, _PUBLIC_SEED = 1000, 0  # synthetic readers
_LARGEST_HALF = 65_000.0  # that 16 bits hold
MODEL_FILES = ("ranker.json", "ranker.safetensors", "model.safetensors", "items.safetensors", "guarantee.json")
DEFAULT_OFFERS = ("interest:1", "attention:5", "pooled:5:1e-6")
_WORTH = 0.5  # of the exact ten best that an offer keeps, so that it is made where nobody chose the offers
_TEN = 10


@dataclass(frozen=True)
class ReleaseParts:
    """What goes into a release, by file."""

    family: str
    dim: int = 0
    longest: int = 0
    encoder: dict[str, Any] | None = None
    arrays: dict[str, dict[str, NDArray[Any]]] = field(default_factory=dict)  # file -> tensors
    offers: list[dict[str, Any]] = field(default_factory=list)
    left_out: tuple[str, ...] = ()  # offers that are not made, and why
    kept: tuple[str, ...] = ()  # how much of the exact ten best each offer keeps
    model_files: tuple[str, ...] = MODEL_FILES  # of the run's own, those that go with it

    @property
    def interests(self) -> int:
        """How many interests a query can tell of."""
        found = self.arrays.get("serving.safetensors", {}).get("interests")
        return 0 if found is None else len(found)


def parts_of(files: ModelFiles, asked: Sequence[str] | None, padding: float = 0.0) -> ReleaseParts:
    """The parts of a model; `asked` are offers, see `_way`; None: the private ones that are worth something.

    `padding` is the share of clicks that training replaced by the pad.
    """
    model = _model(files)
    if files.ranker.kind == "news":
        return _news(model, asked, padding)
    if isinstance(model, FactorModel | FcfModel):
        users = ReleasedFactors(model)
        return _with_queries(ReleaseParts("factors", users.news.shape[1], users.longest), users, asked)
    if asked:
        raise BadInput(
            f"{files.method} has no user vector, so that clients have nothing to ask with: leave --offer out; they rank"
            " by themselves"
        )
    if isinstance(files.ranker, VeilRanker) and files.sent is None:
        return _catalogue(files.ranker, files.weights)
    return ReleaseParts("ranker")


def _catalogue(ranker: VeilRanker, weights: Arrays) -> ReleaseParts:
    """All that a client ranks a catalogue with; the run's own files would say the same again, and noisy votes."""
    learnt = ranker.learnt(weights)
    program, arrays = program_of(ranker), packed(ranker, learnt)
    _check_ranking(VeilModel(ranker, learnt, _NOBODY), unpacked(program, arrays, ranker.content.n_items))
    dim, longest = learnt.told.basis.shape[1], ranker.reading.latest
    return ReleaseParts("catalogue", dim, longest, program, {RANKING_FILE: arrays}, model_files=("guarantee.json",))


def _check_ranking(exact: VeilModel, short: VeilModel) -> None:
    """Refuse a release whose shorter numbers rank otherwise than those of the run."""
    generator, n_items = np.random.default_rng(0), exact.n_items
    for length in (0, 1, 7, min(60, n_items)):
        items = generator.choice(n_items, min(length, n_items), replace=False).astype(np.int32)
        history = Csr(np.array([0, len(items)], np.int64), items)
        wanted, found = (model.fold_in(history).score_all(_FIRST)[0] for model in (exact, short))
        limit = _MAX_ROUNDED * max(float(wanted.std()), 1e-6)
        if not np.isfinite(limit) or not float(np.abs(found - wanted).max()) <= limit:
            raise BadInput(
                f"the numbers of this model are too large or too small for 16 bits: scores of a history of {length}"
                f" differ by more than {limit:.1g}; nothing is released"
            )


def _news(model: Model, asked: Sequence[str] | None, padding: float) -> ReleaseParts:
    from veilrec.methods.news.encoder_export import encoder_program, encoder_weights
    from veilrec.methods.news.ranker import NewsScorer, NewsUsers

    if not isinstance(model, NewsScorer):
        raise BadInput("this model of news ranks in a way that is not known: it cannot be released")
    program = encoder_program(model.model, model.longest)
    weights = dict(encoder_weights(model.model, program))
    users = NewsUsers(model)
    _check_encoder(users, program, weights)
    arrays = {"encoder.safetensors": weights}
    return _with_queries(
        ReleaseParts("news", users.news.shape[1], model.longest, program, arrays), users, asked, padding
    )


def _readers(users: ServedModel) -> dict[str, NDArray[Any]]:
    """Return user vectors of synthetic readers, by which a server chooses what a pool holds."""
    histories = made_up_histories(users.news, users.longest, _PUBLIC_SEED)
    some = histories.take(np.arange(min(_READERS, len(histories)), dtype=np.int64))
    return {"vectors": np.clip(users.users(some), -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)}


def _check_encoder(users: Any, program: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a release whose encoder gives other user vectors than the network."""
    from veilrec.client.released import UserEncoder

    encoder = UserEncoder(program, weights)
    generator = np.random.default_rng(0)
    lengths = np.unique(np.linspace(0, encoder.longest + 3, _CHECKED).astype(np.int64))
    for length in lengths.tolist():
        items = generator.integers(0, len(users.news), length).astype(np.int32)
        history = Csr(np.array([0, length], np.int64), items)
        whole = users.users_before_basis(history) if program["attention"] else users.users(history)
        found = encoder.user(users.news[items].astype(np.float64))
        limit = _MAX_DIFFERENT * max(1.0, float(np.abs(whole).max()))
        if not float(np.abs(found - whole[0]).max()) <= limit:
            raise BadInput(
                f"the released encoder and the network differ by more than {limit:.1g} on a history of {length}:"
                " nothing is released"
            )


def _with_queries(parts: ReleaseParts, users: Any, asked: Sequence[str] | None, padding: float = 0.0) -> ReleaseParts:
    """Add what private queries need, and what is offered; an offer by default that cannot be made is left out."""
    tables: dict[str, NDArray[Any]] = {"nobody": users.users(_NO_HISTORY)[0]}
    offers: list[dict[str, Any]] = []
    left_out: list[str] = []
    kept: list[str] = []
    for text in DEFAULT_OFFERS if asked is None else asked:
        try:
            way = _way(text)
            way.check_padding(padding)
            made, more = _offer(way, users)
        except BadInput as reason:
            if asked is not None:
                raise
            left_out.append(f"{text.partition(':')[0]}: {reason}")
            continue
        if any(offer["mode"] == made["mode"] for offer in offers):
            raise BadInput(f"{made['mode']} is offered twice: each way of asking once")
        share = _overlap(way, users)
        pool = f" in a pool of {made['pool']:,} of {len(users.news):,}" if made.get("pool") else ""
        told = f"{text} keeps {share:.0%} of the ten best of synthetic readers{pool}"
        if asked is None and share < _WORTH:
            left_out.append(f"{told}: it is offered only if you say so, --offer {text}")
            continue
        kept.append(told)
        offers.append(made)
        tables |= more
    if "interests" not in tables and users.interests is not None:
        tables["interests"] = users.interests
    arrays = {
        "vectors.safetensors": {"items": users.news},
        "serving.safetensors": tables,
        "readers.safetensors": _readers(users),
    }
    return replace(parts, arrays=arrays | parts.arrays, offers=offers, left_out=tuple(left_out), kept=tuple(kept))


def _overlap(way: Serving, users: ServedModel) -> float:
    """The mean share of a reader's exact ten best that a list asked for in a way keeps, over synthetic readers."""
    histories = made_up_histories(users.news, users.longest, _PUBLIC_SEED)
    some = histories.take(np.arange(min(_READERS, len(histories)), dtype=np.int64))
    ten = min(_TEN, len(users.news))
    exact = best_of(users.users(some), users.news, ten)
    if way.mode == "plain":
        return 1.0
    plan = make_plan(way, users, None)
    guessed = plan.reads.users(plan.asking.told(some, SeededSource(_PUBLIC_SEED)))
    found = best_of(guessed, users.news, plan.pool or ten)  # of a pool the client finds its own ten best
    return float(np.mean([np.isin(own, got).mean() for own, got in zip(exact, found, strict=True)]))


_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("noise", "normalise", "calibration"), str),
    **dict.fromkeys(("clip", "padding"), float),
    **dict.fromkeys(("axes", "interests", "pool"), int),
}


def _way(text: str) -> Serving:
    """MODE:EPSILON[:DELTA], and options of serving behind commas; or plain, the exact user vector."""
    if text == "plain":
        return Serving(mode="plain")
    head, *rest = text.split(",")
    mode, *numbers = head.split(":")
    options = dict(each.partition("=")[::2] for each in rest)
    if unknown := next((name for name in options if name not in _OPTIONS), None):
        raise unknown_name("option of an offer", unknown, _OPTIONS)
    try:
        values = [float(number) for number in numbers]
        chosen: Any = {"mode": mode} | {name: _OPTIONS[name](value) for name, value in options.items()}
    except ValueError:
        values = []
    if not 1 <= len(values) <= 2:
        raise BadInput(
            f"--offer {text!r}: give MODE:EPSILON or MODE:EPSILON:DELTA, such as interest:1 or pooled:5:1e-6, with MODE"
            f" one of {', '.join(PRIVATE)}, and perhaps options of serving with numbers as they take them, such as"
            " attention:5,padding=0.5; or plain, which nothing protects"
        )
    return Serving(epsilon=values[0], delta=values[1] if values[1:] else None, **chosen)


def _offer(way: Serving, users: ServedModel) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """An offer as the manifest writes it, and the tables that it needs."""
    if way.mode == "plain":
        nothing = guarantee_of(way, None).to_json()
        return {"mode": "plain", "kind": "vector", "size": users.news.shape[1], "guarantee": nothing}, {}
    if way.mode == "pooled" and isinstance(users, ReleasedFactors):
        raise BadInput("matrix factorisation has no longest history, which pooled queries need: offer interest")
    plan = make_plan(way, users, None)
    mechanism = plan.asking.mechanism
    guarantee = guarantee_of(way, mechanism)
    caveats = [caveat for caveat in guarantee.caveats if caveat != SIMULATED]
    offer: dict[str, Any] = {
        "mode": way.mode,
        "kind": plan.asking.question.kind,
        "size": plan.asking.question.size,
        "epsilon": mechanism.claimed_epsilon,
        "delta": mechanism.claimed_delta,
        "unit": mechanism.unit,
        "adjacency": mechanism.adjacency,
        "guarantee": guarantee.to_json() | {"caveats": caveats},
    }
    tables: dict[str, NDArray[Any]] = {}
    if isinstance(plan.reads, FromInterest):
        offer |= {"pool": plan.pool, "how": "attention" if users.basis is not None else "nearest"}
        tables = {"interests": plan.reads.interests, "chances": plan.reads.chances}
    if isinstance(mechanism, PrivateAttention | PaddedAttention):
        noise = mechanism.noise
        offer |= {"noise": noise.noise, "scale": noise.scale, "clip": noise.clip_norm, "normalise": way.normalisation}
    if isinstance(mechanism, PaddedAttention):
        offer |= {"padding": mechanism.pad_probability, "slots": mechanism.slots}
        tables = {"pad": mechanism.pad.astype(np.float32)}
    if isinstance(mechanism, EmbeddingNoise):
        offer |= {"noise": mechanism.noise, "scale": mechanism.scale, "clip": mechanism.clip_norm}
    if mechanism.calibration != "proven":
        offer["calibration"] = mechanism.calibration
    if isinstance(mechanism, PooledInterest) and isinstance(plan.reads, FromPooled):
        space = pooled_space(users.news, plan.asking.question.size)
        offer |= {"sigma": mechanism.sigma, "clip": space.clip_norm, "slots": users.longest}
        read = plan.reads
        tables = {"centre": space.centre, "axes": space.axes, "slope": read.slope, "mean": read.mean}
        tables = {f"pooled.{name}": values for name, values in (tables | {"told_mean": read.told_mean}).items()}
    return offer, tables


Embed = Callable[[str, str, str, str], Floats]  # title, abstract, category, subcategory -> [dim]


def texts_of(release: Release) -> ItemTexts:
    """Ids and titles."""
    arrays = release.arrays(ITEMS_FILE)
    ids = Strings(arrays["ids.offsets"], arrays["ids.data"])
    return ItemTexts(ids, Strings(arrays["titles.offsets"], arrays["titles.data"]), ids.find)


def ranking_of(release: Release) -> ReleasedModel:
    """What ranks on a client; needs neither torch nor the data of the training."""
    if release.family == "news":
        return ReleasedNews(release)
    if release.family == "catalogue":
        return ReleasedCatalogue(release)
    model = _model(_files(release))
    if release.family == "factors" and isinstance(model, FactorModel | FcfModel):
        return ReleasedFactors(model, release.arrays(SERVING_FILE))
    return ReleasedRanker(model)


def beyond_budget(release: Release) -> tuple[str, ...]:
    """Offers of a release whose one query costs more than a client allows unless its user raises the budget."""
    told = []
    for mode, offer in offers_of(release).items():
        if mode == "plain" or not {"epsilon", "delta"} <= offer.fields.keys():
            continue  # nothing that a client would ask with
        mechanism = offer.mechanism()
        for budget in QueryBudget().budgets():
            cost = budget.cost(mechanism.event(), mechanism.unit, mechanism.adjacency)
            if cost is not None and not budget.allows(cost, cost):
                epsilon, delta = budget.spent(cost)  # what holds, which is more than what a paper may claim
                told.append(
                    f"{mode}: one query is charged ({epsilon:.4g}, {delta:g})-DP per {budget.unit}"
                    f" ({budget.adjacency}), per message, trusting: {budget.trust}, proven; clients allow"
                    f" {budget.line('release')}: only those made with a larger --budget can ask so"
                )
                break
    return tuple(told)


def open_client(
    state: Path, release: Release, *, server: ServerLink | None = None, allowance: QueryBudget | None = None
) -> RecommenderClient:
    """The client whose state lies in a folder, with this release."""
    return build_client(state, release, ranking_of(release), texts_of(release), server=server, allowance=allowance)


def embedder(release: Release) -> Embed | None:
    """What turns the text of a new item into its vector, with the released network; None where items have no text."""
    if release.family != "news":
        return None
    from veilrec.methods.news.ranker import NewsScorer

    scorer = _model(_files(release))
    if not isinstance(scorer, NewsScorer):
        raise BadRelease(f"release {release.name} is of the family news and ranks in another way")

    def embed(title: str, abstract: str = "", category: str = "", subcategory: str = "") -> Floats:
        texts = [Strings.of([text]) for text in (title, category, subcategory, abstract, "")]
        one = ItemTable(texts[0], texts[1], texts[2], texts[3], texts[4])
        vector: Floats = scorer.on(one).states[0].numpy()
        return vector

    return embed


def _files(release: Release) -> ModelFiles:
    try:
        return load_model(release.folder / "model")
    except BadInput as error:
        raise BadRelease(f"the model of release {release.name} cannot be used: {error}") from None


def _model(files: ModelFiles) -> Model:
    """The model without users."""
    return ModelParts(files.ranker, files.weights, sent=files.sent).model(_NOBODY)
