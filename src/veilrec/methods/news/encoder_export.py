"""Export of a trained user encoder for clients without torch: a program with weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from veilrec.client.rankers import Arrays
from veilrec.core.arrays import Floats
from veilrec.core.errors import BadInput
from veilrec.models.federated_news import FedNewsRec, Interests, PublicHead
from veilrec.models.news_model import MultiHeadPooling, NewsModel
from veilrec.models.news_networks import Ebnr, Lstur, Naml, Nrms, PlmNr, SentenceHead

Layer = dict[str, Any]
_HISTORY: Layer = {"op": "history"}


def encoder_program(model: NewsModel, longest: int) -> dict[str, Any]:
    """What a client does with the vectors of its latest clicks, as data."""
    if not model.is_dot_product:
        raise BadInput(
            f"{type(model).__name__} reads a history anew for every news and has no user vector: it cannot be released;"
            " nrms, naml, lstur, ebnr, plm-nr, sentence-head, fednewsrec, privaterec and their relatives can"
        )
    return {
        "user": _user(model),
        "empty": "newcomer",
        "dim": model.dim,
        "longest": longest,
        "attention": isinstance(model, Interests),
        "ranks_with": "interests" if isinstance(model, Interests) and not isinstance(model, PublicHead) else "whole",
    }


def encoder_weights(model: NewsModel, program: dict[str, Any]) -> Arrays:
    """The tensors that a program names, and no others."""
    state: dict[str, Tensor] = {name: values.detach() for name, values in model.state_dict().items()}
    prefixes = _names(program["user"])
    wanted = {name for name in state if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)}
    if isinstance(model, PublicHead):
        wanted |= {"scales", "taste"}
    weights = {name: state[name].numpy() for name in sorted(wanted)}
    weights["newcomer"] = _newcomer(model)
    if isinstance(model, Interests):
        weights["basis"] = model.basis_vectors().detach().double().numpy()
    return weights


def _newcomer(model: NewsModel) -> Floats:
    """User vector of an empty history, before it is decomposed."""
    nobody, nothing = torch.zeros(1, 1, model.dim), torch.zeros(1, 1, dtype=torch.bool)
    with torch.inference_mode():
        encoded = model.whole_user(nobody, nothing) if isinstance(model, Interests) else model.user(nobody, nothing)
    vector: Floats = encoded[0].numpy()
    return vector


def _user(model: NewsModel) -> Layer:
    match model:
        case PublicHead():
            return {"op": "public-head", "parts": list(model.parts)}
        case Nrms() | PlmNr():
            return _pooled(model.clicks, "clicks", _HISTORY)
        case Naml():
            return {"op": "attend", "weights": "clicks", "of": _HISTORY}
        case SentenceHead():
            return {"op": "scale", "weights": "scale", "of": {"op": "attend", "weights": "clicks", "of": _HISTORY}}
        case Ebnr():
            return {"op": "gru", "weights": "clicks", "of": _HISTORY}
        case Lstur():
            return _lstur(model)
        case FedNewsRec():
            return _fednewsrec(model)
    raise BadInput(f"how {type(model).__name__} encodes users is not written down for clients: it cannot be released")


def _pooled(pooling: MultiHeadPooling, name: str, of: Layer) -> Layer:
    mixed = {"op": "self-attention", "weights": f"{name}.mix", "heads": pooling.mix.heads, "of": of}
    return {"op": "attend", "weights": f"{name}.attention", "of": mixed}


def _lstur(model: Lstur) -> Layer:
    long_term: Layer = {"op": "attend", "weights": "long_term", "of": _HISTORY}
    recent: Layer = {"op": "latest", "count": model.sizes.recent, "of": _HISTORY}
    if model.join == "ini":
        return {"op": "gru", "weights": "short_term", "of": recent, "start": long_term}
    narrow = {"op": "linear", "weights": "narrow", "of": long_term}
    return {"op": "concat", "of": [narrow, {"op": "gru", "weights": "short_term", "of": recent}]}


def _fednewsrec(model: FedNewsRec) -> Layer:
    clicks, interests = model.clicks, []
    if clicks.interests != "short":
        interests.append(_pooled(clicks.long_term, "clicks.long_term", _HISTORY))
    if clicks.interests != "long":
        recent = {"op": "latest", "count": clicks.recent, "of": _HISTORY}
        interests.append({"op": "gru", "weights": "clicks.short_term", "of": recent})
    if len(interests) == 1:
        return interests[0]
    return {"op": "attend", "weights": "clicks.join", "of": {"op": "stack", "of": interests}}


def _names(layer: Layer) -> set[str]:
    """The prefixes of weights in a program."""
    found = {layer["weights"]} if "weights" in layer else set()
    inner = layer.get("of", [])
    for part in (*(inner if isinstance(inner, list) else [inner]), *filter(None, [layer.get("start")])):
        found |= _names(part)
    return found
