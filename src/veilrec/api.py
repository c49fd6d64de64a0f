"""Python API: load a dataset, train, open, evaluate and release a run, open a client, audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from veilrec.core.errors import BadInput
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.checkpoint import check_out, read_result

if TYPE_CHECKING:
    from veilrec.client.queries import Serving
    from veilrec.client.recommender import RecommenderClient
    from veilrec.data.population import Population
    from veilrec.runs.comparison import MethodComparison
    from veilrec.runs.saved import Recommendation, SavedModel
    from veilrec.wire.releases import Release


@dataclass(frozen=True)
class Run:
    """A finished run; it needs nothing but its folder, except `evaluate`, which needs the data."""

    folder: Path
    method: str | None = None
    """File of the method that trained the run, if the method is not installed and ranks in its own way."""

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """Contents of result.json: metrics, baselines, bytes, seconds."""
        return read_result(self.folder)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics on the test part of the run's protocol."""
        metrics: Mapping[str, float] = self.result["metrics"]
        return metrics

    @property
    def guarantee(self) -> Guarantee:
        """Privacy guarantee, with unit, adjacency, scope, trust and basis."""
        return Guarantee.from_json(self.result["guarantee"])

    @cached_property
    def model(self) -> SavedModel:
        """The model with its vocabularies."""
        from veilrec.runs.saved import open_model

        return open_model(self.folder, self.method)

    def recommend(
        self,
        history: Sequence[str] | None = None,
        *,
        user: str | None = None,
        about: Mapping[str, str | float] | None = None,
        k: int = 10,
    ) -> list[Recommendation]:
        """Recommend items for a history of item ids, the latest last, or for a user of the run.

        Unknown items are skipped; `Run.model.split_history` lists them. `about` holds features of a new user by name,
        for methods that read them.
        """
        if (history is None) == (user is None):
            raise BadInput("give either a history of item ids or a user of the run")
        if isinstance(history, str):
            raise BadInput(f"the history is the text {history!r}: give a list of item ids, [{history!r}]")
        if k < 1:
            raise BadInput(f"k is {k}: ask for at least 1 item")
        if history is not None:
            return self.model.recommend(history, k, about)
        if about:
            raise BadInput("about is for somebody new: give a history with it, or [] for none")
        return self.model.recommend_user(str(user), k)

    def evaluate(
        self,
        protocol: str | None = None,
        *,
        data: str | None = None,
        metrics: Literal["main", "all"] = "main",
        per_user: str | Path | None = None,
        personalisation: bool = False,
    ) -> dict[str, Any]:
        """Evaluate again, by another protocol or data if given; returns what `veilrec evaluate --json` prints.

        `metrics="all"` adds metrics of whole lists; `per_user` is a .csv or .parquet file for the metrics of every
        case; `personalisation` adds metrics of new users by the number of items given.
        """
        from veilrec.runs.evaluation import evaluate_run

        file = None if per_user is None else Path(per_user)
        return evaluate_run(
            self.folder,
            protocol,
            data,
            metrics=metrics,
            per_user=file,
            personalisation=personalisation,
            method=self.method,
        )

    def serve(self, serving: Serving, protocol: str | None = None, *, data: str | None = None) -> dict[str, Any]:
        """Evaluate a serving mode, such as `Serving(mode="pooled", epsilon=5.0, delta=1e-6)`.

        Returns what `veilrec evaluate --serving ... --json` prints; `Serving` is in `veilrec.client.queries`.
        """
        from veilrec.runs.serving import evaluate_serving

        return evaluate_serving(self.folder, serving, protocol, data, method=self.method)

    def release(
        self,
        out: str | Path,
        *,
        key: str | Path,
        name: str | None = None,
        version: int | None = None,
        offers: Sequence[str] | None = None,
        unprotected: bool = False,
    ) -> Release:
        """Write a signed release, as `veilrec release`; a missing key file is made."""
        from veilrec.runs.release import ReleaseOptions, make_release, refuse_unpublishable
        from veilrec.wire.signing import new_key, read_key

        wishes = ReleaseOptions(name, version, unprotected, offers)
        refuse_unpublishable(self.folder, wishes)
        place = Path(key)
        signing = read_key(place) if place.exists() else new_key(place)
        return make_release(self.folder, Path(out), signing, wishes)


