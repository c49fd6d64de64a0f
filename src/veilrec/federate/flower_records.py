"""Letters as Flower's records, and back; needs the extra `flower`."""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict

from veilrec.federate.flower_letters import RECORD, BadLetter, Letter


def record_of(letter: Letter) -> RecordDict:
    """A letter as the content of a message."""
    return RecordDict({RECORD: ConfigRecord(dict(letter))})


def letter_of(message: Message) -> Letter:
    """The letter in a message."""
    if message.has_error() or RECORD not in message.content.config_records:
        raise BadLetter("a message of Flower without a letter")
    found: Letter = dict(message.content.config_records[RECORD])
    return found
