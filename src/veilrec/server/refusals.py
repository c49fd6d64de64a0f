"""Why a coordinator does not take a message in: reasons that are counted, and say nothing of anybody."""

from __future__ import annotations

from typing import Literal

from veilrec.errors import VeilrecError
from veilrec.privacy.mechanisms.bounding import BadUpdate, OutsideRound
from veilrec.server.server import WrongExamples
from veilrec.wire.codec import BadMessage, NotFinite, WrongRound
from veilrec.wire.signing import BadSignature

Reason = Literal[
    "not enrolled",
    "not in the cohort",
    "nothing is open",
    "another round",
    "second message",
    "not finite",
    "bad bytes",
    "outside of the round",
    "beyond its bound",
    "examples",
    "enough messages",
]
_REASONS: tuple[tuple[type[VeilrecError], Reason], ...] = (
    (WrongRound, "another round"),
    (NotFinite, "not finite"),
    (WrongExamples, "examples"),
    (BadMessage, "bad bytes"),
    (OutsideRound, "outside of the round"),
    (BadUpdate, "beyond its bound"),
    (BadSignature, "bad bytes"),
)


class MessageRefused(VeilrecError):
    """A message that was not taken in; it changed nothing but the count of its reason."""

    def __init__(self, reason: Reason, explanation: str) -> None:
        self.reason = reason
        super().__init__(explanation)


def reason_of(error: VeilrecError) -> Reason:
    """The reason that an error stands for; one that stands for none is raised."""
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    raise error
