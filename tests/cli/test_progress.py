"""What a run says of itself, in a terminal and elsewhere."""

import io
import sys

from tests.cli.running import says
from veilrec.cli.output import LiveBar, PlainLines, following
from veilrec.runs.checkpoint import Progress
from veilrec.simulation.simulation import StepReport


def after(rounds, seconds):
    progress = Progress()
    progress.rounds_done, progress.learning_seconds = rounds, seconds
    return progress


def test_a_long_run_says_once_how_long_it_will_take(capsys):
    half = {done: 39.5 + done / 2 + (0.25 if done % 2 == 0 else 0.0) for done in range(1, 30)}
    for rounds, seconds, said in (
        # The first round may have compiled: it is left out of the estimate. A resumed run starts anywhere.
        (8, {1: 150.0, 2: 290.0, 3: 430.0}, ["run 2/8  2 min each, about 14 min of learning left"]),
        (100, {50: 500.0, 51: 503.0, 52: 506.0}, ["run 51/100  3.0 s each, about 2 min of learning left"]),
        (100, {done: 83.0 + 0.2 * (done - 1) for done in range(1, 101)}, []),  # 20 seconds are no long wait
        # Short rounds are averaged before anything is said: half a second each.
        (1001, half, ["run 7/1001  0.5 s each, about 8 min of learning left"]),
        (8, {1: 2.0, 2: 6.0}, []),
        (1, {1: 2000.0}, []),
    ):
        lines = PlainLines("run", rounds)
        for done, learning in seconds.items():
            lines.on_round(after(done, learning), StepReport())
        lines.on_metrics(after(rounds, learning), {"auc": 0.61})
        assert capsys.readouterr().err.splitlines() == [*said, f"run {rounds}/{rounds}  auc 0.6100"]


def test_the_bar_leaves_out_the_first_round_and_knows_rounds_of_minutes(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with following("nrms", 10) as listener:
        assert isinstance(listener, LiveBar)
        bar, now = listener._bar, [0.0]
        monkeypatch.setattr(bar, "get_time", lambda: now[0])
        left = []
        for done, seconds in ((1, 500.0), (2, 600.0), (3, 700.0)):
            now[0] = seconds
            listener.on_round(after(done, seconds), StepReport())
            left.append(bar.tasks[0].time_remaining)
    assert left == [None, 800.0, 700.0]


class Terminal(io.StringIO):
    """Standard error of somebody who looks at it."""

    def isatty(self):
        return True


def test_a_terminal_of_80_columns_shows_bar_rounds_metrics_and_bytes(monkeypatch):
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = after(30, 2.0)
    progress.clients, progress.down_bytes, progress.up_bytes = 3000, 1_882_800_000, 529_100_000
    with following("fedmf on [mine]", 60) as listener:
        listener.on_round(progress, StepReport())
        listener.on_metrics(progress, {"hr@10": 0.6299, "ndcg@10": 0.3501})
    last = terminal.getvalue()[terminal.getvalue().rindex("fedmf on [mine]") :]
    says(last, "30/60 rounds", "hr@10 0.6299  ndcg@10 0.3501  1,500 clients/s  down 1.9 GB  up 529.1 MB")
