"""The model card of a release: what it is, what it was learnt from, what it promises, and what it is not good for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from veilrec.privacy.guarantee import Guarantee
from veilrec.wire.releases import promise_of

CARD = "model-card.md"
_RANKS = {
    "news": "A device makes a user vector from the news that its reader has read; the history stays there.",
    "factors": "A device learns a vector of its own from its user's items; the history stays there.",
    "catalogue": "A device ranks all items by itself, by its user's items in their order; nothing is asked.",
    "ranker": "A device ranks all items by itself from its user's items; nothing is asked.",
}


def model_card(manifest: Mapping[str, Any], left_out: Sequence[str] = ()) -> str:
    """As Markdown."""
    guarantee = Guarantee.from_json(manifest["guarantee"])
    sizes = manifest["sizes"]
    lines = [f"# {manifest['name']}, version {manifest['version']}", ""]
    if not manifest["protected"]:
        lines += [f"**UNPROTECTED: {'; '.join(manifest['why_unprotected'])}.**", ""]
    lines += [
        f"Trained with `{manifest['method']}` on {manifest['data']['dataset'] or 'unnamed data'}, made by"
        f" {manifest['made_by']} at {manifest['created']}. {sizes['items']:,} items. {_RANKS[manifest['family']]}",
        "",
        "## What it promises to those it was learnt from",
        "",
        f"{promise_of(manifest)}.",
        "",
        *(f"- {remark}" for remark in guarantee.remarks()),
        "",
        "## What a device may send to be recommended something",
        "",
        "Nothing at all: a device can rank by itself."
        + (" Or one of these, once a version; the same again is free:" if manifest["offers"] else ""),
        "",
        *(_offered(offer) for offer in manifest["offers"]),
        *(f"- not offered: {reason}" for reason in left_out),
        "",
        "## Figures",
        "",
        *_figures(manifest["figures"]),
        "",
        "## Limits",
        "",
        "- The guarantee covers the people of the training against whoever gets this release. What a reader does with",
        "  recommendations, and which pages are then opened, is seen by whoever serves those pages.",
        "- New items come by their text where the family is news, and not at all elsewhere.",
        "- Popular things are learnt first; little is known of what few people use.",
        "",
    ]
    return "\n".join(lines)


def _offered(offer: Mapping[str, Any]) -> str:
    guarantee = Guarantee.from_json(offer["guarantee"])
    what = "interests" if offer["kind"] == "interest" else "numbers"
    return f"- `{offer['mode']}` ({offer['size']} {what}): {guarantee.line()}"


def _figures(figures: Mapping[str, Any]) -> list[str]:
    told = [f"- {name}: {value}" for name, value in figures.get("metrics", {}).items()]
    return [f"{figures['about']} {figures['rounds']} rounds.", *([""] if told else []), *told]
