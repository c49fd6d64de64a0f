"""Synthetic requests over the whole document of the API: none makes the server fail.

`VEILREC_API_CASES=10000` asks that many; by default 500.
"""

import os
import warnings
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.serving.toys import DIM, INTERESTS, POOLED, TOKEN, served, toy

CASES = int(os.environ.get("VEILREC_API_CASES", "500"))
_QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "derandomize": True}
_SHORT = (Phase.explicit, Phase.generate)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    found = served(toy(folder / "release"), folder)
    yield found
    found.close()


def test_synthetic_requests_of_the_document(asked):
    schemathesis = pytest.importorskip("schemathesis")
    api = asked("GET", "/openapi.json").json
    schema = schemathesis.openapi.from_dict(api)
    operations = [each.ok() for each in schema.get_all_operations()]
    varied = {"/v1/recommend", "/v1/items/{id}", "/v1/release/files/{path}"}  # the others have nothing to vary
    share = max(1, CASES // 2 // (2 * sum(each.path in varied for each in operations)))
    statuses = {}
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    for operation, mode in ((operation, mode) for operation in operations for mode in modes):
        try:
            strategy = operation.as_strategy(generation_mode=mode)
        except Exception as error:  # nothing can be wrong in a request without parameters
            assert mode is schemathesis.GenerationMode.NEGATIVE, error
            continue
        _run(asked, strategy, share if operation.path in varied else 1, statuses)
    assert sum(statuses.values()) >= 0.9 * (CASES // 2), statuses
    assert statuses.get(200, 0) > 0
    assert statuses.get(400, 0) > 0


def _run(asked, strategy, count, statuses):
    @settings(max_examples=count, phases=_SHORT, **_QUIET)
    @given(case=strategy, with_token=st.booleans())
    def ask(case, with_token):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sent = case.as_transport_kwargs(base_url="http://x")
        import requests

        prepared = requests.Request(**{name: value for name, value in sent.items() if name != "timeout"}).prepare()
        path = (prepared.url or "").removeprefix("http://x")
        body = prepared.body or b""
        content = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)
        raw, _, query = path.partition("?")
        path = f"{unquote(raw)}?{query}" if query else unquote(raw)
        headers = {str(name): str(value) for name, value in prepared.headers.items()}
        headers = {k: v for k, v in headers.items() if (k + v).isascii() and k.lower() != "content-length"}
        token = TOKEN if with_token else None
        got = asked(prepared.method or "GET", path, content, headers, token=token, raw_path=raw.encode())
        _assert_sound(got, path, content)
        statuses[got.status] = statuses.get(got.status, 0) + 1

    try:
        ask()
    except Exception as error:
        if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
            raise


def _assert_sound(got, *sent):
    assert got.status < 500, (sent, got.status, got.body)
    assert got.status < 400 or set(got.json) == {"error"}


_NUMBERS = st.one_of(
    st.floats(), st.integers(), st.sampled_from([1e308, -1e308, 1e-320, 0.0, -0.0, 0.2, 1.0]), st.text(max_size=3)
)
_BOUNDED = st.floats(-1e6, 1e6)
_POSITIVE = st.floats(1e-3, 1.0)
_THREE = {"min_size": INTERESTS, "max_size": INTERESTS}
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, st.text(max_size=10)),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
_FIELDS = st.sampled_from(["alpha", "interest", "vector", "told", "k", "categories", "region", "title", "prior", "x"])
_SOUND = st.one_of(
    st.builds(lambda shares: {"alpha": (np.array(shares) / sum(shares)).tolist()}, st.lists(_POSITIVE, **_THREE)),
    st.builds(lambda number: {"interest": number}, st.integers(0, INTERESTS - 1)),
    st.builds(lambda numbers: {"vector": numbers}, st.lists(_BOUNDED, min_size=DIM, max_size=DIM)),
    st.builds(lambda numbers: {"told": numbers}, st.lists(_BOUNDED, min_size=POOLED, max_size=POOLED)),
    st.builds(lambda title, prior: {"title": title, "prior": prior}, st.text(min_size=1, max_size=20), _BOUNDED),
)
_BODIES = st.one_of(
    _SOUND,
    st.builds(lambda body, k: {**body, "k": k}, _SOUND, st.integers(-1, 1001)),
    st.binary(max_size=300),
    st.dictionaries(_FIELDS, st.one_of(_VALUES, st.lists(_NUMBERS, min_size=2, max_size=6)), max_size=4),
)
_QUERY = st.one_of(
    st.just(""), st.text(st.characters(codec="ascii"), max_size=30), st.sampled_from(["form=pool", "k=3"])
)
_KINDS = st.sampled_from(["application/json", "application/octet-stream", "text/plain", "", "application/json;x"])


@settings(max_examples=max(1, CASES // 2), **_QUIET)
@given(st.sampled_from(["recommend", "item"]), _BODIES, _QUERY, _KINDS, st.booleans())
def test_synthetic_bodies(asked, route, body, query, kind, as_query):
    if isinstance(body, bytes) and as_query:
        body = b"VRQ1" + body
    method, path = ("POST", "/v1/recommend") if route == "recommend" else ("PUT", "/v1/items/synthetic")
    _assert_sound(asked(method, f"{path}?{query}" if query else path, body, {"content-type": kind}, token=TOKEN), body)
