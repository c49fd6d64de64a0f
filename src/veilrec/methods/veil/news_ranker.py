"""A trained `veil` of news as a run keeps it: with all that reads news which it has never seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from veilrec._csr import Csr
from veilrec.data.population import ItemTable
from veilrec.device.rankers import Arrays
from veilrec.device.veil_news_ranker import VeilNewsModel
from veilrec.methods.veil.news_reading import NewsReading
from veilrec.models.news_content import NewsContent

_CONTENT, _READING = "content.", "reading."
_NOBODY = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))


@dataclass(frozen=True)
class VeilNewsRanker:
    """Everything public that a device needs beside the released weights."""

    kind: ClassVar[str] = "veil-news"
    reading: NewsReading
    content: NewsContent
    latest: int  # clicks of a history that count

    def settings(self) -> dict[str, Any]:
        """What makes this ranker again, but for the arrays."""
        return {"titles": self.reading.titles, "latest": self.latest}

    def tables(self, weights: Arrays) -> dict[str, NDArray[Any]]:
        """What is known of the news, and how others are read."""
        return {**self.content.arrays(_CONTENT), **self.reading.tables(_READING)}

    @classmethod
    def restored(cls, settings: Mapping[str, Any], tables: Arrays) -> VeilNewsRanker:
        """The ranker that settings and tables were taken from."""
        reading = NewsReading.restored(settings["titles"], tables, _READING)
        return cls(reading, NewsContent.from_arrays(tables, _CONTENT), int(settings["latest"]))

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> ReadingModel:
        """Known users are those with a history."""
        return ReadingModel(self.content, weights, histories, self.latest).reading(self.reading)


class ReadingModel(VeilNewsModel):
    """The same model, which also takes in other news."""

    _reader: NewsReading

    def reading(self, reader: NewsReading) -> ReadingModel:
        """This model, which reads news so."""
        self._reader = reader
        return self

    def fold_in(self, histories: Csr) -> ReadingModel:
        """New users do what all others do."""
        return super().fold_in(histories).reading(self._reader)

    def on(self, catalogue: ItemTable) -> ReadingModel:
        """The same model for other news; its users come with their histories."""
        return ReadingModel(self._reader.read(catalogue), self.weights, _NOBODY, self.latest).reading(self._reader)
