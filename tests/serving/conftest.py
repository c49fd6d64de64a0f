"""A service to ask in this process, and what a server in one of its own is started with."""

from contextlib import ExitStack

import pytest

from tests.serving.toys import TOKEN, served, toy


@pytest.fixture
def service(tmp_path):
    """Serve a toy release; what is no option of `served` is one of the release."""
    with ExitStack() as stack:

        def made(**options):
            how = {name: options.pop(name) for name in ("settings", "embedder", "clock", "prepare") if name in options}
            asked = served(toy(tmp_path / "release", **options), tmp_path, **how)
            stack.callback(asked.close)
            return asked

        yield made


@pytest.fixture
def ask(service):
    return service()


@pytest.fixture(scope="session")
def token_file(tmp_path_factory):
    """The path of a file with the admin token."""
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    return str(token)
