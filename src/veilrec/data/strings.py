"""Many strings in two flat arrays, so that a million ids or titles can be memory-mapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from veilrec._arrays import Bytes, Offsets


class Strings(Sequence[str]):
    """A read-only list of strings: UTF-8 bytes end to end, and where each begins."""

    def __init__(self, offsets: Offsets, data: Bytes) -> None:
        self.offsets = offsets
        self.data = data
        self._index: dict[str, int] | None = None

    @classmethod
    def of(cls, values: Iterable[str]) -> Strings:
        """Pack the given strings."""
        encoded = [value.encode() for value in values]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(value) for value in encoded], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self)):
            yield self[index]

    def find(self, value: str) -> int | None:
        """The position of a string, or None; the first look-up builds an index."""
        if self._index is None:
            self._index = {text: position for position, text in enumerate(self)}
        return self._index.get(value)
