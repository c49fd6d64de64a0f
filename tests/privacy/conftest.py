import pytest


@pytest.fixture
def path(tmp_path):
    """Where a ledger lies."""
    return tmp_path / "ledger"
