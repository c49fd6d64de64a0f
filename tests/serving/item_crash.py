"""A writer to be killed, `python -m tests.serving.item_crash FILE FIRST`: prints what is acknowledged."""

import sys
from math import inf
from pathlib import Path

import numpy as np

from veilrec.serving.edition import ItemStore, StoredItem


def item(number):
    text = f"item {number}"
    return StoredItem(text, text, "", "news", "", "", number / 8, inf, "model", np.full(4, number, np.float32))


def main():
    store, number = ItemStore(Path(sys.argv[1])), int(sys.argv[2])
    while True:
        if number % 5 == 4:
            store.remove(f"item {number - 2}")
            line = f"- {number - 2}"
        else:
            store.put(item(number))
            line = f"+ {number}"
        sys.stdout.write(f"{line} {number}\n")
        sys.stdout.flush()
        number += 1


if __name__ == "__main__":
    main()
