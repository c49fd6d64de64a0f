from __future__ import annotations

from veilrec.cli.output import data_names, method_names, protocol_names


def test_names_begin_with_what_was_typed() -> None:
    assert {"fedmf", "fedmf-lean"} <= set(method_names("fedm"))
    assert all(name.startswith("fedm") for name in method_names("fedm"))
    assert data_names("ml-") == ["ml-100k", "ml-1m"]
    assert set(protocol_names("loo")) == {"loo-99", "loo-full"}


def test_nothing_fits_nonsense() -> None:
    assert method_names("zz") == data_names("zz") == protocol_names("zz") == []
