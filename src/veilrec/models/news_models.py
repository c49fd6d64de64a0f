"""Every news model by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from veilrec.errors import unknown_name
from veilrec.models.fednewsrec import FedNewsRec
from veilrec.models.interests import InterestNaml, InterestNrms, InterestPlmNr
from veilrec.models.layers import NewsSizes
from veilrec.models.news_model import NewsModel, NewsShape
from veilrec.models.news_networks import Dan, Dfm, Dkn, Ebnr, Fm, Lstur, Naml, Npa, Nrms, PlmNr, SentenceHead
from veilrec.models.public_head import PublicHead

MODELS: dict[str, Callable[[NewsSizes, NewsShape], NewsModel]] = {
    "fednewsrec": FedNewsRec,
    "fednewsrec-long": partial(FedNewsRec, interests="long"),
    "fednewsrec-short": partial(FedNewsRec, interests="short"),
    "nrms": Nrms,
    "naml": Naml,
    "lstur-ini": partial(Lstur, join="ini"),
    "lstur-con": partial(Lstur, join="con"),
    "npa": Npa,
    "ebnr": Ebnr,
    "dkn": Dkn,
    "dan": Dan,
    "fm": Fm,
    "dfm": Dfm,
    "plm-nr": PlmNr,
    "sentence-head": SentenceHead,
    "public-head": PublicHead,
    "interest-nrms": InterestNrms,
    "interest-naml": InterestNaml,
    "interest-plm-nr": InterestPlmNr,
}


def make_model(name: str, sizes: NewsSizes, shape: NewsShape, generator: torch.Generator) -> NewsModel:
    """A model with starting weights drawn from the generator."""
    if name not in MODELS:
        raise unknown_name("news model", name, MODELS)
    with torch.device("meta"):  # so that torch's global generator is left alone
        model = MODELS[name](sizes, shape)
    model.to_empty(device="cpu")
    model.start(generator)
    return model
