"""Compiled passes through titles whose words lie packed, one row per word: forward per title, backward per device."""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit


@jit
def see(offsets: Offsets, words: Indices, table: Floats, seen: Floats) -> None:
    """What the CNN's window sees at every word; zero beyond the title."""
    width = table.shape[1]
    reach = seen.shape[1] // width // 2
    for title in range(len(offsets) - 1):
        low, high = offsets[title], offsets[title + 1]
        for row in range(low, high):
            for shift in range(2 * reach + 1):
                source = row + shift - reach
                for q in range(width):
                    inside = low <= source < high
                    seen[row, shift * width + q] = table[words[source], q] if inside else np.float32(0.0)


@jit
def mix(offsets: Offsets, squares: Offsets, projected: Floats, attention: Floats, mixed: Floats) -> None:
    """Self-attention inside every title."""
    dim, heads = mixed.shape[1], attention.shape[1]
    width = dim // heads
    scale = np.float32(1.0 / np.sqrt(width))
    mixed[:] = 0.0
    for title in range(len(offsets) - 1):
        low, length = offsets[title], offsets[title + 1] - offsets[title]
        for row in range(length):
            entry = squares[title] + row * length
            for head in range(heads):
                begin = head * width
                top = np.float32(-np.inf)
                for other in range(length):
                    score = np.float32(0.0)
                    for q in range(begin, begin + width):
                        score += projected[low + row, q] * projected[low + other, dim + q]
                    attention[entry + other, head] = score * scale
                    top = max(top, score * scale)
                total = np.float32(0.0)
                for other in range(length):
                    weight = np.exp(attention[entry + other, head] - top)
                    attention[entry + other, head] = weight
                    total += weight
                for other in range(length):
                    weight = attention[entry + other, head] / total
                    attention[entry + other, head] = weight
                    for q in range(begin, begin + width):
                        mixed[low + row, q] += weight * projected[low + other, 2 * dim + q]


@jit
def pool(offsets: Offsets, logits: Floats, mixed: Floats, share: Floats, vectors: Floats) -> None:
    """The weighted mean of every title; zero for one without words."""
    vectors[:] = 0.0
    for title in range(len(offsets) - 1):
        low, high = offsets[title], offsets[title + 1]
        top, total = np.float32(-np.inf), np.float32(0.0)
        for row in range(low, high):
            top = max(top, logits[row])
        for row in range(low, high):
            share[row] = np.exp(logits[row] - top)
            total += share[row]
        for row in range(low, high):
            share[row] /= total
            for q in range(mixed.shape[1]):
                vectors[title, q] += share[row] * mixed[row, q]


@jit
def count_words(  # type: ignore[no-untyped-def]
    pair_offsets: Offsets, title_of: Offsets, offsets: Offsets, words: Indices, vocabulary, counts: Offsets
) -> None:
    """Distinct words of every device."""
    last = np.full(vocabulary, -1, np.int64)  # the last device that had the word
    for device in range(len(counts)):
        for pair in range(pair_offsets[device], pair_offsets[device + 1]):
            title = title_of[pair]
            for row in range(offsets[title], offsets[title + 1]):
                if last[words[row]] != device:
                    last[words[row]] = device
                    counts[device] += 1


