"""Parts that the news methods share: settings, preparation of text, and construction of models by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from veilrec.core import rng
from veilrec.core.arrays import Bools, Floats, Offsets
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import BadInput, counted
from veilrec.evaluation.split import has_both_labels
from veilrec.methods.base import Config, NewsData, Problem

if TYPE_CHECKING:
    from veilrec.models.news_model import NewsSizes

DATASETS = ("mind", "synthetic-news", "adressa", "ebnerd", "impressions")

Count = Annotated[int, Field(ge=1)]
Short = Annotated[int, Field(ge=1, le=10_000)]  # a list that every click or user has a place for in memory
Width = Annotated[int, Field(ge=1, le=4096)]  # of a layer: wider ones would not fit into memory
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]


def _whole(value: Any) -> Any:
    """A whole number that was written as text, as `--set` gives it: choices are not read by themselves."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


class SizeConfig(Config):
    """How large the model is."""

    word_dim: Width = 50  # length of a word vector
    heads: Width = 4  # of the attention
    head_dim: Width = 16  # news and user vectors have heads * head_dim entries
    attention: Width = 32  # width of additive attention
    window: Annotated[Literal[1, 3, 5, 7], BeforeValidator(_whole)] = 3  # words that the CNN sees at once
    category_dim: Width = 16  # length of the vector of a category
    recent: Short = 20  # the latest clicks that short-term models look at
    taste: Width = 100  # of the public head: principal components that everybody's taste is learnt in
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1  # in centralised training only

    def sizes(self) -> NewsSizes:
        """Return these sizes as the models take them."""
        from veilrec.models.news_model import NewsSizes  # torch

        return NewsSizes(**self.model_dump())


Sentences = Literal["none", "minilm", "titles"]


class TextConfig(Config):
    """Where the meaning of words comes from."""

    words: str = "learned"  # "learned", "glove" (of the package), or the path of a GloVe text file
    freeze_words: bool = False  # public word vectors stay as they are
    pad_words: bool = False  # short texts are filled with a word of its own, which learns and is not masked
    # vectors of title and abstract, which are never changed: none; of a language model; of the catalogue's own words
    sentences: Sentences = "none"
    sentence_dim: Annotated[int, Field(ge=2, le=384)] = 384  # fewer: their principal components


class ValidationConfig(Config):
    """Held-out validation clients: they never train, and decide whether training is kept; proven methods only."""

    share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2  # of the clients, drawn by the seed; 0: no comparison
    clip: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1  # the most AUC that one validation client counts


class NewsConfig(Config):
    """Settings of centralised training."""

    size: SizeConfig = SizeConfig()
    text: TextConfig = TextConfig()
    negatives: Short = 4  # K: news of the same impression that were not clicked, per click
    history: Short = 50  # the latest clicks that a user is known by
    train_share: Share = 1.0  # of the users, each drawn alone by the seed: only they are learnt from
    batch: Count = 1024  # clicks per step of Adam
    rate: Positive = 0.005  # learning rate
    decay: NotNegative = 0.0  # weight decay, as in AdamW
    second_momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999  # beta_2 of Adam


class PlmConfig(NewsConfig):
    """Settings of a model over frozen sentence vectors."""

    text: TextConfig = TextConfig(sentences="minilm")
    size: SizeConfig = SizeConfig(attention=8)
    batch: Count = 512
    rate: Positive = 0.001  # learning rate


def news_of(problem: Problem, method: str) -> NewsData:
    """News data of a problem; raise BadInput without any."""
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
    if not has_both_labels(problem.news.impressions).any():
        raise BadInput(
            f"{method} has nothing to learn from: no train impression has both a click and an item without one;"
            " bring impressions with both"
        )
    return problem.news


def taking_part(logs: Csr, users: int, seed: int, numbers: Offsets | None = None) -> Csr:
    """Keep the logs of a number of users and empty the others; smaller numbers give subsets of larger ones."""
    eligible = np.flatnonzero(logs.lengths() > 0)
    if users > len(eligible):
        raise BadInput(
            f"train_users is {users}, but {counted(len(eligible), 'user')} can learn:"
            f" choose from 1 to {len(eligible)}, or leave it out to take all"
        )
    chosen = np.zeros(len(logs), np.bool_)
    chosen[eligible[np.argsort(_draws(logs, seed, numbers)[eligible], kind="stable")[:users]]] = True
    return _only(logs, chosen)


def share_taking_part(logs: Csr, share: float, seed: int, numbers: Offsets | None = None) -> Csr:
    """Keep the logs of a share of the users and empty the others; smaller shares give subsets of larger ones.

    Each user is drawn alone, by number (its row where none is given): with another user's data or without, the same
    ones are left.
    """
    return _only(logs, _draws(logs, seed, numbers) < share)


def _draws(logs: Csr, seed: int, numbers: Offsets | None) -> Floats:
    known = np.arange(len(logs), dtype=np.int64) if numbers is None else numbers
    drawn: Floats = rng.uniforms(seed, rng.PARTICIPANTS, 0, known)[:, 0]
    return drawn


def _only(logs: Csr, chosen: Bools) -> Csr:
    lengths = logs.lengths()
    return Csr(offsets_of(np.where(chosen, lengths, 0)), logs.items[np.repeat(chosen, lengths)])


def share_of(share: float, count: int) -> int:
    """Number that a share comes to; at least one if there is any."""
    return min(count, max(1, round(share * count)))


def vectors_ready(size: SizeConfig, text: TextConfig) -> tuple[str, ...]:
    """Check that public vectors are installed; return a note where word vectors have another width."""
    if text.sentences == "minilm":
        from veilrec.models.text_embeddings import model_folder

        model_folder()
    if text.words == "learned":
        return ()
    from veilrec.models.text_embeddings import dimensions

    found = dimensions(text.words)
    if found == size.word_dim:
        return ()
    wider = (
        f": for {size.word_dim}, name a file of such vectors, --set text.words=FILE" if found < size.word_dim else ""
    )
    return (f"word vectors have the {found} dimensions of {text.words}, not size.word_dim {size.word_dim}{wider}",)


def news_ready(config: NewsConfig) -> tuple[str, ...]:
    """Check that the public vectors of a centralised method are installed."""
    return vectors_ready(config.size, config.text)
