"""Words of a text: runs of letters, runs of digits, and every other visible sign on its own; all in lower case.

Any language and any emoji goes through: what is no letter and no digit is a sign, what is invisible is left out.
"""

from __future__ import annotations

import polars as pl

_LIST = pl.List(pl.String)
_WORD = r"[\p{L}\p{M}]+|\p{N}+|[^\s\p{C}\p{L}\p{M}\p{N}]"


def tokenise(texts: pl.Series) -> pl.Series:
    """The words of every text, as a column of lists; an empty text has none."""
    if len(texts) == 0:
        return pl.Series(texts.name, [], dtype=_LIST)
    return texts.fill_null("").str.to_lowercase().str.extract_all(_WORD)