@jit
def pull_back(  # type: ignore[no-untyped-def]
    pair_offsets: Offsets, title_of: Offsets, gradients: Floats, offsets: Offsets, squares: Offsets,
    words: Indices, seen: Floats, convolved: Floats, projected: Floats, attention: Floats, mixed: Floats,
    hidden: Floats, share: Floats, slope: Floats, slope_in_mixed: Floats, slope_in_content: Floats,
    projections: Floats, kernel: Floats, vocabulary, kernel_out: Floats, bias_out: Floats,
    projections_out: Floats, hidden_out: Floats, hidden_bias_out: Floats, query_out: Floats,
    word_offsets: Offsets, index: Indices, values: Floats,
) -> None:  # fmt: skip
    """Title by title through pooling and self-attention, then all words of a device through the linear layers."""
    most = _most_rows(pair_offsets, title_of, offsets)
    dim = mixed.shape[1]
    to_mixed, to_logit = np.empty((most, dim), np.float32), np.empty(most, np.float32)
    to_projected = np.empty((most, 3 * dim), np.float32)
    to_hidden = np.empty((most, hidden.shape[1]), np.float32)
    to_convolved, to_seen = np.empty((most, dim), np.float32), np.empty((most, seen.shape[1]), np.float32)
    own = np.empty((most, max(dim, seen.shape[1])), np.float32).ravel()
    work = np.empty((3 * np.diff(offsets).max(), dim), np.float32)
    source = np.empty(most, np.int64)  # row of a device -> row of the titles
    place = np.empty(vocabulary, np.int64)
    for device in range(len(pair_offsets) - 1):
        rows = 0
        for pair in range(pair_offsets[device], pair_offsets[device + 1]):
            title = title_of[pair]
            low, length = offsets[title], offsets[title + 1] - offsets[title]
            _unpool(
                gradients[pair], low, length, mixed, share, slope_in_mixed, to_logit[rows : rows + length],
                to_mixed[rows : rows + length],
            )  # fmt: skip
            _unmix(
                gradients[pair], low, length, squares[title], share, to_logit[rows : rows + length], projected,
                attention, slope_in_content, to_mixed[rows : rows + length], work,
                to_projected[rows : rows + length],
            )  # fmt: skip
            source[rows : rows + length] = np.arange(low, low + length)
            rows += length
        _weigh(source[:rows], to_logit, slope, hidden, to_hidden, hidden_bias_out[device], query_out[device])
        np.dot(to_hidden[:rows].T, _gathered(mixed, source[:rows], own), hidden_out[device])
        own_convolved = _gathered(convolved, source[:rows], own)
        np.dot(to_projected[:rows].T, own_convolved, projections_out[device])
        np.dot(to_projected[:rows], projections, to_convolved[:rows])
        _through_relu(own_convolved, to_convolved, bias_out[device])
        np.dot(to_convolved[:rows].T, _gathered(seen, source[:rows], own), kernel_out[device])
        if word_offsets[device + 1] > word_offsets[device]:
            np.dot(to_convolved[:rows], kernel, to_seen[:rows])
            low, high = word_offsets[device], word_offsets[device + 1]
            _number(words, source[:rows], index[low:high], place)
            titles = title_of[pair_offsets[device] : pair_offsets[device + 1]]
            _unsee(titles, offsets, words, place, to_seen, values[low:high])


@jit
def _most_rows(pair_offsets: Offsets, title_of: Offsets, offsets: Offsets) -> int:
    most = 1
    for device in range(len(pair_offsets) - 1):
        rows = 0
        for pair in range(pair_offsets[device], pair_offsets[device + 1]):
            rows += offsets[title_of[pair] + 1] - offsets[title_of[pair]]
        most = max(most, rows)
    return most


@jit
def _gathered(table: Floats, rows: Offsets, space: Floats) -> Floats:
    width = table.shape[1]
    out = space[: len(rows) * width].reshape(len(rows), width)
    for row in range(len(rows)):
        for q in range(width):
            out[row, q] = table[rows[row], q]
    return out


@jit
def _unpool(  # type: ignore[no-untyped-def]
    gradient: Floats, low, length, mixed: Floats, share: Floats, slope_in_mixed: Floats, to_logit: Floats,
    to_mixed: Floats,
) -> None:  # fmt: skip
    """Attention over words, backward: to the logits, and to what was pooled, directly and through the logits."""
    mean = np.float32(0.0)
    for row in range(length):
        total = np.float32(0.0)
        for q in range(len(gradient)):
            total += gradient[q] * mixed[low + row, q]
        to_logit[row] = total
        mean += share[low + row] * total
    for row in range(length):
        weight = share[low + row]
        to_logit[row] = weight * (to_logit[row] - mean)
        for q in range(len(gradient)):
            to_mixed[row, q] = weight * gradient[q] + to_logit[row] * slope_in_mixed[low + row, q]


