"""One line for a call that is refused."""

import pytest


def raises(error, words, work, *arguments, **named):
    with pytest.raises(error, match=words):
        work(*arguments, **named)