def open_client(
    release: str | Path | Release, state: str | Path, *, server: str | None = None, trust: str | None = None
) -> RecommenderClient:
    """Open the client whose state is kept in a folder, with a release.

    `server` is the address of `veilrec serve`, `trust` a public key that the release has to be signed by.
    """
    from veilrec.client.recommender import ServerLink
    from veilrec.runs import release_model
    from veilrec.wire.releases import Release, open_release
    from veilrec.wire.signing import read_public

    if not isinstance(release, Release):
        release = open_release(Path(release), trusted=None if trust is None else read_public(trust))
    return release_model.open_client(Path(state), release, server=None if server is None else ServerLink(server))


def load(data: str) -> Population:
    """Load a dataset by name or NAME:PATH, as `--data` of the commands."""
    from veilrec.data.datasets import load as read

    return read(data)


def train(
    method: str | None = None,
    data: str | None = None,
    *,
    config: str | Path | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    rounds: int | None = None,
    protocol: str | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    noise: Literal["seeded", "secure"] | None = None,
    start_from: str | Path | Run | None = None,
    people: int | None = None,
    public_catalogue: bool | None = None,
) -> Run:
    """Train a method and save the run; `settings` are those of `--set`, as a mapping or as "name=value".

    `config` is a config.yaml or best.yaml; what is given here overrides it. `start_from` is an earlier run, for a warm
    start from its model. `people` is the public number of clients that noise is chosen for; `public_catalogue` says
    that anybody may know the items, where no table lists them.
    """
    from veilrec.runs.config_file import as_settings, make_request, read_config_file
    from veilrec.runs.request import default_out, prepare
    from veilrec.runs.training import train as run_to_the_end

    earlier = start_from.folder if isinstance(start_from, Run) else start_from
    asked: dict[str, Any] = {
        "method": method,
        "data": data,
        "seed": seed,
        "protocol": protocol,
        "preset": preset,
        "rounds": rounds,
        "noise": noise,
        "start_from": earlier,
        "people": people,
        "public_catalogue": public_catalogue,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    file = None if config is None else read_config_file(Path(config))
    request, _ = make_request(file, given, as_settings(settings))
    folder = default_out(request) if out is None else Path(out)
    check_out(folder, resume=False)
    run_to_the_end(prepare(request), folder)
    return Run(folder)


def compare(
    methods: Sequence[str],
    data: str,
    *,
    seeds: int = 3,
    protocol: str | None = None,
    preset: str | None = None,
    rounds: int | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    metric: str | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
) -> MethodComparison:
    """Train missing runs and compare, as `veilrec compare` without its files; see `table` and `pairs` of the result.

    A method may have settings of its own: "dp-fedmf:privacy.epsilon=4".
    """
    from veilrec.runs import comparison
    from veilrec.runs.config_file import as_settings

    if isinstance(methods, str):
        raise BadInput(f"methods is the text {methods!r}: give a list of methods, [{methods!r}]")
    return comparison.compare(
        methods,
        data,
        seeds=seeds,
        protocol=protocol,
        preset=preset,
        rounds=rounds,
        settings=as_settings(settings),
        metric=metric,
        out=None if out is None else Path(out),
        jobs=jobs,
    )


def open(folder: str | Path, *, method: str | None = None) -> Run:
    """Open a finished run; `method` is the file of a custom method that ranks in its own way."""
    run = Run(Path(folder), method)
    read_result(run.folder)  # refuses a folder that is no finished run
    return run


def run_audit(name: str, *, quick: bool = True, seed: int = 0) -> dict[str, Any]:
    """Audit a method, a mechanism or a serving mode; returns what `veilrec audit NAME --json` prints."""
    from veilrec.methods.registry import exists

    if exists(name):
        from veilrec.audit.method import audit_method

        return audit_method(name, quick=quick, seed=seed).to_json()
    from veilrec.audit import auditor
    from veilrec.audit.auditor import serving_cases, serving_names

    cases = serving_cases(name) if name in serving_names() else auditor.select(name)
    result = auditor.audit(cases, quick=quick, seed=seed)
    return {"mechanisms": [verdict.to_json() for verdict in result.verdicts], "passed": result.passed}
