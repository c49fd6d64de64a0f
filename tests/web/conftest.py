"""A small release on a real server, and windows that look at it."""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.serving.processes import running
from tests.web.browsing import REQUIRED, browsing, missing
from veilrec.wire.releases import Release
from veilrec.wire.signing import SigningKey, new_key

DATA = "synthetic-news:users=80,news=800,days=3,seed=3"
FILMS = "synthetic-ratings:users=500,items=300,mean_history=15,seed=3"
ROUNDS, PEOPLE = 4, 4  # of a federation


@dataclass(frozen=True)
class Site:
    """Where the page is served, and what."""

    address: str
    release: Release
    key: SigningKey
    ids: list[str]
    run: Path


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A privately trained news model, released and served."""
    with _served(tmp_path_factory.mktemp("site"), "privaterec", DATA, (), 2, ("/readyz", "/v1/pool")) as site:
        yield site


@pytest.fixture(scope="session")
def films(tmp_path_factory):
    """A catalogue that clients rank by themselves, learnt privately, released and served."""
    settings = ("privacy.epsilon=100",)  # so much that every run learns the same, whatever its noise
    with _served(tmp_path_factory.mktemp("films"), "veil", FILMS, settings, 12, ("/readyz",)) as site:
        yield site


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """A federation of films that nobody runs yet; its rounds ask for places twice, for weights, and for a map."""
    from tests.web.taking_part import federation_of

    settings = ("privacy.epsilon=100", "people=1000")  # so many that places of items are asked for
    return federation_of(tmp_path_factory.mktemp("federation") / "trial", ROUNDS, settings=settings)


@contextmanager
def _served(folder, method, data, settings, rounds, ready):
    from veilrec.runs.release import ReleaseOptions, make_release
    from veilrec.runs.release_model import DEFAULT_OFFERS, texts_of
    from veilrec.runs.request import RunRequest, prepare
    from veilrec.runs.training import train

    request = RunRequest(method, data, seed=1, settings=settings, noise="secure", rounds=rounds)
    train(prepare(request), folder / "run")
    key = new_key(folder / "a.key")
    offers = (*DEFAULT_OFFERS, "plain") if method == "privaterec" else None
    release = make_release(folder / "run", folder / "release", key, ReleaseOptions(offers=offers))
    with serving(release.folder, folder / "log", *ready) as (address, _):
        yield Site(address, release, key, list(texts_of(release).ids), folder / "run")


@contextmanager
def serving(release, log, *ready, more=()):
    """A server of its own."""
    with running(release, log, "--rate", "0", *more, toy_encoder=False) as server:
        for path in ready or ("/readyz", "/v1/pool"):
            server.wait_until(path, 240.0)
        yield server.address, server.process


@pytest.fixture
def window(tmp_path):
    """Opens a window at an address; `profile` names one that goes on where it was."""
    reason = missing()
    if reason is not None:
        (pytest.fail if REQUIRED else pytest.skip)(reason)
    with ExitStack() as stack:
        yield lambda address, *, profile="profile", **how: stack.enter_context(
            browsing(address, tmp_path / profile, **how)
        )


@pytest.fixture
def visit(window):
    """Opens a window, loads the page, and reads the first story of each category."""

    def visited(address, *categories, **how):
        browser = window(address, **how)
        browser.open()
        for category in categories:
            browser.read(category)
        return browser

    return visited
