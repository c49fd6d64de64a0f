"""What most mechanisms share: their profile is that of their event."""

from __future__ import annotations

from typing import ClassVar, Self, TypeVar

from veilrec.errors import unknown_name
from veilrec.privacy.accounting.accountant import delta_of
from veilrec.privacy.mechanism import Calibration, Mechanism

Input = TypeVar("Input")
Output = TypeVar("Output")


class Accounted(Mechanism[Input, Output]):
    """A mechanism whose profile is the one that accounting gives for its event."""

    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven", "as-published")

    def delta(self, epsilon: float) -> float:
        """The honest privacy profile of one release."""
        return delta_of(self.event(), epsilon)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Small instances, one or more per calibration, for contract tests and audits."""
        raise NotImplementedError

    def _set_calibration(self, calibration: Calibration) -> None:
        if calibration not in self.calibrations:
            raise unknown_name(f"calibration of {self.name}", calibration, self.calibrations)
        self.calibration = calibration