@jit
def _unmix(  # type: ignore[no-untyped-def]
    gradient: Floats, low, length, square, share: Floats, to_logit: Floats, projected: Floats, attention: Floats,
    slope_in_content: Floats, to_mixed: Floats, work: Floats, to_projected: Floats,
) -> None:  # fmt: skip
    """Self-attention of a title, backward: to queries, keys and values.

    `to_mixed` is share * gradient + to_logit * slope_in_mixed, so its products with the values need no loop over dim.
    """
    dim, heads = to_mixed.shape[1], attention.shape[1]
    width = dim // heads
    scale = np.float32(1.0 / np.sqrt(width))
    change, weight, along = work[:length], work[length : 2 * length], work[2 * length : 3 * length]
    to_projected[:] = 0.0
    for other in range(length):
        for head in range(heads):
            total = np.float32(0.0)
            for q in range(head * width, (head + 1) * width):
                total += gradient[q] * projected[low + other, 2 * dim + q]
            along[other, head] = total
    for row in range(length):
        first, direct, by_logit = square + row * length, share[low + row], to_logit[row]
        for head in range(heads):
            mean = np.float32(0.0)
            for other in range(length):
                slope = direct * along[other, head] + by_logit * slope_in_content[first + other, head]
                mean += attention[first + other, head] * slope
            for other in range(length):
                slope = direct * along[other, head] + by_logit * slope_in_content[first + other, head]
                part = attention[first + other, head]
                # the same for all entries of a head, so that the loops below run over whole rows
                change[other, head * width : (head + 1) * width] = part * (slope - mean) * scale
                weight[other, head * width : (head + 1) * width] = part
        for other in range(length):
            for q in range(dim):
                to_projected[row, q] += change[other, q] * projected[low + other, dim + q]
            for q in range(dim):
                to_projected[other, dim + q] += change[other, q] * projected[low + row, q]
            for q in range(dim):
                to_projected[other, 2 * dim + q] += weight[other, q] * to_mixed[row, q]


@jit
def multiply_inside(offsets: Offsets, squares: Offsets, left: Floats, projected: Floats, out: Floats) -> None:
    """Products of every row of a title with every row's values, head by head."""
    dim, heads = left.shape[1], out.shape[1]
    width = dim // heads
    for title in range(len(offsets) - 1):
        low, length = offsets[title], offsets[title + 1] - offsets[title]
        for row in range(length):
            for other in range(length):
                for head in range(heads):
                    total = np.float32(0.0)
                    for q in range(head * width, (head + 1) * width):
                        total += left[low + row, q] * projected[low + other, 2 * dim + q]
                    out[squares[title] + row * length + other, head] = total


@jit
def _weigh(
    source: Offsets, to_logit: Floats, slope: Floats, hidden: Floats, to_hidden: Floats, bias: Floats,
    query: Floats,
) -> None:  # fmt: skip
    bias[:] = 0.0
    query[:] = 0.0
    for row in range(len(source)):
        for q in range(len(bias)):
            to_hidden[row, q] = to_logit[row] * slope[source[row], q]
            bias[q] += to_hidden[row, q]
            query[q] += to_logit[row] * hidden[source[row], q]


@jit
def _through_relu(convolved: Floats, to_convolved: Floats, bias: Floats) -> None:
    bias[:] = 0.0
    for row in range(len(convolved)):
        for q in range(len(bias)):
            passes = convolved[row, q] > 0.0
            to_convolved[row, q] = to_convolved[row, q] if passes else np.float32(0.0)
            bias[q] += to_convolved[row, q]


@jit
def _number(words: Indices, source: Offsets, index: Indices, place: Offsets) -> None:
    """The distinct words of a device in rising order, and the place of each."""
    place[:] = -1
    found = 0
    for row in source:
        if place[words[row]] < 0:
            place[words[row]] = 0
            index[found] = words[row]
            found += 1
    index.sort()
    for slot in range(found):
        place[index[slot]] = slot


@jit
def _unsee(
    titles: Offsets, offsets: Offsets, words: Indices, place: Offsets, to_seen: Floats, values: Floats
) -> None:
    """The CNN's window, backward: from what every position has seen to the words themselves."""
    width = values.shape[1]
    reach = to_seen.shape[1] // width // 2
    at = 0
    for title in titles:
        low, high = offsets[title], offsets[title + 1]
        for row in range(low, high):
            for shift in range(2 * reach + 1):
                word = row + shift - reach
                if low <= word < high:
                    slot = place[words[word]]
                    for q in range(width):
                        values[slot, q] += to_seen[at, shift * width + q]
            at += 1
