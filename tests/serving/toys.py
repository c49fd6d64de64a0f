"""Small releases and services to ask."""

import asyncio
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import save_file

from veilrec.privacy.guarantee import no_guarantee
from veilrec.serving.app import Settings, make_app
from veilrec.serving.edition import ItemStore
from veilrec.serving.middleware import Log, RequestMiddleware
from veilrec.serving.service import RecommenderService
from veilrec.wire.releases import describe_file, open_release, sign_release
from veilrec.wire.signing import SigningKey

KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
DIM, INTERESTS, POOLED = 6, 3, 2
TOKEN = "a token of the tests".replace(" ", "-")
OFFERED = ("interest", "attention", "pooled", "vector")  # kinds of queries
CATEGORIES = ("news", "sport", "weather")


def packed(name, texts):
    pieces = [text.encode() for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
    return {f"{name}.offsets": offsets, f"{name}.data": np.frombuffer(b"".join(pieces), np.uint8)}


def manifest_of(**changed):
    """The fields of a manifest, some of them changed."""
    fields = {"format": 1, "minimum_client": 1, "name": "toy", "version": 1, "method": "toy", "family": "news"}
    fields |= {
        "expires": "2999-01-01T00:00:00Z",
        "created": "2026-11-17T06:40:00Z",
        "made_by": "veilrec tests",
        "guarantee": no_guarantee().to_json(),
    }
    fields |= {"protected": True, "why_unprotected": [], "encoder": None, "offers": []}
    return {
        **fields,
        "sizes": dict.fromkeys(("items", "dim", "interests", "longest"), 0),
        "data": {},
        "figures": {},
        "files": {},
    } | changed


def offers_of(kinds, dim=DIM):
    """Offers of queries of these kinds, as a manifest lists them."""
    sizes = {"interest": INTERESTS, "attention": INTERESTS, "pooled": POOLED, "vector": dim}
    modes = {"vector": "plain"}
    return [{"mode": modes.get(kind, kind), "kind": kind, "size": sizes[kind]} for kind in kinds]


def write_release(folder, *, version=1, items=40, family="news", protected=True, dim=DIM, readers=0, kinds=OFFERED):
    """A signed release of synthetic items: n0, n1, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    draws = np.random.default_rng(version)
    vectors = draws.normal(size=(items, dim)).astype(np.float32)
    about = {
        **packed("ids", [f"n{number}" for number in range(items)]),
        **packed("titles", [f'Title "{number}" \u00e9' for number in range(items)]),
        **packed("categories", list(CATEGORIES)),
        "category": (np.arange(items) % 4 - 1).astype(np.int32),
    }
    save_file(about, folder / "items.safetensors")
    if family != "ranker":
        save_file({"items": vectors}, folder / "vectors.safetensors")
        serving = {
            "interests": draws.normal(size=(INTERESTS, dim)).astype(np.float32),
            "chances": np.full((INTERESTS, INTERESTS), 0.2) + 0.4 * np.eye(INTERESTS),
            "nobody": draws.normal(size=dim).astype(np.float32),
            "pooled.slope": draws.normal(size=(POOLED, dim)),
            "pooled.mean": draws.normal(size=dim),
            "pooled.told_mean": draws.normal(size=POOLED),
        }
        save_file(serving if family == "news" else {"nobody": serving["nobody"]}, folder / "serving.safetensors")
    if readers:
        told = draws.normal(size=(readers, dim)).astype(np.float16)
        save_file({"vectors": told}, folder / "readers.safetensors")
    files = {path.name: describe_file(path) for path in sorted(folder.iterdir())}
    sizes = {"items": items, "dim": 0 if family == "ranker" else dim, "longest": 10}
    sizes["interests"] = INTERESTS if family == "news" else 0
    why = [] if protected else ["it is a toy"]
    told = {"version": version, "family": family, "protected": protected, "why_unprotected": why, "sizes": sizes}
    told["offers"] = [] if family == "ranker" else offers_of(kinds, dim)
    sign_release(folder, manifest_of(**told, files=files), KEY)
    return folder


def letters(title, abstract, category, subcategory):
    """An encoder that counts letters."""
    vector = np.zeros(DIM, np.float32)
    for letter in title + abstract:
        vector[ord(letter) % DIM] += 1.0
    return vector


@dataclass
class Got:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Asked:
    """A service in this process, asked without a socket."""

    service: RecommenderService
    app: RequestMiddleware
    logged: io.BytesIO
    address: str = "192.0.2.7"
    left: int = 0  # parts of the last body that were not taken
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __call__(self, method, path, body=b"", headers=None, *, token=None, raw_path=None, leaves=False):
        """Send a request; a client that `leaves` sends no body and gets no answer."""
        left = list(body) if isinstance(body, list) and body and isinstance(body[0], bytes) else None
        if left is None:
            left = [body if isinstance(body, bytes) else json.dumps(body).encode()]
        given = {name.lower(): value for name, value in (headers or {}).items()}
        given |= {} if token is None else {"authorization": f"Bearer {token}"}
        target, _, query = path.partition("?")
        scope = {"type": "http", "scheme": "http", "http_version": "1.1", "client": (self.address, 50000)}
        scope |= {"method": method, "path": target, "raw_path": raw_path or target.encode(), "root_path": ""}
        scope["query_string"] = query.encode()
        scope["headers"] = [(name.encode(), value.encode()) for name, value in given.items()]
        sent = []

        async def receive():
            if leaves:
                return {"type": "http.disconnect"}
            if not left:
                await asyncio.Event().wait()  # the client stays
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left)}

        async def send(message):
            sent.append(message)

        self._loop.run_until_complete(self.app(scope, receive, send))
        self.left = len(left)
        if leaves:
            assert not sent
            return Got(0, {}, b"")
        told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Got(sent[0]["status"], told, b"".join(message.get("body", b"") for message in sent[1:]))

    def log(self):
        return [json.loads(line) for line in self.logged.getvalue().splitlines()]

    def close(self):
        self.service.close()
        self._loop.close()


def served(release, folder, settings=None, *, embedder=letters, clock=None, prepare=True):
    """A service that is ready, with a pool, and nothing that runs by itself."""
    logged = io.BytesIO()
    store = ItemStore(folder / "items.sqlite")
    more = {} if clock is None else {"clock": clock}
    service = RecommenderService(release, store=store, embedder_of=lambda _: embedder, log=Log(logged), **more)
    if prepare:
        service.submit(service._prepare).result()
        assert service.failure is None, service.failure
        if service.edition is not None and service.edition.ranks_here:
            service.make_pool(service.edition)
    app = make_app(service, settings or Settings(0, TOKEN.encode(), TOKEN.encode(), page=folder / "no page"))
    return Asked(service, app, logged)


def toy(folder, **changes):
    return open_release(write_release(folder, **changes))
