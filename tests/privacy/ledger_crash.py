"""Programs that abuse a ledger, run as `python -m tests.privacy.ledger_crash kill|race|sweep FOLDER SEED TRIALS`.

kill: forks a client that sends messages and dies by SIGKILL at a random line of the ledger's code, or after a
random time (so also inside SQLite and the system); prints a JSON line per client: what was sent and charged.
race: forks four clients that empty one ledger together; prints how many messages each of them sent.
sweep: a client that charges and keeps a message in one transaction dies at every single line of the ledger's code in
turn, and then asks again; prints how many lines there are, and at which of them it was charged twice, or not at all.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from tests.killing import dying_at, forked, lines_of, log_line
from tests.privacy.ledger_helpers import ask, spend
from veilrec.privacy import ledger as ledger_module
from veilrec.privacy import ledger_store
from veilrec.privacy.events import GaussianEvent
from veilrec.privacy.ledger import Budget, BudgetExhausted, Ledger

MESSAGES = 3
WATCHED = {ledger_module.__file__, ledger_store.__file__, __file__}


def send(folder, name, messages):
    with Ledger.open(folder / "ledger") as ledger:
        for number in range(messages):
            version = f"{name}-{number}"
            log_line(folder / "sent", f"{version} {drawn(ledger, version)}")


def drawn(ledger, version):
    return ask(ledger, version, GaussianEvent(2.0**-10)).value.decode()


def charged(folder):
    with Ledger.open(folder / "ledger") as ledger:
        return ledger.report()[0].messages


def kill(folder, seed, trials):
    dice = random.Random(seed)  # noqa: S311 - it chooses where to die
    budget = Budget(unit="click", adjacency="replace-one", epsilon=8.0, delta=1e-6)
    Ledger.create(folder / "ledger", [budget], minimum_period_seconds=1.0).close()
    lines = lines_of(lambda: send(folder, "warm-up", MESSAGES), WATCHED)
    for trial in range(trials):
        before = charged(folder)
        (folder / "sent").unlink()
        (folder / "sent").touch()
        by_time = trial % 4 == 0
        child = forked(client(folder, str(trial), None if by_time else dice.randint(1, lines)))
        if by_time:
            time.sleep(dice.uniform(0.0, 0.06))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"killed": os.WIFSIGNALED(status), "by_time": by_time} | outcome(folder, before)), flush=True)


def client(folder, name, line):
    def work():
        if line is not None:
            sys.settrace(dying_at(line, WATCHED))
        send(folder, name, MESSAGES if line is not None else 1000)

    return work


def outcome(folder, before):
    sent = [line.split() for line in (folder / "sent").read_text().splitlines()]
    after = charged(folder)
    with Ledger.open(folder / "ledger") as ledger:
        repeated = all(drawn(ledger, version) == message for version, message in sent)
    return {"sent": len(sent), "charged": after - before, "repeated": repeated and charged(folder) == after}


def race(folder, seed, trials):
    children = [forked(lambda: empty(folder, number)) for number in range(4)]  # noqa: B023 - forked at once
    codes = [os.waitpid(child, 0)[1] for child in children]
    counts = [len((folder / f"sent-{number}").read_text().splitlines()) for number in range(4)]
    print(json.dumps({"codes": codes, "sent": counts}), flush=True)


def empty(folder, number):
    (folder / f"sent-{number}").touch()
    with Ledger.open(folder / "ledger") as ledger:
        while True:
            try:
                spend(ledger, GaussianEvent(0.05))
            except BudgetExhausted:
                return
            log_line(folder / f"sent-{number}", "message")


def answer(folder):
    """The message of the only round: drawn and charged once."""
    with Ledger.open(folder / "ledger") as ledger, ledger.transaction() as kept:
        known = kept.kept("outbox")
        if known is None:
            known = os.urandom(8)
            kept.charge(GaussianEvent(0.05), unit="click", adjacency="replace-one")
            kept.keep("outbox", known)
    return known


def sweep(folder, seed, trials):
    new = folder / "new"
    new.mkdir()
    budget = Budget(unit="click", adjacency="replace-one", epsilon=8.0, delta=1e-6)
    Ledger.create(new / "ledger", [budget], minimum_period_seconds=1.0).close()

    def fresh(name):
        return Path(shutil.copytree(new, folder / name))

    def dying(place, line):
        def work():
            sys.settrace(dying_at(line, WATCHED))
            log_line(place / "sent", answer(place).hex())

        return work

    warm = fresh("warm-up")
    lines = lines_of(lambda: log_line(warm / "sent", answer(warm).hex()), WATCHED)
    wrong, deaths = [], 0
    for line in range(1, lines + 1):
        place = fresh(str(line))
        _, status = os.waitpid(forked(dying(place, line)), 0)
        deaths += os.WIFSIGNALED(status)
        sent = (place / "sent").read_text().split() if (place / "sent").exists() else []
        again = answer(place).hex()
        if charged(place) != 1 or any(message != again for message in sent):
            wrong.append(line)
    print(json.dumps({"lines": lines, "deaths": deaths, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    {"kill": kill, "race": race, "sweep": sweep}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
