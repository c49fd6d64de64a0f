"""What tests of federations share: clients that do not pause, and no deadlines."""

import pytest

from tests.federation.loopback import LONG


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("veilrec.federation.link._DECLINED_PAUSE", 0.1)
    monkeypatch.setattr("veilrec.federation.link._POLL_SECONDS", 1.0)
    monkeypatch.setattr("veilrec.federation.federation.Federation.trip_seconds", LONG)
