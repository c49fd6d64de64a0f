"""An app for people who have Flower: two lines that name our coordinator and our device, and a configuration."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from veilrec._files import new_folder, write_text
from veilrec._version import __version__

FLOWER = "1.41.0"  # the version that all of this was tried with

_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "veilrec-federation"
version = "{version}"
description = "A federation of veilrec, carried by Flower"
license = "Apache-2.0"
dependencies = []  # veilrec with its extra flower is installed on every machine beforehand; no code travels

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "veilrec"
flwr-version-target = "{flower}"

[tool.flwr.app.components]
serverapp = "federation.server:app"
clientapp = "federation.client:app"

[tool.flwr.app.config]
federation = "{federation}"  # the folder that `veilrec federate init` made, on the machine of the coordinator
"""
_SERVER = '''"""The coordinator."""

from veilrec.federate.coordinator.flower_server import app

__all__ = ["app"]
'''
_CLIENT = '''"""A device."""

from veilrec.federate.device.flower_client import app

__all__ = ["app"]
'''


def write_app(out: Path, federation: Path) -> None:
    """The folder that `flwr run` takes."""
    project = _PROJECT.format(version=__version__, flower=FLOWER, federation=federation.resolve())
    with new_folder(out) as part:
        (part / "federation").mkdir()
        write_text(part / "pyproject.toml", project)
        write_text(part / "federation" / "__init__.py", '"""A federation of veilrec."""\n')
        write_text(part / "federation" / "server.py", _SERVER)
        write_text(part / "federation" / "client.py", _CLIENT)


def door_of(address: str) -> str:
    """Where nodes reach the link, unless somebody says otherwise: the port beside the coordinator's."""
    parts = urlsplit(address)
    return f"{parts.hostname or '127.0.0.1'}:{(parts.port or 8471) + 1}"
