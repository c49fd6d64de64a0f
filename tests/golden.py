"""Golden values: what every method computes, down to the last bit, to prove that a refactoring changes nothing.

    python tests/golden.py record FILE.json [--only METHOD ...]
    python tests/golden.py compare FILE.json [--only METHOD ...] [--strict]

Every method is trained for a few rounds, in each of its calibrations and on each kind of synthetic data that it
supports, once with seeded noise and, if it is federated, once with a fixed secret; then real clients do the same rounds
over bytes. A case has the key "method/calibration/data". `compare` computes everything again and exits with 1 if a
value differs. Sentences are for people and may be reworded: differences between texts, and renamed keys, are listed but
do not count unless `--strict` is given. A field that cannot be computed holds the reason as {"unavailable": ...}.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from typer.testing import CliRunner

import veilrec
from veilrec.audit.contract_subject import subjects
from veilrec.cli.main import app
from veilrec.core.errors import VeilrecError
from veilrec.data.population import ItemTable
from veilrec.methods.base import setting_names
from veilrec.methods.news import text_vectors
from veilrec.methods.registry import METHODS, get
from veilrec.models import text_embeddings
from veilrec.runs.request import PreparedRun, RunRequest, prepare
from veilrec.runs.training import train
from veilrec.simulation.real_clients import RealRun
from veilrec.simulation.simulation import Simulation

SEED, ROUNDS, LIST_LENGTH = 1, 3, 10
MORE_ROUNDS = {"veil": 6}  # for all its phases
SECRET = bytes(range(32))
DATA = {
    "synthetic-ratings": "synthetic-ratings:users=80,items=160,mean_history=8,seed=3",
    "synthetic-news": "synthetic-news:users=60,news=200,days=3,seed=3",
}
# A method takes those that it has.
TINY = "cohort.size=12 batch=64 size.word_dim=8 size.heads=2 size.head_dim=4 size.attention=4 size.category_dim=4"
# Settings under which a method goes through other code than it usually does: (method, calibration, settings).
OTHER_WAYS = (
    ("fedmf-lean", None, ("row_share=0.5", "server.momentum=0.5")),
    ("fedmf-sub-rr", None, ("selection.fresh=true",)),
    ("dp-fedmf", "proven", ("cohort.sampling=fixed",)),
    ("priv-fedmf-sub", "proven", ("selection.unit=click", "cohort.sampling=poisson")),
    ("priv-fedmf-sub", "as-published", ("selection.reports=cohort", "selection.fresh=true")),
    ("privaterec", "proven", ("training=sums",)),
    ("privaterec", "proven", ("training=reports", "cohort.sampling=cyclic")),
)
RESULTS = ("metrics", "baselines", "communication", "noise", "comparison", "before_and_after", "publishable")
CHANGING = ("created", "made_by", "key", "signature", "rotations", "files")  # in a manifest; files are read below
DIGEST = "sha256:"  # how a text begins that counts as a value wherever it stands
WITH_TEXT = ("settings", "result", "statement", "manifest")  # fields whose other texts are words
UNAVAILABLE = "unavailable"


class Case(NamedTuple):
    """One method, as it is trained here."""

    method: str
    calibration: str | None
    data: str
    settings: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return "/".join([self.method, ",".join([self.calibration or "usual", *self.settings]), self.data])

    def request(self) -> RunRequest:
        known = setting_names(get(self.method).config)
        chosen = [setting for setting in TINY.split() if setting.partition("=")[0] in known]
        calibration = [] if self.calibration is None else [f"calibration={self.calibration}"]
        settings = (*calibration, *chosen, *self.settings)
        rounds = MORE_ROUNDS.get(self.method, ROUNDS)
        return RunRequest(self.method, DATA[self.data], seed=SEED, rounds=rounds, settings=settings)


def all_cases(only: list[str]) -> Iterator[Case]:
    for name in METHODS:
        calibrations = dict.fromkeys(subject.calibration for subject in subjects(name))
        ways = [(calibration, ()) for calibration in calibrations]
        ways += [(calibration, settings) for method, calibration, settings in OTHER_WAYS if method == name]
        for calibration, settings in ways:
            for data in DATA:
                if data in get(name).datasets and (not only or name in only):
                    yield Case(name, calibration, data, settings)


def digest(content: bytes) -> str:
    return DIGEST + hashlib.sha256(content).hexdigest()


def tensors(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """A hash of every array, by its type, shape and bytes; sorted, so that names do not matter."""
    return sorted(f"{digest(np.ascontiguousarray(a).tobytes())} {a.dtype.str} {list(a.shape)}" for a in arrays.values())


def file_value(path: Path, left_out: tuple[str, ...] = ()) -> Any:
    """What a file says: hashes of tensors, the contents of JSON, or the lines of prose; of other bytes a hash."""
    if path.suffix == ".safetensors":
        return tensors(load_file(path))
    if path.suffix not in (".json", ".md"):
        return digest(path.read_bytes())
    text = path.read_text(encoding="utf-8")
    for part in left_out:
        text = text.replace(part, "...")
    return json.loads(text) if path.suffix == ".json" else text.splitlines()


def manifest(run: veilrec.Run, folder: Path) -> dict[str, Any]:
    """The manifest of a release of the run, without times and keys, and the contents of its files."""
    release = run.release(folder / "release", key=folder / "signing.key", unprotected=True)
    left_out = tuple(str(release.manifest[name]) for name in ("created", "made_by"))
    kept = {name: value for name, value in release.manifest.items() if name not in CHANGING}
    return kept | {"files": {name: file_value(release.folder / name, left_out) for name in release.manifest["files"]}}


def statement(run: veilrec.Run) -> dict[str, Any]:
    told = CliRunner().invoke(app, ["privacy", "show", str(run.folder), "--json"], catch_exceptions=False)
    parts: dict[str, Any] = json.loads(told.stdout)
    return {name: value for name, value in parts.items() if value != str(run.folder)}


def recommendations(run: veilrec.Run, users: list[str]) -> dict[str, Any]:
    """The lists of some users, and of somebody new who has used what the first of them is recommended."""
    lists = {f"user {place}": run.recommend(user=user, k=LIST_LENGTH) for place, user in enumerate(users)}
    lists["new"] = run.recommend([best.item for best in lists["user 0"][:3]], k=LIST_LENGTH)
    return {who: [[best.item, best.score] for best in found] for who, found in lists.items()}


def attempt(compute: Callable[[], Any]) -> Any:
    """What a computation gives, or why there is nothing: the package refuses, or fails, which is shown."""
    try:
        return compute()
    except VeilrecError as refused:
        return {UNAVAILABLE: str(refused)}
    except Exception as failure:
        traceback.print_exc()
        return {UNAVAILABLE: f"{type(failure).__name__}: {failure}"}


def of_run(prepared: PreparedRun, folder: Path) -> dict[str, Any]:
    """Train to the end; everything that can be said about the run."""
    train(prepared, folder / "run")
    run = veilrec.open(folder / "run")
    users = [prepared.population.users[number] for number in range(3)]
    return {
        "weights_sha256": run.result["weights_sha256"],
        "tensors": {str(file.relative_to(run.folder)): file_value(file) for file in run.folder.glob("*/*.safetensors")},
        "result": {name: run.result.get(name) for name in RESULTS},
        "statement": attempt(lambda: statement(run)),
        "recommendations": attempt(lambda: recommendations(run, users)),
        "manifest": attempt(lambda: manifest(run, folder)),
    }


class Tap:
    """A client whose calls are noted, as (bytes given, bytes returned), if bytes come of them."""

    def __init__(self, client: Any, calls: list[tuple[bytes, bytes]]) -> None:
        self._client, self._calls = client, calls

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            told = getattr(self._client, name)(*given)
            if isinstance(told, bytes):
                self._calls.append((b"".join(part for part in given if isinstance(part, bytes)), told))
            return told

        return call


class TappedRun(RealRun):
    """Real rounds that keep every broadcast and message."""

    calls: list[tuple[bytes, bytes]]

    def client(self, name: str) -> Any:
        return Tap(super().client(name), self.calls)


def of_clients(simulation: Simulation, rounds: int, folder: Path) -> dict[str, Any]:
    """Run the rounds by real clients: the first broadcast, message and report, and all of them together."""
    real = TappedRun(folder / "clients", simulation.plan, simulation.data, simulation.seeds)
    real.calls = []
    try:
        for _ in range(rounds):
            real.step()
        verdict, state = real.compare(), real.coordinator.server_state.state()
    finally:
        real.close()
    kinds = {
        "broadcast": [heard for heard, _ in real.calls if heard],
        "message": [told for heard, told in real.calls if heard],
        "report": [told for heard, told in real.calls if not heard],
    }
    found: dict[str, Any] = {"tensors": tensors(state), "verdict": None if verdict is None else verdict.to_json()}
    for kind, sent in kinds.items():
        if sent:
            found[kind] = {"first": digest(sent[0]), "length": len(sent[0]), "all": digest(b"".join(sent))}
            found[kind] |= {"count": len(sent), "total_length": sum(map(len, sent))}
    return found


def golden(case: Case) -> dict[str, Any]:
    request = case.request()
    found: dict[str, Any] = {"settings": list(request.settings)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found |= attempt(lambda: of_run(prepare(request), folder / "seeded"))
        if get(case.method).plan is not None:
            secret = replace(request, noise="secure")
            told = attempt(lambda: of_run(prepare(secret, secret=SECRET), folder / "secure"))
            found |= {f"secure {field}": value for field, value in told.items()}
            found["clients"] = attempt(
                lambda: of_clients(prepare(secret, secret=SECRET).trainer, request.rounds, folder)
            )
    return json.loads(json.dumps(found))


def sentence_vectors(catalogue: ItemTable) -> NDArray[np.float32]:
    """Stands in for the language model, whose package need not be there."""
    return np.random.default_rng(4).standard_normal((len(catalogue.titles), 384), np.float32) / np.float32(384**0.5)


def compute(only: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every case with its values; progress on standard error."""
    cases = list(all_cases(only))
    fake_vectors = patch.object(text_vectors, text_vectors.whole_vectors.__name__, sentence_vectors)
    fake_folder = patch.object(text_embeddings, text_embeddings.model_folder.__name__, Path)
    with fake_vectors, fake_folder:
        for number, case in enumerate(cases, 1):
            started = time.perf_counter()
            found = golden(case)
            print(f"{number}/{len(cases)} {case.key} {time.perf_counter() - started:.1f} s", file=sys.stderr)
            yield case.key, found


def leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every single value with its path; an empty list or mapping is one."""
    if not value or not isinstance(value, list | dict):
        yield path, value
        return
    for name, part in enumerate(value) if isinstance(value, list) else value.items():
        yield from leaves(part, (*path, str(name)))


def is_word(path: tuple[str, ...], leaf: Any) -> bool:
    """Whether a leaf is text for people."""
    has_text = path[0].removeprefix("secure ") in WITH_TEXT or path[-1] == UNAVAILABLE
    return isinstance(leaf, str) and has_text and not leaf.startswith(DIGEST)


class Differences:
    """What differs: values by case, words and renamed keys with the number of times that each is found."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.words: Counter[str] = Counter()
        self.renamed: Counter[str] = Counter()

    def add_case(self, key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Compare all fields of a case; where all tensors are the same, a hash that covers their names may differ."""
        changed = {}
        for field in sorted(before.keys() | after.keys()):  # tensors come before weights_sha256
            found = self._field(field, before.get(field, {}), after.get(field, {}))
            tensors_of = field.replace("weights_sha256", "tensors")
            if found and field != tensors_of and field in before and changed.get(tensors_of) == []:
                self.renamed[f"{field}: only names of tensors differ"] += 1
            else:
                self.values += [f"{key}: {line}" for line in found]
            changed[field] = found

    def _field(self, field: str, before: Any, after: Any) -> list[str]:
        """The values that differ: under the same key exactly, the others as a multiset whatever their keys are."""
        old, new = dict(leaves(before, (field,))), dict(leaves(after, (field,)))
        added: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for path in sorted(new.keys() - old.keys(), reverse=True):
            added[json.dumps(new[path])].append(path)
        pairs = [(path, path) for path in old if path in new]
        for path in sorted(old.keys() - new.keys()):
            same = added[json.dumps(old[path])]
            pairs.append((path, same.pop() if same else None))
        pairs += [(None, path) for paths in added.values() for path in paths]
        found = []
        for left, right in pairs:
            was, now = ("nothing" if p is None else json.dumps(of[p]) for p, of in ((left, old), (right, new)))
            names = ["/".join(path) for path in dict.fromkeys((left, right)) if path is not None]
            if was == now and len(names) > 1:
                self.renamed[" -> ".join(names)] += 1
            elif was != now and all(
                path is None or is_word(path, of[path]) for path, of in ((left, old), (right, new))
            ):
                self.words[f"{names[0]}: {was} -> {now}"] += 1
            elif was != now:
                found.append(f"{names[0]}: {was} -> {now}")
        return found

    def show(self) -> None:
        for title, counted in (("renamed", self.renamed), ("words", self.words)):
            for line, times in counted.items():
                print(f"{title} ({times} times): {line}")
        for line in self.values:
            print(f"values: {line}")
        print(f"{len(self.values)} values, {len(self.words)} words and {len(self.renamed)} renamed keys differ")


def main() -> int:
    parser = argparse.ArgumentParser(description="Golden values of every method.")
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD")
    parser.add_argument("--strict", action="store_true", help="words and renamed keys count as well")
    asked = parser.parse_args()
    if asked.action == "record":
        asked.file.write_text(json.dumps(dict(compute(asked.only)), indent=1, sort_keys=True), encoding="utf-8")
        return 0
    recorded = json.loads(asked.file.read_text(encoding="utf-8"))
    before = {key: case for key, case in recorded.items() if not asked.only or key.split("/")[0] in asked.only}
    after, found = dict(compute(asked.only)), Differences()
    for key in [*before, *(key for key in after if key not in before)]:
        found.add_case(key, before.get(key, {}), after.get(key, {}))
    found.show()
    return int(bool(found.values or (asked.strict and (found.words or found.renamed))))


if __name__ == "__main__":
    sys.exit(main())
