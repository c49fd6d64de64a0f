"""What the methods on news share: settings, and the news of a problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from veilrec.errors import BadInput
from veilrec.evaluate.impressions import judged
from veilrec.methods.base import Config, NewsData, Problem

if TYPE_CHECKING:
    from veilrec.models.layers import NewsSizes

DATASETS = ("mind", "synthetic-news", "adressa", "ebnerd", "impressions")
FEDNEWSREC = "Qi et al., Privacy-Preserving News Recommendation Model Learning, Findings of EMNLP 2020"

Count = Annotated[int, Field(ge=1)]
Short = Annotated[int, Field(ge=1, le=10_000)]  # a list that every click or user has a place for in memory
Width = Annotated[int, Field(ge=1, le=4096)]  # of a layer: wider ones would not fit into memory
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class SizeConfig(Config):
    """How large the model is."""

    word_dim: Width = 50
    heads: Width = 4
    head_dim: Width = 16  # news and user vectors have heads * head_dim entries
    attention: Width = 32  # width of additive attention
    window: Literal[1, 3, 5, 7] = 3  # words that the CNN sees at once
    category_dim: Width = 16
    recent: Short = 20  # the latest clicks that short-term models look at
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1  # in centralised training only

    def sizes(self) -> NewsSizes:
        """For the models."""
        from veilrec.models.layers import NewsSizes

        return NewsSizes(**self.model_dump())


PAPER_SIZES: Mapping[str, Any] = {"word_dim": 300, "heads": 20, "head_dim": 20, "attention": 200, "category_dim": 100}


class TextConfig(Config):
    """Where the meaning of words comes from."""

    words: str = "learned"  # "learned", "glove" (of the package), or the path of a GloVe text file
    freeze_words: bool = False  # public word vectors stay as they are
    sentences: Literal["none", "minilm"] = "none"  # vectors of title and abstract, which are never changed
    sentence_dim: Annotated[int, Field(ge=2, le=384)] = 384  # fewer: their principal components


class NewsConfig(Config):
    """Settings of centralised training."""

    size: SizeConfig = SizeConfig()
    text: TextConfig = TextConfig()
    negatives: Short = 4  # K: news of the same impression that were not clicked, per click
    history: Short = 50  # the latest clicks that a user is known by
    batch: Count = 1024  # clicks per step of Adam
    rate: Positive = 0.005
    decay: NotNegative = 0.0  # weight decay, as in AdamW


class PlmConfig(NewsConfig):
    """Settings of a model over frozen sentence vectors."""

    text: TextConfig = TextConfig(sentences="minilm")
    size: SizeConfig = SizeConfig(attention=8)
    batch: Count = 512
    rate: Positive = 0.001


def news_of(problem: Problem, method: str) -> NewsData:
    """The news of a problem, or a clear refusal."""
    if problem.news is None:
        raise BadInput(
            f"{method} needs news with titles and train impressions, which this data or protocol does not have:"
            " use mind, ebnerd, impressions or synthetic-news with --protocol mind,"
            " or adressa with --protocol last-day-20"
        )
    if len(problem.news.catalogue.titles.data) == 0:
        raise BadInput(
            f"{method} reads titles, and no news of this data has one: bring the file with the news, or use a method"
            " that knows items by their ids, such as fcf"
        )
    if not judged(problem.news.impressions).any():
        raise BadInput(
            f"{method} has nothing to learn from: no train impression has both a click and an item without one;"
            " bring impressions with both"
        )
    return problem.news
