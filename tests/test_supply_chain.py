"""Hashed pins, and the bill of materials."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile

import pytest

from tests.docker_steps import ROOT, read_steps

sys.path.insert(0, str(ROOT / "tools"))
import supply_chain

CONSTRAINTS = {
    supply_chain.normalised(name): version
    for name, _, version in (
        line.strip().partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
}


def test_hashed_pins_have_the_versions_of_the_constraints_and_no_addresses():
    demo, test = (supply_chain.pins(part) for part in supply_chain.PARTS)
    assert not set(demo) & set(test)
    pinned = {name: version for part in (demo, test) for name, (version, _) in part.items()}
    assert {name: version for name, version in pinned.items() if CONSTRAINTS.get(name, version) != version} == {}
    for part in supply_chain.PARTS:
        text = (ROOT / "hashes" / f"{part}.txt").read_text()
        assert "://" not in text and "@" not in text and text.startswith("# CPython 3.11, Linux x86_64, glibc\n")


@pytest.mark.parametrize("part", supply_chain.PARTS)
def test_everything_that_a_target_installs_is_hashed_but_for_torch(part):
    hashed = set(supply_chain.pins("demo"))
    hashed |= set(supply_chain.pins("test")) if part == "test" else set()
    needed = supply_chain.closure(supply_chain.PARTS[part])
    assert len(needed) > 40 and {"torch", "numpy", "cryptography"} <= set(needed)
    assert set(needed) - hashed == supply_chain.LEFT_OUT
    assert {"hatchling", "editables"} <= hashed  # of our own build, which takes nothing else then


def wheel(folder, content="x = 1\n"):
    """A package of one file."""
    files = {
        "tiny_pin.py": content,
        "tiny_pin-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-pin\nVersion: 1.0\n",
        "tiny_pin-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        for name, text in files.items()
    ]
    path = folder / "tiny_pin-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as out:
        for name, text in files.items():
            out.writestr(zipfile.ZipInfo(name), text)
        out.writestr(zipfile.ZipInfo("tiny_pin-1.0.dist-info/RECORD"), "\n".join([*rows, ""]))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_wheel_that_was_exchanged_is_not_installed_and_other_platforms_are_told(tmp_path, capfd):
    (tmp_path / "hashes").mkdir()
    pins = tmp_path / "hashes" / "demo.txt"
    pins.write_text(f"# {supply_chain.here()}\ntiny-pin==1.0 --hash=sha256:{wheel(tmp_path)}\n")
    options = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "here")]
    assert supply_chain.install("demo", options, tmp_path)
    assert (tmp_path / "here" / "tiny_pin.py").exists()
    wheel(tmp_path, "x = 2\n")
    options[-1] = str(tmp_path / "there")
    with pytest.raises(subprocess.CalledProcessError):
        supply_chain.install("demo", options, tmp_path)
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert not (tmp_path / "there").exists()
    pins.write_text(pins.read_text().replace("# ", "# Another Python, "))
    assert not supply_chain.install("demo", options, tmp_path)
    assert "versions alone are checked" in capfd.readouterr().err
    pins.write_text("# x\ntiny-pin==1.0\n")
    with pytest.raises(SystemExit, match=r"'tiny-pin==1\.0' is no name==version --hash"):
        supply_chain.pins("demo", tmp_path)


def test_targets_and_image_install_hashed_pins_first():
    recipes = (ROOT / "Makefile").read_text()
    for part, extras in supply_chain.PARTS.items():
        first, second = recipes.index(f"supply_chain.py install {part}\n"), recipes.index(f"-e '.[{extras}]'")
        assert first < second and "supply_chain.py isolation" in recipes[first:second]
    steps = [step.text for step in read_steps()]
    hashed = next(number for number, text in enumerate(steps) if "supply_chain.py install demo" in text)
    assert "pip install" in steps[hashed + 1] and "isolation" in steps[hashed + 1]


def test_the_bill_of_materials_names_what_is_installed_and_who_needs_it(monkeypatch, tmp_path):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    supply_chain.main(["materials", str(tmp_path / "one.json")])
    supply_chain.main(["materials", str(tmp_path / "two.json")])
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    bill = json.loads((tmp_path / "one.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    named = {part["name"]: part for part in bill["components"]}
    assert {"torch", "numpy", "cryptography", "starlette", "optuna"} <= set(named) and "pytest" not in named
    references = {part["bom-ref"] for part in [*bill["components"], bill["metadata"]["component"]]}
    assert len(references) == len(named) + 1
    edges = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert set(edges) == references and all(set(needed) <= references for needed in edges.values())
    assert any(needed.startswith("pkg:pypi/cffi@") for needed in edges[named["cryptography"]["purl"]])
    hashed = [part for part in bill["components"] if "hashes" in part]
    assert len(hashed) > 60 and "hashes" not in named["torch"]
    assert all(re.fullmatch("[0-9a-f]{64}", part["hashes"][0]["content"]) for part in hashed)
    assert "licenses" in named["numpy"] and bill["metadata"]["timestamp"] == "2020-09-13T12:26:40Z"
