"""The run loop, on a trainer whose whole state is one number."""

import json
import os
import signal

import numpy as np
import pytest

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.runs import checkpoint
from veilrec.runs import loop as run_module
from veilrec.runs.checkpoint import Progress
from veilrec.runs.loop import Interrupted, Schedule, make_loggers, run
from veilrec.simulation.simulation import StepReport


class Counter:
    """Adds (round + 1) every round: the sum tells exactly which rounds were done."""

    def __init__(self, interrupt_at=None):
        self.total = 0
        self.interrupt_at = interrupt_at

    def step(self, number):
        self.total += number + 1
        if number == self.interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
        return StepReport(clients=2, down_bytes=10, up_bytes=5, down_params=3, up_params=1, loss=0.5)

    def model(self):
        return self

    def state(self):
        return {"total": np.array([self.total])}

    def load_state(self, state, steps_done):
        self.total = int(state["total"][0])


def metric(model):
    return {"ndcg@10": float(model.total)}


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_counts_evaluates_checkpoints_and_tells_listeners(tmp_path):
    heard = []

    class Ear:
        def on_round(self, progress, report):
            heard.append(("round", progress.rounds_done, report.loss))

        def on_metrics(self, progress, metrics):
            heard.append(("metrics", progress.rounds_done, metrics["ndcg@10"]))

    trainer, schedule = Counter(), Schedule(rounds=7, evaluate_every=3, checkpoint_every=2)
    progress = run(tmp_path, trainer, schedule, metric, split_name="test", listeners=(Ear(),))
    assert trainer.total == 28
    assert (progress.rounds_done, progress.clients, progress.down_bytes, progress.up_params) == (7, 14, 70, 7)
    assert [(line["round"], line["split"]) for line in lines(tmp_path)] == [(3, "test"), (6, "test"), (7, "test")]
    assert checkpoint.newest(tmp_path) == checkpoint.checkpoint_path(tmp_path, 7)
    assert heard[:4] == [("round", 1, 0.5), ("round", 2, 0.5), ("metrics", 3, 6.0), ("round", 3, 0.5)]
    assert len(heard) == 7 + 3


def test_ctrl_c_finishes_the_round_writes_a_checkpoint_and_resumes_to_the_same_end(tmp_path):
    schedule = Schedule(rounds=9, evaluate_every=4, checkpoint_every=100)
    with pytest.raises(Interrupted, match="after round 5"):
        run(tmp_path, Counter(interrupt_at=4), schedule, metric, split_name="test")
    trainer = Counter()
    progress = run(tmp_path, trainer, schedule, metric, split_name="test", resume=True)
    assert (trainer.total, progress.clients) == (45, 18)
    assert [line["round"] for line in lines(tmp_path)] == [4, 8, 9]


def test_resume_forgets_what_came_after_the_checkpoint(tmp_path):
    schedule = Schedule(rounds=4, evaluate_every=1, checkpoint_every=2)
    run(tmp_path, Counter(), schedule, metric, split_name="test")
    early = checkpoint.checkpoint_path(tmp_path, 2)
    checkpoint.save(early, {"total": np.array([3])}, Progress(rounds_done=2, clients=4))
    checkpoint.checkpoint_path(tmp_path, 4).unlink()
    with (tmp_path / "metrics.jsonl").open("a") as journal:
        journal.write('{"round": 4, "metr')  # cut short by a crash
    trainer = Counter()
    run(tmp_path, trainer, schedule, metric, split_name="test", resume=True)
    assert trainer.total == 10
    assert [line["round"] for line in lines(tmp_path)] == [1, 2, 3, 4]


def rises_then_falls(model):
    return {"ndcg@10": -abs(model.total - 10.0)}  # best after round 4


def test_early_stopping_returns_to_the_best_round_and_survives_a_resume(tmp_path):
    schedule = Schedule(rounds=50, evaluate_every=1, checkpoint_every=1, patience=3)
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", Counter(interrupt_at=4), schedule, rises_then_falls, split_name="valid")
    for folder, resume in ((tmp_path / "whole", False), (tmp_path / "cut", True)):
        trainer = Counter()
        progress = run(folder, trainer, schedule, rises_then_falls, split_name="valid", resume=resume)
        assert (progress.rounds_done, progress.best_round, progress.stopped_early) == (7, 4, True)
        assert trainer.total == 10


