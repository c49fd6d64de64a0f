"""Fields in double quotes, as people write them by hand."""

from __future__ import annotations

import re


def without_blanks_behind(text: str, separator: str) -> str:
    """The same lines of CSV without the blanks between a closing quote and what ends its field."""
    blank, mark = "[ ]" if separator == "\t" else r"[ \t]", re.escape(separator)
    field = rf'((?:^|(?<={mark})){blank}*"[^"]*(?:""[^"]*)*"){blank}*(?={mark}|$)'
    return re.sub(field, r"\1", text, flags=re.MULTILINE)
