"""What our mechanisms share: nothing runs without a full statement, and the profile is that of the event."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Self, TypeVar

from veilrec.errors import unknown_name
from veilrec.privacy.accounting.accountant import delta_of
from veilrec.privacy.mechanism import Calibration, Mechanism, Released, require_complete
from veilrec.privacy.randomness import Source

Input = TypeVar("Input")
Output = TypeVar("Output")


class Accounted(Mechanism[Input, Output]):
    """A mechanism that states everything; leading dimensions of its input are devices with an event each."""

    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven", "as-published")

    def release(self, value: Input, source: Source) -> Released[Output]:
        """Check the input, perturb it, and return it with its event; bad input raises and costs nothing."""
        require_complete(self)
        return Released(self._perturb(value, source), self.event())

    @abstractmethod
    def _perturb(self, value: Input, source: Source) -> Output:
        """Check the input before anything is drawn, then perturb it."""

    def delta(self, epsilon: float) -> float:
        """The honest privacy profile of one release."""
        return delta_of(self.event(), epsilon)

    @classmethod
    @abstractmethod
    def examples(cls) -> tuple[Self, ...]:
        """Small instances, one or more per calibration, for contract tests and audits."""

    def _set_calibration(self, calibration: Calibration) -> None:
        if calibration not in self.calibrations:
            raise unknown_name(f"calibration of {self.name}", calibration, self.calibrations)
        self.calibration = calibration
