"""A coordinator: opens rounds for real clients, takes their messages in, and moves the model, whatever crashes.

What is promised
- A message is acknowledged once it is on disk. It then counts exactly once, also if it comes again, in whichever order
  messages come, and however often the coordinator is killed.
- A round that is closed has the messages that had come by then, and one noise: drawn from a secret that only this
  folder holds, keyed by the round. A crash while closing ends in the same sum with the same noise.
- A round for which too few messages came is void: nothing is released, the model stays, and its number is used up. The
  clients have paid for it.
- Reports have one tally and one noise likewise, and gains one outcome; where nobody may see them, `secure_reports` says
  how they are added up.
- Under secure aggregation a client that shows that it acted on something else than the others voids the round; it is
  named in the round's report. One that declines counts as absent, and its reason is counted.
- States and transitions are those of `RoundState`. One driver calls what moves a round on; messages come in from any
  thread. No lock and no transaction is held while anybody else is waited for.
- Who takes part is drawn from the same secret. What is refused is counted by reason and changes nothing.

What is not
- Restoring the whole folder from an older copy cannot be seen from inside, and would put a used noise on another sum;
  restoring the database alone is refused.

Default of `minimum_messages`: with noise on the sum and a cohort of a fixed size all of it, because nothing is proven
for a fixed cohort with gaps; with noise on the sum and Poisson sampling none, because whether anybody came may not be
told either; with noise of a tree none, because whoever is missing counts as an update of nothing; otherwise one.

`over_selection` draws more clients than a round needs, and takes the first messages that come. It is refused where a
proof is about who was drawn (noise on the sum), and for cyclic sampling: who answers first is not a fair draw.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput, Diverged, VeilrecError
from veilrec.core.files import Closing
from veilrec.core.plan import Plan
from veilrec.core.schema import RoundSpec, whole_model
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.privacy.randomness import noise_of_comparison, noise_of_histogram, noise_of_sum
from veilrec.server.round_specs import Ballot, draw_cohort
from veilrec.server.round_store import Enrolled, Inbox, RoundReport, RoundState, RoundStore, RunPosition, secret_of
from veilrec.server.secure_reports import (
    ComparisonTask,
    MessageRefused,
    Reason,
    ReportRequest,
    SecureOnce,
    SecureSum,
    asked_gains,
    asked_reports,
    over_selection_obstacle,
    reason_of,
    run_digest,
)
from veilrec.server.server import SelectionOutcome, ServerState, selection_of
from veilrec.wire import messages as gains
from veilrec.wire import rounds
from veilrec.wire.messages import DECLINE_REASONS, DeclineReason

Receipt = Literal["taken", "known already"]
_SUMS_REPORTS = (RoundState.REPORTING, RoundState.SUMMING_REPORTS)


class Coordinator(Closing):
    """The server's side of a real run, in one folder; a folder without one starts a new run."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        *,
        minimum_messages: int | None = None,
        minimum_reports: int = 1,
        over_selection: float = 1.0,
        secure: SecureSum | None = None,
        goes_on: bool = True,
    ) -> None:
        """Open or start a run; `goes_on` is False where it is only read, because its sums are formed elsewhere."""
        if over_selection > 1.0 and (obstacle := over_selection_obstacle(plan)) is not None:
            raise BadInput(f"over-selection is {over_selection:g}, and {obstacle}: leave it at 1")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.plan = plan
        self.over_selection, self.secure = over_selection, secure
        self.minimum_messages, self.minimum_reports = minimum_messages, minimum_reports
        self.refused: Counter[Reason] = Counter()  # of this round, since this process started
        self._secret = secret_of(folder)
        self._lock = threading.RLock()
        self._store = RoundStore(folder, run_digest(plan), self._secret)
        self.declined: dict[str, DeclineReason] = {}  # of what is asked now, by client
        self._hidden = self._hidden_gains = None
        if secure is not None and plan.reports is not None and plan.reports.mechanism.under_masks:
            self._hidden = SecureOnce(
                self._store, secure, asked_reports(self._store, self._secret, plan.reports), self._lock
            )
        if secure is not None and plan.model_selection is not None:
            self._hidden_gains = SecureOnce(
                self._store, secure, asked_gains(self._store, self._secret, plan.model_selection), self._lock
            )
        try:
            self._load()
            if self.stage is RoundState.CLOSING and self.secure is None and goes_on:
                self._finish()  # for a secure sum others have to be asked: close_round
        except BaseException:
            self._store.close()
            raise

    def _load(self) -> None:
        """Restore the state in memory from the store."""
        self._server_state = ServerState(self.plan)
        model = self._store.model()
        if model is not None:
            self._server_state.load_state(model, self.round_number)
        self._server_state.take_in(self._store.tally())
        if self.stage in (RoundState.OPENING, RoundState.OPEN, RoundState.CLOSING):
            self._set_round_planner()

    def _set_round_planner(self) -> None:
        server, tally = self._server_state.server, self._store.tally()
        self._server_state.take_in(tally)
        server.open_round(self.plan.round_planner.next(self.round_number, server.weights, tally))

    def close(self) -> None:
        """Close the database; whatever was acknowledged is on disk already."""
        self._store.close()

    @property
    def round_number(self) -> int:
        """The round that is open, or comes next."""
        return self._store.place.number

    @property
    def stage(self) -> RoundState:
        """The state of the round."""
        return self._store.place.stage

    @property
    def server_state(self) -> ServerState:
        """The model as it stands; what it says of rounds that are over is released, and nothing else is in it."""
        return self._server_state

    def history(self) -> tuple[RoundReport, ...]:
        """Every round that is over."""
        with self._lock:
            return self._store.history()

    def transcripts(self) -> tuple[bytes, ...]:
        """What is needed to check the secure sums that were opened, in the order of the run."""
        with self._lock:
            return self._store.transcripts()

    def enrol(self, client_id: str, who: Enrolled = "clients") -> int:
        """Enrol a training or validation client and return its number; the same again if it is known."""
        if not client_id:
            raise BadInput("a client has no id: give one that is its own")
        with self._lock:
            return self._store.enrol(client_id, who)

    def came(self, inbox: Inbox) -> tuple[str, ...]:
        """The clients that have sent what is asked for now."""
        with self._lock:
            return self._store.senders(inbox)

    @property
    def invitation(self) -> bytes | None:
        """Invitation of the open round's secure sum, which clients get beside the model."""
        with self._lock:
            return None if self.secure is None else self._store.invitation()

    @property
    def wanted(self) -> int:
        """Number of messages that complete the open round."""
        with self._lock:
            return self._store.place.wanted or self._store.count("cohort")

    @property
    def is_complete(self) -> bool:
        """Whether the open round has as many."""
        with self._lock:
            return self._store.count("messages") >= self.wanted

    # Before a round

    def ask(self) -> ReportRequest | None:
        """Draw the next cohort and return which clients report before its round; None if none are due."""
        with self._lock:
            question = self._question()
        if question is None or self._hidden is None:
            return question
        self._hidden.open(question.clients, b"")
        with self._lock:
            return replace(question, invitation=self._hidden.invitation)

    def _question(self) -> ReportRequest | None:
        if self.stage not in (RoundState.IDLE, RoundState.REPORTING):
            raise BadInput(f"round {self.round_number} is {self.stage}: clients are asked before it")
        reports = self.plan.reports
        if reports is None or (reports.once and self._store.tally() is not None):
            return None
        if self.stage is RoundState.IDLE:
            self._prepare()
        clients = self._store.everybody() if reports.who == "everybody" else self._store.cohort()
        return ReportRequest(self.round_number, self.round_number if reports.fresh else 0, clients)

    @property
    def report_number(self) -> int:
        """Number that reports are sent under: that of the round, or of their own secure sum."""
        return self.round_number if self._hidden is None else self._hidden.spec.number

    def receive_report(self, client_id: str, message: bytes) -> Receipt:
        """Store the report of a client before a round."""
        with self._lock, self._counting():
            client = self._enrolled(client_id)
            is_open = self._hidden is None or self._hidden.invitation
            if self.stage is not RoundState.REPORTING or self.plan.reports is None or not is_open:
                raise MessageRefused("nothing is open", "no reports are asked for at this time")
            if self.plan.reports.who == "cohort" and not self._store.in_cohort(client):
                raise MessageRefused("not in the cohort", f"round {self.round_number} does not ask this device")
            hidden = self._hidden
            if hidden is not None:
                return self._take("reports", client, message, lambda: hidden.check(client, message))
            ballot = Ballot(self.plan.reports.mechanism, self.round_number)
            return self._take("reports", client, message, lambda: ballot.read(message))

    def count_reports(self) -> bool:
        """Open the secure sum of the reports that have come; False: it cannot be had, and is asked for anew."""
        with self._lock:
            if self._hidden is None or self.secure is None or self.stage not in _SUMS_REPORTS:
                raise BadInput(f"round {self.round_number} is {self.stage}: it has no secure sum of reports to open")
            if self.stage is RoundState.REPORTING:
                came = self._store.count("reports")
                if self.secure.waits and came < self.minimum_reports:
                    raise BadInput(f"{came} clients have reported: a secure sum waits for {self.minimum_reports}")
            self.declined.clear()
            clients = self._store.everybody()
        return self._hidden.count(clients)

    def open_round(self) -> tuple[bytes, tuple[str, ...]]:
        """Begin a round: what its clients get, and which clients these are; the same again while it is open.

        A secure sum may find that it cannot begin: the round is then closing at once, and void.
        """
        with self._lock:
            if self.stage is RoundState.CLOSING:
                raise BadInput(f"round {self.round_number} is still closing: call close_round first")
            if self.stage not in (RoundState.OPENING, RoundState.OPEN):
                self.begin_round()
        if self.stage is RoundState.OPENING:
            self.open_sum()
        with self._lock:
            self._store.mark()
            return self._broadcast(), self._store.cohort()

    def _broadcast(self) -> bytes:
        """The round spec and the model, as clients get them."""
        server = self._server_state.server
        return rounds.encode(server.spec, server.broadcast(), server.schema)

    def begin_round(self) -> None:
        """Fix cohort, reports and round spec: `OPEN`, or `OPENING` where a secure sum has to be begun first."""
        with self._lock:
            question, store = self._question(), self._store
            if question is None and self.stage is RoundState.IDLE:
                self._prepare()
            if question is not None and self._hidden is not None:
                raise BadInput(
                    f"the reports before round {self.round_number} are not added up: call count_reports first"
                )
            came, size = store.amount("reports")
            if question is not None and came < min(self.minimum_reports, len(question.clients)):
                raise BadInput(
                    f"{came} of {len(question.clients)} clients have reported: round {self.round_number} needs "
                    f"{self.minimum_reports}"
                )
            stage = RoundState.OPEN if self.secure is None else RoundState.OPENING
            with store.moving(replace(store.place, stage=stage, report_bytes=store.place.report_bytes + size)):
                if question is not None:
                    self._count_reports(question)
                self._set_round_planner()
                store.empty("reports")

    def open_sum(self) -> RunPosition:
        """Begin the secure sum of a round that is `OPENING`; `OPEN` follows, or `CLOSING` and void if it cannot begin.

        Helpers or clients are waited for; meanwhile neither the lock nor a transaction is held.
        """
        with self._lock:
            secure, store = self.secure, self._store
            if secure is None or self.stage is not RoundState.OPENING:
                raise BadInput(f"round {self.round_number} is {self.stage}: it has no secure sum to begin")
            store.mark()
            spec, cohort, broadcast = self._server_state.server.spec, store.cohort(), self._broadcast()
        invitation = secure.open(spec, cohort, broadcast)
        with self._lock:
            place = replace(store.place, stage=RoundState.OPEN)
            if invitation is None:
                place = replace(place, stage=RoundState.CLOSING, void=True, differing=tuple(secure.differing))
            elif (can := secure.senders(invitation, len(cohort))) < (place.wanted or len(cohort)):
                place = replace(place, wanted=can)
            with store.moving(place):
                store.set_invitation(invitation or b"")
            return place

    def _count_reports(self, question: ReportRequest) -> None:
        reports = self.plan.reports
        if reports is None or not question.clients:
            self._store.clear_tally()
            return
        ballot = Ballot(reports.mechanism, question.round_number)
        for message in self._store.contents("reports"):
            ballot.receive(message)
        mechanism, noise = reports.mechanism, noise_of_histogram(self._secret, question.period)
        # How many have reported is covered by no noise: where they trust the server, the tally is of all who are asked.
        of = len(question.clients) if mechanism.under_masks else ballot.reports
        self._store.set_tally(mechanism.protect(ballot.counts, noise), of)

    def _prepare(self) -> None:
        """Draw who takes part, once and for all."""
        if self.round_number >= self.plan.rounds:
            raise BadInput(f"the plan ends after {self.plan.rounds} rounds: its noise was chosen for these")
        store, enrolled = self._store, self._store.count("clients")
        clients = draw_cohort(self.plan, self.round_number, enrolled, self._secret, self.over_selection)
        wanted = 0 if self.over_selection == 1.0 else self.plan.cohort.among(enrolled)
        wanted = wanted if wanted < len(clients) else 0
        with store.moving(replace(store.place, stage=RoundState.REPORTING, wanted=wanted)):
            store.set_cohort(clients.tolist())

    # During a round

    def receive(self, client_id: str, message: bytes) -> Receipt:
        """Store the update of a client; it is on disk when this returns, and counts."""
        with self._lock, self._counting():
            client = self._enrolled(client_id)
            if self.stage is not RoundState.OPEN:
                raise MessageRefused("nothing is open", "no round is open")
            if not self._store.in_cohort(client):
                raise MessageRefused("not in the cohort", f"round {self.round_number} is not for this device")
            if self._store.place.wanted and self.is_complete and self._store.content("messages", client) is None:
                raise MessageRefused("enough messages", f"round {self.round_number} has as many messages as it needs")
            try:
                return self._take("messages", client, message, lambda: self._read(client, message))
            except MessageRefused as refusal:
                if refusal.reason == "another digest":
                    self._note_differing(client_id)
                raise

    def decline(self, client_id: str, content: bytes) -> None:
        """Note why a client takes no part in what is asked now: it counts as absent."""
        with self._lock, self._counting():
            reason = next((one for one in DECLINE_REASONS if one.encode() == content), None)
            if reason is None:
                raise MessageRefused("bad bytes", "this is no reason to decline")
            self.declined[client_id] = reason
            if reason == "another digest" and self.stage is RoundState.OPEN and client_id in self._store.cohort():
                self._note_differing(client_id)

    def _note_differing(self, client_id: str) -> None:
        """A client has shown that it was told something else than the others: the round will be void."""
        place = self._store.place
        if client_id not in place.differing:
            with self._store.moving(replace(place, differing=(*place.differing, client_id))):
                pass

    def void(self) -> None:
        """Give up the open round, whose clients cannot act on what its sum was begun for."""
        with self._lock:
            if self.stage is RoundState.OPEN:
                with self._store.moving(replace(self._store.place, stage=RoundState.CLOSING, void=True)):
                    pass

    @property
    def differing(self) -> tuple[str, ...]:
        """Clients that acted on something else than the others of the open round."""
        return self._store.place.differing

    def _read(self, client: int, message: bytes) -> None:
        """Refuse what cannot be counted; under masks all that shows is whose it is."""
        if self.secure is None:
            self._server_state.server.read(message)
        else:
            self.secure.check(self._store.invitation() or b"", client, message)

    def _enrolled(self, client_id: str) -> int:
        client = self._store.number_of(client_id)
        if client is None:
            raise MessageRefused("not enrolled", "this device is not enrolled")
        return client

    def _take(self, inbox: Inbox, client: int, message: bytes, read: Callable[[], object]) -> Receipt:
        known = self._store.content(inbox, client)
        if known is not None:
            if known == message:
                return "known already"
            raise MessageRefused("second message", "this device has sent something else for this round already")
        try:
            read()
        except VeilrecError as error:
            raise MessageRefused(reason_of(error), str(error)) from None
        self._store.put(inbox, client, message)
        return "taken"

    @contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except MessageRefused as refusal:
            self.refused[refusal.reason] += 1
            raise

    # After a round

    def close_round(self) -> RoundReport:
        """End the round with the messages that have come: add them up, add the noise, move the model.

        A secure sum waits for helpers or clients; meanwhile neither the lock nor a transaction is held.
        """
        with self._lock:
            store, secure = self._store, self.secure
            if self.stage not in (RoundState.OPEN, RoundState.CLOSING):
                raise BadInput(f"round {self.round_number} is not open: call open_round first")
            if self.stage is RoundState.OPEN:
                void = store.count("messages") < self._least() or bool(store.place.differing)
                with store.moving(replace(store.place, stage=RoundState.CLOSING, void=void)):
                    pass
            if secure is None or store.place.void:
                return self._finish()
            store.mark()
            invitation, messages = store.invitation() or b"", list(store.contents("messages"))
            cohort = store.cohort()
        total = secure.total(invitation, messages, cohort)
        with self._lock:
            return self._finish(total)

    def _least(self) -> int:
        if self.minimum_messages is not None:
            return self.minimum_messages
        if self.plan.mechanism.noise_on != "sum":
            return 1
        gaps = self.plan.cohort.sampling == "poisson" or isinstance(self.plan.mechanism, TreeSum)
        return 0 if gaps else len(self._store.cohort())

    def _finish(self, total: Offsets | None = None) -> RoundReport:
        """Add up, protect and step once the messages are fixed; after a failure it may be done again."""
        try:
            return self._closed(total)
        except BaseException:
            self._load()
            raise

    def _closed(self, total: Offsets | None) -> RoundReport:
        store, place, server = self._store, self._store.place, self._server_state.server
        store.mark()
        came, size = store.amount("messages")
        clients = len(store.cohort())
        down = place.told_bytes + clients * len(self._broadcast())
        model = place.model
        place = self._added_up(place, came, total)
        told, said = (0, 0) if self.secure is None else self.secure.crossed(store.invitation() or b"", clients)
        if not place.void:
            if self.plan.mechanism.noise_on == "sum":
                server.protect(noise_of_sum(self._secret, place.number))
            self._server_state.step()
            if self._server_state.goes_too_far():
                place = self._taken_back(place)
            else:
                model = store.write_model(self._server_state.state(), place.number + 1)
        up = size + said + place.report_bytes
        refused = {str(reason): count for reason, count in sorted(self.refused.items())}
        declined = dict(sorted(Counter[str](self.declined.values()).items()))
        sizes = (told + down, up, place.report_bytes)
        report = RoundReport(place.number, clients, came, place.void, *sizes, refused, declined, place.differing)
        with store.moving(RunPosition(place.number + 1, model=model)):
            if self.secure is not None and not place.void:
                store.add_transcript(place.number, self.secure.transcript)
            store.set_invitation(b"")
            store.empty("messages")
            store.set_cohort(())
            store.add_history(report)
        store.remove_older_models()
        self.refused.clear()
        self.declined.clear()
        return report

    def _taken_back(self, place: RunPosition) -> RunPosition:
        """Void the round, with the model as it was before; one client that lies ends no run."""
        self.refused["beyond its bound"] += 1
        with self._store.moving(replace(place, void=True)):
            pass
        self._load()
        return self._store.place

    def _added_up(self, place: RunPosition, came: int, total: Offsets | None) -> RunPosition:
        """The messages in the server's sum; a secure sum that does not come about voids the round."""
        store, server = self._store, self._server_state.server
        if place.void:
            return place
        if self.secure is None:
            for message in store.contents("messages"):
                server.receive(message)
            return place
        if total is not None:
            try:
                server.add_integers(total, clients=came)
            except Diverged:  # a client lies: nobody saw what it put under its masks
                self.refused["beyond its bound"] += 1
            else:
                return place
        with store.moving(replace(place, void=True)):
            pass
        return store.place

    # After the last round

    def compare(self) -> ComparisonTask | None:
        """Make the task of held-out validation clients; None where there are none, or the verdict is known."""
        with self._lock:
            if self.plan.model_selection is None or self.selection is not None:
                return None
            if self.stage is not RoundState.SUMMING_GAINS:
                self._between("the validation clients are asked")
            number, schema, server_state = self.round_number, self.plan.schema, self._server_state
            start, trained = (
                rounds.encode(RoundSpec(number), whole_model(schema, weights, number), schema)
                for weights in ({**self.plan.start, **server_state.known}, server_state.weights)
            )
            task = ComparisonTask(number, start, trained, self._store.everybody("validators"))
        if self._hidden_gains is None:
            return task
        if self.stage is RoundState.IDLE:
            self._hidden_gains.open(task.clients, task.content)
        with self._lock:
            return replace(task, number=self._hidden_gains.spec.number, invitation=self._hidden_gains.invitation)

    def _between(self, what: str) -> None:
        if self.stage is not RoundState.IDLE or self.round_number < self.plan.rounds:
            raise BadInput(f"round {self.round_number} of {self.plan.rounds} is not over: {what} after the last one")

    def receive_gain(self, client_id: str, message: bytes) -> Receipt:
        """Store the gain of a held-out validation client; it is on disk when this returns."""
        with self._lock, self._counting():
            asked, client = self.plan.model_selection, self._store.number_of(client_id, "validators")
            if client is None:
                raise MessageRefused("not enrolled", "this client is not a validation client")
            if asked is None or self.stage is not RoundState.IDLE or self.round_number < self.plan.rounds:
                raise MessageRefused("nothing is open", "no comparison of models is open")
            mechanism, hidden = asked.mechanism, self._hidden_gains
            if hidden is None:
                return self._take("gains", client, message, lambda: mechanism.check(gains.decode_gain(message)))
            if not hidden.invitation:
                raise MessageRefused("nothing is open", "no comparison of models is open")
            return self._take("gains", client, message, lambda: hidden.check(client, message))

    @property
    def comparison_number(self) -> int:
        """Number that gains are sent under: that of the round after the last, or of their own secure sum."""
        return self.round_number if self._hidden_gains is None else self._hidden_gains.spec.number

    def count_gains(self) -> bool:
        """Open the secure sum of the gains that have come; False: it cannot be had, and is asked for anew."""
        with self._lock:
            if self._hidden_gains is None or self.plan.model_selection is None:
                raise BadInput("this run has no secure sum of gains to open")
            self.declined.clear()
            clients = self._store.everybody("validators")
        return self._hidden_gains.count(clients)

    def close_comparison(self) -> SelectionOutcome:
        """Select the model by the gains that came; the outcome is stored, and stays the same."""
        with self._lock:
            known = self.selection
            if known is None:
                asked = self.plan.model_selection
                if asked is None:
                    raise BadInput("this plan has no validation clients: there is nothing to decide")
                self._between("it is decided")
                if self._hidden_gains is not None:
                    raise BadInput("the gains are not added up: call count_gains first")
                told, noise = self._store.contents("gains"), noise_of_comparison(self._secret)
                known = selection_of(told, asked, noise)
                with self._store.moving(replace(self._store.place, stage=RoundState.VALIDATED)):
                    self._store.set_selection(known.state())
                    self._store.empty("gains")
            self._store.mark()
            return known

    @property
    def selection(self) -> SelectionOutcome | None:
        """Verdict of the held-out validation clients; None before it, or where there are none."""
        with self._lock:
            state = self._store.selection()
            return None if state is None else SelectionOutcome.restored(state)
