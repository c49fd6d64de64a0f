"""The hot route: from what a device tells to the best items, in as few steps as there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np

from veilrec.core.arrays import Floats, Offsets
from veilrec.core.errors import VeilrecError
from veilrec.privacy.mechanisms.attention import normalise
from veilrec.serving.edition import Edition
from veilrec.serving.requests import (
    BUSY,
    LARGEST_NUMBER,
    MOST_K,
    Receive,
    RecommendRequest,
    RequestRefused,
    Scope,
    decoded,
    header,
    read_body,
)
from veilrec.serving.service import RecommenderService
from veilrec.wire.messages import BadMessage
from veilrec.wire.queries import KINDS, QueryShape, decode

JSON, BYTES = b"application/json", b"application/octet-stream"
_LIGHT = 2_000_000  # numbers that are looked at on the way: more are not the event loop's business
_MOST_WAITING = 32
_SUM = 1e-3  # by which weights may miss 1
_KIND_AT, _LEAST_BYTES = 4, 7  # of a query in bytes

Best = tuple[Offsets, Floats]


class RecommendRoute:
    """POST /v1/recommend."""

    def __init__(self, service: RecommenderService, body_cap: int) -> None:
        self._service, self._cap = service, body_cap
        self._decoder = msgspec.json.Decoder(RecommendRequest)
        self._heavy = ThreadPoolExecutor(1, thread_name_prefix="whole-scan")
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive) -> tuple[bytes, bytes]:
        """The answer, and its type."""
        body = await read_body(scope, receive, self._cap)
        edition = ready(self._service)
        as_pool, ask = False, None
        kind = header(scope, b"content-type")
        if kind is not None and kind != JSON:
            kind = kind.partition(b";")[0].strip().lower()
        if scope["query_string"]:
            as_pool, ask = _options(scope["query_string"], edition.largest_pool, is_json=kind != BYTES)
        if kind is None or kind == JSON:
            ask = decoded(self._decoder, body) if body else RecommendRequest()
            given = (ask.alpha is not None) + (ask.interest is not None) + (ask.vector is not None)
            if given + (ask.told is not None) > 1:
                raise RequestRefused(400, "the body tells several things: give one of alpha, interest, vector and told")
            weights, vector = _told_in_json(ask, edition)
        elif kind == BYTES:
            ask = ask or RecommendRequest()
            weights, vector = _told_in_bytes(body, edition)
        else:
            raise RequestRefused(
                415, "the body has a type that is not read: send application/json, or a query as bytes"
            )
        try:
            numbers, scores = await self._best(edition, weights, vector, ask)
        except VeilrecError as error:
            raise RequestRefused(400, str(error)) from None
        if as_pool:
            return await self._aside(_pool, edition, numbers, ask.k), BYTES
        return _answer(edition, numbers, scores), JSON

    async def _best(
        self, edition: Edition, weights: Floats | None, vector: Floats | None, ask: RecommendRequest
    ) -> Best:
        wanted = None
        if ask.categories or ask.region:
            wanted = edition.wanted(ask.categories, ask.region)
        if weights is not None:
            return edition.catalogue.best(weights, ask.k, wanted=wanted)
        if vector is None:
            if wanted is None:
                return edition.best_for_nobody(ask.k)
            vector = edition.nobody
        if len(edition.catalogue) * edition.dim <= _LIGHT:
            return edition.catalogue.best_by_vector(vector, ask.k, wanted=wanted)
        best = edition.catalogue.best_by_vector
        found: Best = await self._aside(lambda: best(vector, ask.k, wanted=wanted))
        return found

    async def _aside(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What takes milliseconds is done beside the event loop; a queue that is too long is told so."""
        if self._waiting >= _MOST_WAITING:
            raise RequestRefused(503, "too many ask for this at once: ask again in a moment", BUSY)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._heavy, work, *arguments)
        finally:
            self._waiting -= 1


def ready(service: RecommenderService) -> Edition:
    """The edition that answers now."""
    edition = service.edition
    if edition is None:
        raise RequestRefused(503, "the index is not ready: ask again in a moment", BUSY)
    if not edition.ranks_here:
        raise RequestRefused(409, "this release ranks on devices only: get it from /v1/release and ask nobody")
    return edition


