"""A federation for pages: its public file, and a door that names one origin and is otherwise as it was."""

import base64
import http.client
import json
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from urllib.parse import urlsplit

import numpy as np
import pytest
from safetensors import safe_open

from tests.federation.loopback import basis_of, coordinating, known_in, lay_out_in
from tests.web.trainer_vectors import trainer as vectors
from tests.wire.raising import raises
from veilrec.audit.contract_subject import ContractSubject
from veilrec.core.errors import BadInput
from veilrec.federation.federation import CA, parted
from veilrec.federation.link import client_context
from veilrec.federation.page import ABOUT, about, write_page
from veilrec.wire.signing import checked_origin

PAGE = "https://films.example.org"
NO_ORIGINS = ("", "*", "null", "films.example.org", "http://films.example.org", f"{PAGE}/", f"{PAGE}/x")
NO_ORIGINS += ("https://A.org", "https://a.org; script-src *", "https://a b", "https://u@a.org", "https://a.org:")
NO_ORIGINS += ("https://a.org\r\nx: y",)
PATHS = ("/v1/enrol", "/v1/poll", "/v1/content", "/v1/answer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("page") / "federation"
    lay_out_in(made, basis_of(ContractSubject("veil"), "cohort.size=0", users=3, rounds=2), rehearsal=False)
    return made


class Asking:
    def __init__(self, known):
        parts = urlsplit(known.federation.address)
        context = client_context(known.folder / CA)
        self._open = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=20, context=context)

    def close(self):
        self._open.close()

    def __call__(self, method, path, origin, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        own = {**named, **({} if origin is None else {"Origin": origin})}
        self._open.request(method, path, b"" if method == "OPTIONS" else b"{}", own)
        answer = self._open.getresponse()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}


@contextmanager
def door(folder, page):
    known = known_in(folder)
    with coordinating(folder, known, page=page):
        asking = Asking(known)
        yield asking
        asking.close()  # a coordinator that ends would wait for it


def preflight(asking, path, origin):
    return asking("OPTIONS", path, origin, Access_Control_Request_Method="POST", Access_Control_Request_Headers="x-a")


def test_the_page_that_was_named_may_read_answers_and_no_other(folder):
    with door(folder, PAGE) as asking:
        for path in PATHS:
            status, headers = preflight(asking, path, PAGE)
            assert status == 204
            assert headers["access-control-allow-origin"] == PAGE and headers["access-control-allow-methods"] == "POST"
            assert "x-veilrec-signature" in headers["access-control-allow-headers"]
            assert "access-control-allow-credentials" not in headers
            refusal, headers = asking("POST", path, PAGE)  # signed by nobody: as ever, and the page may read why
            assert refusal in (400, 401) and headers["access-control-allow-origin"] == PAGE
            for stranger in (None, "null", "https://evil.example.org", f"{PAGE}.evil.org", "http://films.example.org"):
                assert "access-control-allow-origin" not in preflight(asking, path, stranger)[1]
                status, headers = asking("POST", path, stranger)
                assert status == refusal and "access-control-allow-origin" not in headers
                assert headers["vary"] == "origin"
        for path in ("/v1/status", "/healthz", "/v1/none"):  # not for clients
            assert "access-control-allow-origin" not in asking("GET", path, PAGE)[1]
            assert preflight(asking, path, PAGE)[0] in (404, 405)


def test_without_a_page_the_door_says_nothing_to_browsers(folder):
    with door(folder, None) as asking:
        for path in PATHS:
            status, headers = preflight(asking, path, PAGE)
            assert status == 405 and not any(name.startswith("access-control") for name in headers)
            assert not any(name.startswith("access-control") for name in asking("POST", path, PAGE)[1])


def test_what_is_an_origin_and_what_is_none():
    for address in (PAGE, f"{PAGE}:8443", "http://127.0.0.1:8337", "http://localhost", "http://[::1]:1"):
        assert checked_origin(address) == address
    for address in NO_ORIGINS:
        raises(BadInput, "is no origin", checked_origin, address)


def test_the_public_file_says_what_the_plan_comes_to(folder, tmp_path):
    known = known_in(folder)
    assert write_page(known, tmp_path / "public") == (tmp_path / "public").stat().st_size
    agreed, rest = parted((tmp_path / "public").read_bytes())
    address, acted = parted(rest)
    assert sha256(agreed).digest() == known.federation.digest  # what invitations name
    assert json.loads(agreed)["page"] == sha256(acted).hexdigest()
    assert address.decode() == known.federation.address
    (tmp_path / "acted").write_bytes(acted)
    with safe_open(tmp_path / "acted", "numpy") as file:
        told = json.loads(file.metadata()[ABOUT])
        names = set(file.keys())
    assert told == json.loads(json.dumps(about(known)))
    assert {"whitening", "content.basis", "ids.offsets", "ids.data"} <= names
    assert told["bounds"] == list(known.plan.mechanism.clip_norms)
    for mu, bound in zip(told["mu_of_rounds"], told["bounds"], strict=True):
        assert bound / told["sigma"] <= mu <= 1.001 * bound / told["sigma"]
    assert told["mu_of_report"] == pytest.approx(1.0 / told["sigma_of_votes"], rel=1e-3)


def test_the_file_of_the_vectors_has_the_same_entries(folder):
    content = parted(parted(base64.b64decode(vectors()["cases"][0]["file"]))[1])[1]
    header = json.loads(content[8 : 8 + int(np.frombuffer(content[:8], "<u8")[0])])
    made_up, real = json.loads(header["__metadata__"][ABOUT]), about(known_in(folder))
    assert made_up.keys() == real.keys()
    assert made_up["reading"].keys() == real["reading"].keys()


def test_another_public_file_than_the_one_agreed_on_is_not_written(folder, tmp_path):
    known = known_in(folder)
    known.federation = replace(known.federation, dataset="another")
    raises(BadInput, "another public file", write_page, known, tmp_path / "public")


def test_what_a_browser_cannot_do_is_said(tmp_path):
    for name, wishes, line in (
        ("fedmf", {}, "federations of veil"),
        ("veil", {}, "in no rehearsals"),
        ("veil", {"rehearsal": False, "secagg": "pairs"}, "not in sums among clients"),
    ):
        folder = tmp_path / line
        lay_out_in(folder, basis_of(ContractSubject(name), "cohort.size=0", users=4, rounds=2), **wishes)
        raises(BadInput, line, about, known_in(folder))


def test_a_file_with_places_of_items_says_their_noise(tmp_path):
    many = basis_of(ContractSubject("veil"), "cohort.size=0", "people=100000", "privacy.epsilon=8", users=3, rounds=4)
    lay_out_in(tmp_path / "many", many, rehearsal=False)
    told = about(known_in(tmp_path / "many"))
    shapes = {each["name"]: each["shape"] for each in told["tensors"]}
    assert list(shapes)[2:] == ["places", "further", "weights", "map"] and told["reading"]["place_passes"] == 2
    assert told["noise"] == {name: pytest.approx(told["units"][name] * told["sigma"]) for name in ("places", "further")}
    assert told["clips"]["places"] == told["clips"]["further"] == 0.8
    assert shapes["places"] == shapes["further"] and shapes["map"][1] > 2 * shapes["places"][1] > 0
