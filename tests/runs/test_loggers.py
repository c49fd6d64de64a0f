import pytest

from veilrec.core.errors import BadInput
from veilrec.runs.checkpoint import Progress
from veilrec.runs.loop import make_loggers
from veilrec.simulation.simulation import StepReport


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
    for name, words in (
        ("tensorboard", r"veilrec\[tensorboard\]"),
        ("mlflow", r"veilrec\[mlflow\]"),
        ("mlfow", "mlflow"),
    ):
        with pytest.raises(BadInput, match=words):
            make_loggers([name], tmp_path)
