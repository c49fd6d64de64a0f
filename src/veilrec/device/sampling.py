"""Which examples a device learns from: its own items, and items that it has not used."""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Floats, Indices
from veilrec._draws import below, word
from veilrec._jit import jit


@jit
def draw_epoch(
    own: Indices,
    is_own: Indices,
    stamp: int,
    n_items: int,
    negatives: int,
    start: np.uint64,
    counter: int,
    items: Indices,
    labels: Floats,
) -> int:
    """Fill an epoch: every own item once, in random order, each followed by items drawn from all others.

    `own` is shuffled in place. `is_own[i] == stamp` marks the device's training items: only those are left
    out, so a held-out item is drawn as often as any other. Returns how many words of the stream were used.
    """
    filled = 0
    for j in range(len(own)):
        pick = j + below(word(start, counter), len(own) - j)
        counter += 1
        item = own[pick]
        own[pick] = own[j]
        own[j] = item
        items[filled] = item
        labels[filled] = np.float32(1.0)
        filled += 1
        for _ in range(negatives):
            item = np.int32(below(word(start, counter), n_items))
            counter += 1
            while is_own[item] == stamp:
                item = np.int32(below(word(start, counter), n_items))
                counter += 1
            items[filled] = item
            labels[filled] = np.float32(0.0)
            filled += 1
    return counter
