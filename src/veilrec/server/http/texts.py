"""What is said of items: ids, titles and categories, by number; those of the release lie packed as they came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Indices, Offsets
from veilrec.errors import BadInput

_MOST_KEPT = 1 << 16  # items whose JSON is kept


class Texts:
    """Ids, titles and categories of a release, of what was added to it, and the numbers behind the ids."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._ids, self._titles = _Packed(arrays, "ids"), _Packed(arrays, "titles")
        names = _Packed(arrays, "categories")
        self.categories = [names.text(code) for code in range(len(names))]
        self.category: Indices = arrays["category"].astype(np.int32)
        self.count = len(self._ids)
        if len(self._titles) != self.count or len(self.category) != self.count:
            raise BadInput("the items of the release have not as many titles and categories as ids: release it again")
        if self.count and not -1 <= self.category.min() <= self.category.max() < len(self.categories):
            raise BadInput("the items of the release have a category without a name: release it again")
        self._code = {name: code for code, name in enumerate(self.categories)}
        self._regions: dict[str, int] = {}
        self._added: dict[int, tuple[str, str, str]] = {}
        self._number: dict[str, int] = {}  # of what was added
        self._hidden: set[int] = set()  # of the release, and taken out
        self._kept: dict[int, bytes] = {}

    def facts(self, number: int) -> tuple[str, str, str]:
        """Id, title and category of an item; KeyError where the number is not known (yet)."""
        if number >= self.count:
            return self._added[number]
        code = int(self.category[number])
        return self._ids.text(number), self._titles.text(number), self.categories[code] if code >= 0 else ""

    def json(self, number: int) -> bytes | None:
        """The same as the start of a JSON object; its score is to follow."""
        found = self._kept.get(number)
        if found is None:
            try:
                name, title, category = self.facts(number)
            except KeyError:  # it became visible this moment
                return None
            found = msgspec.json.encode({"id": name, "title": title, "category": category})[:-1] + b',"score":'
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[number] = found
        return found

    def find(self, name: str) -> int | None:
        """The number of an item that is there."""
        number = self._number.get(name)
        if number is None:
            number = self._ids.find(name)
            return None if number in self._hidden else number
        return number

    def add(self, number: int, name: str, title: str, category: str) -> None:
        """Something new."""
        self._added[number] = (name, title, category)
        self._number[name] = number

    def hide(self, number: int) -> None:
        """Something that is no longer there."""
        if number < self.count:
            self._hidden.add(number)
            return
        name, _, _ = self._added[number]
        if self._number.get(name) == number:
            del self._number[name]

    def numbers(self) -> Offsets:
        """All that is there."""
        there = np.ones(self.count, np.bool_)
        there[list(self._hidden)] = False
        added = np.array(sorted(self._number.values()), np.int64)
        return np.concatenate([np.flatnonzero(there).astype(np.int64), added])

    def category_code(self, name: str, *, new: bool = False) -> int | None:
        """The code of a category; -1 for none, a fresh one for a new name where that is allowed, else None."""
        if not name:
            return -1
        if new and name not in self._code:
            self.categories.append(name)
            self._code[name] = len(self.categories) - 1
        return self._code.get(name)

    def region_code(self, name: str, *, new: bool = False) -> int | None:
        """Likewise of a region."""
        if not name:
            return -1
        if new:
            self._regions.setdefault(name, len(self._regions))
        return self._regions.get(name)


class _Packed:
    """Texts that lie end to end."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], name: str) -> None:
        self._offsets: Offsets = arrays[f"{name}.offsets"].astype(np.int64)
        self._data = arrays[f"{name}.data"].tobytes()
        ends = self._offsets
        if not len(ends) or ends[0] != 0 or ends[-1] != len(self._data) or (np.diff(ends) < 0).any():
            raise BadInput(f"the {name} of the release do not lie end to end: release it again")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def text(self, number: int) -> str:
        return self._data[self._offsets[number] : self._offsets[number + 1]].decode(errors="replace")

    def find(self, text: str) -> int | None:
        """Which one it is: compared byte by byte, over all that are still possible; no table of ids is kept."""
        wanted = text.encode()
        data = np.frombuffer(self._data, np.uint8)
        left = np.flatnonzero(np.diff(self._offsets) == len(wanted))
        for place, byte in enumerate(wanted):
            if not len(left):
                return None
            left = left[data[self._offsets[left] + place] == byte]
        return int(left[0]) if len(left) else None