def test_a_run_that_cannot_go_on_says_what_to_do(tmp_path):
    class Diverging(Counter):
        def step(self, number):
            return StepReport(loss=float("nan"))

    for trainer, schedule, words in (
        (Counter(), Schedule(rounds=2, evaluate_every=1, patience=1, watch="auc"), "stop early on 'auc'.*ndcg@10"),
        (Diverging(), Schedule(rounds=3), "diverged.*round 1.*lower the learning rates"),
    ):
        with pytest.raises(VeilrecError, match=words):
            run(tmp_path, trainer, schedule, metric, split_name="valid")


def test_speed_leaves_out_the_first_round_of_every_start(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(run_module.time, "perf_counter", lambda: clock[0])

    class Slow(Counter):
        def step(self, number):
            clock[0] += 10.0 if number in (0, 3) else 0.5  # the first round of a process compiles
            return super().step(number)

    progress = run(tmp_path, Slow(), Schedule(rounds=1, checkpoint_every=1), metric, split_name="test")
    assert progress.clients_per_second == pytest.approx(progress.clients / 10.0)  # nothing else to go by
    progress = run(tmp_path, Slow(), Schedule(rounds=3, checkpoint_every=1), metric, split_name="test")
    assert progress.clients_per_second == pytest.approx(progress.clients / 3 / 0.5)
    resumed = run(tmp_path, Slow(), Schedule(rounds=5, checkpoint_every=1), metric, split_name="test", resume=True)
    assert (resumed.first_seconds, resumed.learning_seconds) == (20.0, 21.5)
    assert resumed.clients_per_second == pytest.approx(resumed.clients / 5 / 0.5)


def test_a_state_comes_back_as_it_was_only_the_newest_stays_and_the_digest_sees_every_bit(tmp_path):
    state = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, 2], np.int64)}
    progress = Progress(rounds_done=7, up_bytes=2**40, best_value=0.5, metrics={"hr@10": 0.25})
    for rounds in (3, 20, 100):
        checkpoint.save(checkpoint.checkpoint_path(tmp_path, rounds), state, progress)
    newest = checkpoint.newest(tmp_path)
    assert newest == checkpoint.checkpoint_path(tmp_path, 100)
    checkpoint.prune(tmp_path, keep={newest})
    assert list((tmp_path / "checkpoints").iterdir()) == [newest]
    loaded, read = checkpoint.load(newest)
    assert (read, checkpoint.digest(loaded)) == (progress, checkpoint.digest(state))
    for content in (b"", b"not a state", b"\x10\x00\x00\x00\x00\x00\x00\x00{}"):
        newest.write_bytes(content)
        with pytest.raises(BadInput, match="not a state of a veilrec run"):
            checkpoint.load(newest)
    states = [
        {"a": np.zeros((2, 3), np.float32)},
        {"b": np.zeros((2, 3), np.float32)},
        {"a": np.zeros((3, 2), np.float32)},
        {"a": np.zeros((2, 3), np.float64)},
        {"a": np.full((2, 3), -0.0, np.float32)},
    ]
    assert len({checkpoint.digest(state) for state in states}) == 5


def follow(name, folder):
    (logger,) = make_loggers([name], folder)
    logger.on_round(Progress(rounds_done=1), StepReport(loss=0.5))
    logger.on_metrics(Progress(rounds_done=1), {"hr@10": 0.25})


def test_tensorboard_gets_loss_and_metrics(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    make_loggers(["tensorboard"], tmp_path)
    assert list(tmp_path.iterdir()) == []  # until the run has begun
    follow("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert (events.Scalars("loss")[0].value, events.Scalars("hr@10")[0].value) == (0.5, 0.25)


def test_mlflow_gets_loss_and_metrics(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    follow("mlflow", tmp_path)
    run = mlflow.last_active_run()
    mlflow.end_run()
    assert mlflow.get_run(run.info.run_id).data.metrics == {"loss": 0.5, "hr_at_10": 0.25}


def test_a_missing_extra_or_an_unknown_logger_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("veilrec.core.resources.find_spec", lambda module: None)
    for name, words in (("tensorboard", r"c\[tensorboard\]"), ("mlflow", r"c\[mlflow\]"), ("mlfow", "mlflow")):
        with pytest.raises(BadInput, match=words):
            make_loggers([name], tmp_path)
