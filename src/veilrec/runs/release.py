"""From a run to a release: what clients and servers load, signed, with only what a proof covers in it.

A run that is not publishable (no proof, or noise that can be drawn again) is released only when that is asked for, and
the release says so wherever it is shown.

The model card of a release: what it is, what it was learnt from, what it promises, and what it is not good for.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment
from numpy.typing import NDArray
from safetensors.numpy import save_file

from veilrec._version import __version__
from veilrec.client.recommender import QueryBudget
from veilrec.core.errors import BadInput
from veilrec.core.files import new_folder
from veilrec.data.datasets import SYNTHETIC
from veilrec.data.population import Strings
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.checkpoint import read_config, read_result, trained_padding
from veilrec.runs.model_files import ModelFiles, find_model, load_guarantee, load_model
from veilrec.runs.noise import kept_obstacle
from veilrec.runs.release_model import parts_of
from veilrec.wire.releases import (
    FORMAT,
    MANIFEST,
    MOMENT,
    NEEDS,
    Release,
    describe_file,
    open_release,
    promise_of,
    sign_release,
)
from veilrec.wire.signing import Sentence, SigningKey, follow

CARD = "model-card.md"
_MOST_DAYS = 3660


def model_card(manifest: Mapping[str, Any], left_out: Sequence[str] = ()) -> str:
    """As Markdown."""
    template = Path(__file__).with_name("model-card.md.j2").read_text(encoding="utf-8")
    environment = Environment(trim_blocks=True, keep_trailing_newline=True)  # noqa: S701  (no HTML)
    return environment.from_string(template).render(
        m=manifest,
        promise=promise_of(manifest),
        guarantee=Guarantee.from_json(manifest["guarantee"]),
        queries=(*queries_of(manifest), *(f"not offered: {reason}" for reason in left_out)),
    )


def queries_of(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """What a client may send to be recommended something, and what its ledger lets all of it cost together."""
    if not manifest["offers"]:
        return ("Nothing: a client ranks by itself.",)
    told = ["Nothing, if it ranks by itself; or one of these queries, drawn once a version, the same again for free."]
    for offer in manifest["offers"]:
        what = "interests" if offer["kind"] == "interest" else "numbers"
        line = Guarantee.from_json(offer["guarantee"]).line()
        told.append(f"`{offer['mode']}`, {offer['size']} {what}: {line}.")
        if offer["mode"] == "plain":
            told.append("After one `plain` query, the ledger of a client promises nothing any more.")
    budgets = "; ".join(budget.line("version") for budget in QueryBudget().budgets())
    return (*told, f"All private queries of a client together, unless its user sets other budgets: {budgets}.")


@dataclass(frozen=True)
class ReleaseOptions:
    """How a release is to be."""

    name: str | None = None  # METHOD-DATASET
    version: int | None = None  # one more than what lies there
    unprotected: bool = False
    offers: Sequence[str] | None = None  # as MODE:EPSILON[:DELTA], or plain
    metrics: bool = False  # whether exact figures, which no proof covers, go into the model card
    days: int = 90  # for which it is good


def make_release(
    run: Path, out: Path, key: SigningKey, wishes: ReleaseOptions, sentences: Sequence[Sentence] = ()
) -> Release:
    """Release the model of a run into a folder, in the place of an older version of the same name.

    The rotations and revocations of that version go with it, before those that are given. Equal runs give equal bytes
    but for the times of the manifest and of the card; those are SOURCE_DATE_EPOCH's where that is set.
    """
    config, result = read_config(run), read_result(run)
    files = load_model(find_model(run))
    obstacle = refuse_unpublishable(run, wishes)
    name = _name_of(wishes, config, result)
    earlier = _earlier(out, key, sentences)
    sentences = tuple(dict.fromkeys([*(earlier.keys if earlier else ()), *sentences]))
    version = _version_of(wishes, earlier, name)
    parts = parts_of(files, wishes.offers, trained_padding(run))
    made = _made()
    if not 1 <= wishes.days <= _MOST_DAYS:
        raise BadInput(f"the release cannot be good for {wishes.days} days: give 1 to {_MOST_DAYS}")
    with new_folder(out, replace=earlier is not None) as folder:
        (folder / "model").mkdir()
        for file in parts.model_files:  # by name: nothing else that lies beside them
            if (find_model(run) / file).exists():
                shutil.copyfile(find_model(run) / file, folder / "model" / file)
        for file, arrays in ({"items.safetensors": _items(files)} | parts.arrays).items():
            save_file({key: np.array(values, order="C") for key, values in arrays.items()}, folder / file)
        manifest = {
            "format": FORMAT,
            "minimum_client": NEEDS.get(parts.family, 1),
            "name": name,
            "version": version,
            "created": made.strftime(MOMENT),
            "expires": (made + timedelta(days=wishes.days)).strftime(MOMENT),
            "made_by": f"veilrec {__version__}",
            "method": files.method,
            "family": parts.family,
            "protected": obstacle is None,
            "why_unprotected": [] if obstacle is None else [obstacle],
            "guarantee": replace(files.guarantee, obstacle=obstacle or "").to_json(),
            "sizes": {"items": len(files.items)} | {k: getattr(parts, k) for k in ("dim", "interests", "longest")},
            "encoder": parts.encoder,
            "offers": parts.offers,
            "data": {"dataset": str(result.get("dataset", "")), "protocol": str(result.get("protocol", ""))},
            "figures": _figures(result, files.guarantee, wishes)
            | {"offers": list(parts.kept), "not_offered": list(parts.left_out)},
        }
        (folder / CARD).write_text(model_card(manifest, parts.left_out), encoding="utf-8")
        for path in folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        listed = sorted(path for path in folder.rglob("*") if path.is_file())
        described = {path.relative_to(folder).as_posix(): describe_file(path) for path in listed}
        sign_release(folder, manifest | {"files": described}, key, sentences)
    return open_release(out, trusted=key.public)


def _made() -> datetime:
    """The time of a release; SOURCE_DATE_EPOCH, in seconds since 1970, where bytes have to be the same again."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        return datetime.now(UTC) if given is None else datetime.fromtimestamp(int(given), UTC)
    except (ValueError, OverflowError, OSError):
        raise BadInput(f"SOURCE_DATE_EPOCH is {given!r}: give whole seconds since 1970, or unset it") from None


