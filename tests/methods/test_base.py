"""Settings: what no method can work with is refused in one line, whatever the method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from veilrec.core.errors import BadInput
from veilrec.methods.base import Method, configure, is_set
from veilrec.methods.registry import all_methods, get


def numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int | float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, value


def refusal(method: Method[Any], setting: str) -> str:
    with pytest.raises(BadInput) as refused:
        configure(method, preset="tuned", dataset="", settings=[setting])
    return str(refused.value)


def test_a_noise_as_published_without_a_finite_epsilon_is_refused() -> None:
    method = get("fednewsrec")
    settings = ["calibration=as-published", "privacy.clip_value=1e308"]
    config, _ = configure(method, preset="tuned", dataset="", settings=settings)
    with pytest.raises(BadInput, match=r"privacy.clip_value is 1e\+308 and privacy.scale 0.015: no finite epsilon"):
        method.guarantee(config)


@pytest.mark.parametrize("method", [m for m in all_methods() if m.config.model_fields], ids=lambda method: method.name)
def test_names_the_nearest_setting_and_refuses_bad_values(method: Method[Any]) -> None:
    known = next(name for name, _ in numbers(method.config().model_dump()))
    parent, _, last = known.rpartition(".")
    wrong = f"{parent}.{last}s" if parent else f"{last}s"
    assert "did you mean" in refusal(method, f"{wrong}=1")
    assert known in refusal(method, f"{wrong}=1")
    told = refusal(method, f"{known}=many")
    assert "'many'" in told
    assert "\n" not in told


def test_who_asks_a_method_without_noise_for_privacy_is_told_its_private_relative() -> None:
    for setting in ("calibration=proven", "privacy.epsilon=3"):
        assert "train its private relative dp-fedmf" in refusal(get("fedmf"), setting)
        assert "`veilrec methods --private`" in refusal(get("popularity"), setting)
    for method in all_methods():
        if method.private_relative is not None:
            relative = get(method.private_relative)
            assert relative.guarantee(configure(relative, preset="tuned", dataset="")[0]).basis == "proven"


def test_presets_are_matched_without_case() -> None:
    assert configure(get("fedmf"), preset="Paper", dataset="") == configure(get("fedmf"), preset="paper", dataset="")
    with pytest.raises(BadInput, match=r"unknown preset of fedmf 'papers': did you mean paper\?"):
        configure(get("fedmf"), preset="papers", dataset="")


def test_what_the_user_has_set() -> None:
    assert is_set(["local.dim=3", " cohort.size = 5"], "cohort.size")
    assert not is_set(["cohort.sampling=fixed"], "cohort.size")
