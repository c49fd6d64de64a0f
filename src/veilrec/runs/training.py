"""A prepared run trained to the end, measured and saved: what `veilrec train` does."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from veilrec._files import write_json, write_text
from veilrec.errors import BadInput
from veilrec.evaluate.evaluator import evaluate
from veilrec.evaluate.impressions import marks_of
from veilrec.evaluate.split import Split
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.registry import get
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs import checkpoint
from veilrec.runs.checkpoint import Progress
from veilrec.runs.folder import CONFIG, RESULT, check_out, read_config
from veilrec.runs.loop import Listener, run
from veilrec.runs.model_files import Devices, ModelFiles, save_devices, save_model
from veilrec.runs.noise import keep_secret, kept_secret, obstacle
from veilrec.runs.request import PreparedRun

BASELINES = ("popularity", "random")


def train(
    prepared: PreparedRun, out: Path, *, resume: bool = False, listeners: Sequence[Listener] = ()
) -> dict[str, Any]:
    """Run to the end in the folder `out` and return what result.json says."""
    check_out(out, resume=resume)
    _open_folder(out, prepared, resume=resume)
    split = prepared.split
    cases, name = (split.test, "test") if split.valid is None else (split.valid, "valid")
    progress = run(
        out,
        prepared.trainer,
        prepared.schedule,
        lambda model: evaluate(cases, split.train, model),
        split_name=name,
        listeners=tuple(listeners),
        resume=resume,
    )
    _save(out, prepared)
    result = _result(prepared, progress)
    write_json(out / RESULT, result)
    return result


def _open_folder(out: Path, prepared: PreparedRun, *, resume: bool) -> None:
    """Write what a run is before its first round, its secret first; or see that it is the run that was asked for."""
    description = prepared.description()
    if resume:
        _refuse_another(out, prepared, description)
    elif prepared.secret is not None:
        keep_secret(out, prepared.secret)
    write_text(out / CONFIG, yaml.safe_dump(description, sort_keys=False, allow_unicode=True))


def _refuse_another(out: Path, prepared: PreparedRun, description: Mapping[str, Any]) -> None:
    saved = {"noise": "seeded"} | read_config(out)
    free = {"veilrec", "checkpoint_every"}
    if not prepared.method.rounds_are_fixed:
        free.add("rounds")  # a run can be made longer, but not one whose noise was chosen for its length
    differing = [key for key in description if key not in free and saved.get(key) != description[key]]
    if differing:
        key = differing[0]
        raise BadInput(
            f"cannot resume {out}: its {key} is {saved.get(key)!r}, now asked for {description[key]!r};"
            " use the same settings, or another --out"
        )
    if prepared.secret is not None and prepared.secret != kept_secret(out):
        raise BadInput(f"cannot resume {out} with another secret than its own: its noise would be drawn twice")


def _save(out: Path, prepared: PreparedRun) -> None:
    """What may be shared, and beside it what stays on devices."""
    parts, population, split = prepared.trainer.parts(), prepared.population, prepared.split
    save_devices(
        out,
        Devices(
            users=population.users,
            trained_on=split.train,
            used=population.interactions.pairs(),
            states=parts.private,
            learnt_from=None if split.train_impressions is None else marks_of(split.train_impressions),
        ),
    )
    model = ModelFiles(
        method=prepared.request.method,
        ranker=parts.ranker,
        weights=parts.weights,
        sent=parts.sent,
        items=population.items,
        titles=None if population.catalogue is None else population.catalogue.titles,
        guarantee=prepared.guarantee(),
    )
    save_model(out, model)


def measure_baselines(split: Split, seed: int) -> dict[str, dict[str, float]]:
    """Popularity and random on the same test cases."""
    measured = {}
    for name in BASELINES:
        method = get(name)
        config, _ = configure(method, preset="tuned", dataset="")
        trainer = make_trainer(method, config, Problem(split.train, split.n_items, seed))
        trainer.step(0)
        measured[name] = evaluate(split.test, split.train, trainer.model())
    return measured


def _result(prepared: PreparedRun, progress: Progress) -> dict[str, Any]:
    r, split, method = prepared.request, prepared.split, prepared.method
    metrics = evaluate(split.test, split.train, prepared.trainer.model())
    communication = {
        "down_bytes": progress.down_bytes,
        "up_bytes": progress.up_bytes,
        "down_params": progress.down_params,
        "up_params": progress.up_params,
        "selection_bytes": progress.selection_bytes,
    }
    if method.item_parameters is not None:  # the communication paper's convention: one way, item vectors only
        communication["paper_params"] = progress.paper_params
    baselines = measure_baselines(split, r.seed)
    guarantee = with_popularity(prepared.guarantee(), metrics, baselines["popularity"])
    return {
        "method": r.method,
        "dataset": prepared.population.name,
        "seed": r.seed,
        "rounds": progress.rounds_done,
        "protocol": split.protocol,
        "preset": r.preset,
        "metrics": metrics,
        "baselines": baselines,
        "guarantee": guarantee.to_json(),
        "publishable": obstacle(guarantee, r.noise) is None,
        "noise": (prepared.plan and prepared.plan.mechanism.facts()) or None,
        "communication": communication,
        "seconds": round(progress.seconds, 3),
        "clients_per_second": round(progress.clients_per_second, 1),
        "peak_rss_mb": round(peak_rss_mb(), 1),
        "best_round": progress.best_round or progress.rounds_done,
        "stopped_early": progress.stopped_early,
        "weights_sha256": checkpoint.digest(prepared.trainer.state()),
    }


def with_popularity(guarantee: Guarantee, metrics: Mapping[str, float], popularity: Mapping[str, float]) -> Guarantee:
    """A private model that ranks no better than the items' counts says so."""
    if guarantee.basis == "none" or metrics.get("ndcg@10", 1.0) > popularity.get("ndcg@10", 0.0):
        return guarantee
    caveat = "This run ranks no better than popularity, which can be released at a far smaller epsilon: use that."
    return replace(guarantee, caveats=(*guarantee.caveats, caveat))


def peak_rss_mb() -> float:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
