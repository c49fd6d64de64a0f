"""Which items share a block: those that a kd-tree puts into one leaf."""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Floats, Indices


def kd_order(values: Floats, width: int, group: int) -> Indices:
    """Items, [n, B], in an order in which every `width` of them, and every `group` of those, are like each other.

    Halves are split where the values are spread most, at the borders of groups, then of blocks, so that all are full.
    """
    order = np.arange(len(values), dtype=np.int32)
    stack = [(0, len(values))] if values.shape[1] else []
    while stack:
        begin, end = stack.pop()
        size = width * group if end - begin > width * group else width
        if end - begin <= size:
            continue
        rows = order[begin:end]
        inside = values[rows]
        column = inside[:, np.argmax(inside.var(axis=0))]
        half = size * ((-(-(end - begin) // size)) // 2)
        order[begin:end] = rows[np.argpartition(column, half)]
        stack += [(begin, begin + half), (begin + half, end)]
    return order
