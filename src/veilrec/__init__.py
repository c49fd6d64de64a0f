"""veilrec: recommenders that learn from people without watching them."""

__version__ = "0.1.0"