def refuse_unpublishable(run: Path, wishes: ReleaseOptions) -> str | None:
    """Why no proof covers a run, if its owner releases it all the same; None where one does."""
    read_result(run)
    guarantee = load_guarantee(find_model(run))
    obstacle = kept_obstacle(guarantee, str(read_config(run).get("noise", "seeded")))
    if obstacle is not None and not wishes.unprotected:
        raise BadInput(
            f"{run} is not publishable: {obstacle}. Train a private method with --noise secure, or give --unprotected;"
            " the release and every page made from it then say so"
        )
    return obstacle


def _name_of(wishes: ReleaseOptions, config: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    name = wishes.name or f"{config['method']}-{result.get('dataset', 'data')}"
    plain = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")
    if not plain or (wishes.name is not None and plain != wishes.name):
        raise BadInput(
            f"the name {name!r} is not allowed: give small letters, digits, dots and dashes"
            + (f", such as {plain}" if plain else "")
        )
    return plain[:100]


def _earlier(out: Path, key: SigningKey, sentences: Sequence[Sentence]) -> Release | None:
    """The release that lies in the folder, if this key may follow it; anything else there is refused."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / MANIFEST).is_file():
        raise BadInput(f"{out} is not empty and no release: choose another --out")
    earlier = open_release(out, clock=None)
    if key.public not in follow(earlier.key, sentences, earlier.revoked):
        raise BadInput(
            f"{out} was signed by another key, or this key was revoked: sign with the key of {out}, or hand over to the"
            " new key with `veilrec release keygen NEW --rotates OLD` and give --rotation"
        )
    return earlier


def _version_of(wishes: ReleaseOptions, earlier: Release | None, name: str) -> int:
    if earlier is not None and earlier.name != name:
        raise BadInput(f"the folder holds {earlier.name}, and this is {name}: choose another --out, or give --name")
    least = 1 if earlier is None else earlier.version + 1
    version = least if wishes.version is None else wishes.version
    if version < least:
        raise BadInput(f"version {version} is not later than what lies there: give at least {least}")
    return version


def _items(files: ModelFiles) -> dict[str, NDArray[Any]]:
    count = len(files.items)
    titles = files.titles if files.titles is not None else Strings.of([""] * count)
    own = list(files.categories) if files.categories is not None else [""] * count
    names = sorted(set(own) - {""})
    code = {name: number for number, name in enumerate(names)}
    arrays: dict[str, NDArray[Any]] = {}
    for name, strings in (("ids", files.items), ("titles", titles), ("categories", Strings.of(names))):
        arrays |= {f"{name}.offsets": strings.offsets, f"{name}.data": strings.data}
    return arrays | {"category": np.array([code.get(name, -1) for name in own], np.int32)}


def _figures(result: Mapping[str, Any], guarantee: Guarantee, wishes: ReleaseOptions) -> dict[str, Any]:
    """Return the figures to show: all of synthetic data, of people's only what was asked for, with a remark."""
    covered = {"rounds": result["rounds"]}
    main = {name: round(float(value), 4) for name, value in list(result["metrics"].items())[:4]}
    if str(result.get("dataset", "")) in SYNTHETIC:  # of nobody: every figure may be shown
        return covered | {"metrics": main, "about": "Measured on synthetic data, which is nobody's."}
    if wishes.metrics:
        about = "Exact figures of real people, which the guarantee does not cover; shown because that was asked for."
        return covered | {"metrics": main, "about": about}
    return covered | {"about": "Exact metrics are of real people and not covered by the guarantee: they are left out."}