def _told_in_json(ask: RecommendRequest, edition: Edition) -> tuple[Floats | None, Floats | None]:
    """Weights of interests, or a vector, or neither."""
    if ask.alpha is not None:
        alpha, size = ask.alpha, edition.n_interests
        total = sum(alpha)
        if len(alpha) != size or not abs(total - 1.0) <= _SUM:
            raise RequestRefused(
                400, f"alpha has {len(alpha)} numbers that add up to {total:.6g}: {_needed(size)} that add up to 1"
            )
        return np.array(alpha, np.float32), None
    if ask.interest is not None:
        return _of_interest(ask.interest, edition), None
    if ask.vector is not None:
        if len(ask.vector) != edition.dim:
            raise RequestRefused(400, f"the vector has {len(ask.vector)} numbers: {_needed(edition.dim)}")
        return None, np.array(ask.vector, np.float32)
    if ask.told is not None:
        return None, _of_pooled(np.array(ask.told, np.float32), edition)
    return None, None


def _told_in_bytes(body: bytes, edition: Edition) -> tuple[Floats | None, Floats | None]:
    """The same from a query of `veilrec.wire.queries`; noisy attention goes back on the simplex."""
    if not body:
        return None, None
    number = body[_KIND_AT] if len(body) >= _LEAST_BYTES else len(KINDS)
    kind = KINDS[number] if number < len(KINDS) else None
    pooled = 0 if edition.pooled is None else len(edition.pooled.told_mean)
    sizes = {"interest": edition.n_interests, "attention": edition.n_interests, "vector": edition.dim, "pooled": pooled}
    size = sizes.get(kind or "", 0)
    if kind is None or not size:
        raise RequestRefused(
            400, "the body is no query of a kind that this release reads: see the offers in its manifest"
        )
    try:
        told = decode(body, QueryShape(kind, size))
    except BadMessage as error:
        raise RequestRefused(400, str(error)) from None
    if kind == "interest":
        return _of_interest(int(told[0]), edition), None
    if kind == "attention":
        return normalise(told.astype(np.float64), "simplex").astype(np.float32), None
    if np.abs(told).max() > LARGEST_NUMBER:
        raise RequestRefused(400, f"the query has numbers beyond {LARGEST_NUMBER:.0e}: no model has such")
    return None, _of_pooled(told, edition) if kind == "pooled" else told


def _of_interest(interest: int, edition: Edition) -> Floats:
    """How likely each interest is the true one after this one was told."""
    if edition.chances is None or interest >= edition.n_interests:
        raise RequestRefused(400, f"there is no interest {interest}: this release has {edition.n_interests}, from 0 on")
    row: Floats = edition.chances[interest]
    return row


def _of_pooled(told: Floats, edition: Edition) -> Floats:
    if edition.pooled is None:
        raise RequestRefused(400, "this release reads no pooled vectors: see the offers in its manifest")
    if len(told) != len(edition.pooled.told_mean):
        raise RequestRefused(
            400, f"the pooled vector has {len(told)} numbers: {_needed(len(edition.pooled.told_mean))}"
        )
    (user,) = edition.pooled.users(told[np.newaxis])
    return np.asarray(user, np.float32)


def _pool(edition: Edition, numbers: Offsets, k: int) -> bytes:
    try:
        return edition.pool_of(numbers, k, whole=False, exact=False)
    except VeilrecError:  # one of them was taken out this moment
        raise RequestRefused(503, "the items have changed: ask again", BUSY) from None


def _needed(size: int) -> str:
    return f"give {size}" if size else "this release takes none"


def _answer(edition: Edition, numbers: Offsets, scores: Floats) -> bytes:
    items, json = [], edition.texts.json
    for number, score in zip(numbers.tolist(), scores.tolist(), strict=True):
        start = json(number)
        if start is not None:
            items.append(b"%s%.7g}" % (start, score))
    return edition.head + b",".join(items) + b"]}"


def _options(query: bytes, largest_pool: int, *, is_json: bool) -> tuple[bool, RecommendRequest | None]:
    """What stands behind the question mark: form, and for a query in bytes all that a JSON body has room for."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=110
        )
    except (ValueError, UnicodeDecodeError):
        raise RequestRefused(400, "the query string is not as it should be: see /docs") from None
    form, ask = "list", RecommendRequest()
    most = max(MOST_K, largest_pool) if ("form", "pool") in pairs else MOST_K
    for name, value in pairs:
        if name == "form" and value in ("list", "pool"):
            form = value
        elif name == "k" and not is_json and _is_count(value, most):
            ask.k = int(value)
        elif name == "categories" and not is_json and 0 < len(value) <= 200:
            ask.categories = [*(ask.categories or ()), value]
        elif name == "region" and not is_json and 0 < len(value) <= 200:
            ask.region = value
        else:
            line = "form=list or form=pool" + ("" if is_json else f", k=1 to {most}, categories=NAME, region=NAME")
            raise RequestRefused(400, f"the query string may have {line}: everything else is refused")
    return form == "pool", ask


def _is_count(value: str, most: int) -> bool:
    return value.isascii() and value.isdigit() and len(value) < 10 and 1 <= int(value) <= most
