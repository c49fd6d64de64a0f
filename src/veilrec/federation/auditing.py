"""`veilrec federate audit`: check afterwards what secure sums were over, from the coordinator's transcripts.

Keys of clients count if invitations endorse them: those that a helper has (`--helper`), those in `invitations.json`, or
else those in the coordinator's own folder. A helper's journal says what it has answered, and both have to agree.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from veilrec.core.errors import BadInput, counted
from veilrec.core.schema import FIRST_COMPARISON_SUM, FIRST_REPORT_SUM, place_of_sum
from veilrec.federation import federation, helper
from veilrec.federation.coordinator.aggregation import listed_keys
from veilrec.federation.coordinator.process import open_coordinator
from veilrec.federation.coordinator.registry import NotInvited, Registry, RegistryEntry
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import COORDINATOR, INVITED, Federation
from veilrec.federation.identity import EndorsedKeys, identity_of, read_invited
from veilrec.federation.secagg.helpers import JOURNAL
from veilrec.federation.secagg.terms import digest
from veilrec.federation.secagg.transcripts import HelperTranscript, Known, Transcript, decode_transcript
from veilrec.server.round_store import RoundReport
from veilrec.wire.messages import BadMessage


@dataclass(frozen=True)
class AuditOfSums:
    """What the transcripts of a federation show."""

    sums: int  # that have a transcript
    fewest: int  # clients in one of them
    void: int  # rounds that opened nothing
    problems: tuple[str, ...]

    def line(self) -> str:
        """Describe it in a sentence."""
        found = counted(len(self.problems), "problem") if self.problems else "all of them hold"
        void = f", and {counted(self.void, 'round')} opened nothing" if self.void else ""
        return f"{counted(self.sums, 'secure sum')} over {self.fewest} clients or more{void}: {found}"


def audit(folder: Path, helping: Path | None = None) -> AuditOfSums:
    """Check all transcripts of a federation, against the journal of a helper too if its folder is given."""
    made = federation.read(folder)
    if made.secagg == "none":
        raise BadInput(f"{folder} has no secure sums: there is nothing to check; leave out --trust server to have them")
    facts = FederationFacts(folder, made)
    with Registry(folder / COORDINATOR) as registry, open_coordinator(folder, facts) as server:
        entries = [*registry.entries("trainer"), *registry.entries("validator")]
        known = Known(
            made.digest,
            _keys(folder, made, registry, entries, helping),
            made.least_of,
            tuple(map(bytes.fromhex, made.helpers)),
            lambda number: made.woven(compared=number >= FIRST_COMPARISON_SUM),
        )
        history, contents = server.history(), server.transcripts()
        reports = facts.plan.reports
        due = [FIRST_REPORT_SUM] if reports is not None and reports.mechanism.under_masks and history else []
        due += [FIRST_COMPARISON_SUM] if server.selection is not None else []
    found, problems = dict[int, Transcript](), list[str]()
    for content in contents:
        try:
            transcript = decode_transcript(content)
        except BadMessage as error:
            problems.append(f"a transcript cannot be read: {error}")
            continue
        found[transcript.terms.round_number] = transcript
        named = name_of(transcript.terms.round_number)
        problems += [f"{named}: {problem}" for problem in transcript.problems(known)]
    problems += _of_history(history, found, due)
    if helping is not None:
        problems += _of_journal(helping, made, found, history)
    fewest = min((len(transcript.counted) for transcript in found.values()), default=0)
    return AuditOfSums(len(found), fewest, sum(report.void for report in history), tuple(problems))


def name_of(number: int) -> str:
    """Name of the sum with a number."""
    if number < FIRST_REPORT_SUM:
        return f"round {number}"
    if number < FIRST_COMPARISON_SUM:
        return f"sum {number - FIRST_REPORT_SUM} of reports"
    return f"sum {number - FIRST_COMPARISON_SUM} of gains"


def _keys(
    folder: Path, made: Federation, registry: Registry, entries: Sequence[RegistryEntry], helping: Path | None
) -> Mapping[int, bytes]:
    """The lasting keys that invitations endorse, by number in sums."""
    if helping is not None:
        invited = helper.register(helping)
    elif made.secagg == "pairs":
        invited = read_invited(folder / INVITED, f"{folder} is no folder of a federation", digest=made.invited)
    else:
        return dict(_endorsed(made, registry, entries))
    keys = EndorsedKeys(made.id, invited)
    keys.learn(listed_keys(entries), strangers=True)
    return keys.keys


def _endorsed(made: Federation, registry: Registry, entries: Sequence[RegistryEntry]) -> Iterator[tuple[int, bytes]]:
    for entry in entries:
        if entry.key is not None and entry.endorsement is not None:
            try:
                registry.check(made.id, entry.client, entry.key, entry.endorsement)
            except NotInvited:
                continue
            yield entry.member, entry.key


def _of_history(history: Sequence[RoundReport], found: Mapping[int, Transcript], due: Sequence[int]) -> Iterator[str]:
    """What the history of the run and its transcripts do not agree on."""
    oldest = min(map(place_of_sum, found), default=0)
    for report in history:
        transcript = found.get(report.number)
        if report.differing:
            yield f"round {report.number}: {', '.join(report.differing)} acted on something else than the others"
        if transcript is None and not report.void and report.number >= oldest:
            yield f"round {report.number}: it has no transcript"
        if transcript is not None and report.void:
            yield f"round {report.number}: it was void, and has the transcript of a sum"
        signed = report.messages if transcript is None else len(transcript.counted)
        if not report.void and signed != report.messages:
            yield f"round {report.number}: {report.messages} messages were counted, and {signed} are in its sum"
    for first in due:
        there = [number for number in found if name_of(number).split()[-1] == name_of(first).split()[-1]]
        if not there and place_of_sum(first) >= oldest:
            yield f"{name_of(first)}: it has no transcript"


def _of_journal(
    helping: Path, made: Federation, found: Mapping[int, Transcript], history: Sequence[RoundReport]
) -> Iterator[str]:
    """What a helper's journal and the transcripts do not agree on."""
    if identity_of(helping).public.hex() not in made.helpers:
        raise BadInput(f"{helping} is no helper of this federation: its key is not in federation.yaml")
    try:
        database = sqlite3.connect(f"file:{helping / JOURNAL}?mode=rw", uri=True, timeout=1.0)
        rows = database.execute("SELECT number, proposal, request FROM rounds WHERE request IS NOT NULL").fetchall()
        database.close()
    except sqlite3.DatabaseError as error:
        raise BadInput(f"{helping / JOURNAL} cannot be read ({error}): is the helper running? End it first") from None
    answered = {order: (proposal, request) for order, proposal, request in rows}
    void = {report.number for report in history if report.void}
    for number, transcript in found.items():
        if not isinstance(transcript, HelperTranscript):
            continue
        journal = answered.pop(place_of_sum(number), None)
        if journal is None:
            yield f"{name_of(number)}: {helping.name} has not answered it"
        elif journal[0] != transcript.proposal.encode():
            yield f"{name_of(number)}: {helping.name} was asked about another digest"
        elif journal[1] != digest(transcript.request.encode()):
            yield f"{name_of(number)}: {helping.name} has answered for another list of clients"
    oldest = min(map(place_of_sum, found), default=0)
    for order in sorted(set(answered) - void):
        if order >= oldest:
            number = order + 2 * FIRST_REPORT_SUM if order < 0 else order
            yield f"{name_of(number)}: {helping.name} has answered it, and it has no transcript"
