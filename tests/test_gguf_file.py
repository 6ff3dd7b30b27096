"""Damaged GGUF files, read by the tokenizer, which is the first to open one."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aquiline.errors import ModelFormatError, UserError
from aquiline.gguf_file import MAX_ARRAY_LENGTH
from aquiline.tokenizer import Tokenizer
from tests.tiny_tokenizers import byte_level_metadata, train_byte_level, write_gguf

UINT8, ARRAY = 0, 9


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A sound file with a byte-level tokenizer and no weights."""
    path = tmp_path_factory.mktemp("gguf") / "sound.gguf"
    return write_gguf(path, byte_level_metadata(train_byte_level())).read_bytes()


def one_key(value: bytes) -> bytes:
    """A file without tensors whose only key holds an array: `value` follows the array's type."""
    name = b"tokenizer.ggml.tokens"
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(name)) + name + struct.pack("<I", ARRAY) + value


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(struct.pack("<IQ", UINT8, 2**40), "more than", id="endless"),
        pytest.param(
            struct.pack("<IQ", UINT8, MAX_ARRAY_LENGTH + 1) + bytes(MAX_ARRAY_LENGTH + 1), "more than", id="long"
        ),
        pytest.param(struct.pack("<IQ", UINT8, 1000) + bytes(999), "it ends before", id="cut-off"),
        pytest.param(struct.pack("<IQ", ARRAY, 1) * 5000, "recursion", id="deep"),
    ],
)
def test_a_wrong_array_is_refused_at_once(tmp_path: Path, value: bytes, reason: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(one_key(value))
    with pytest.raises(ModelFormatError, match=rf"m\.gguf is damaged or not a GGUF file \(.*{reason}"):
        Tokenizer.from_path(path)


@pytest.mark.timeout(60)
def test_every_number_of_the_header_may_be_wrong(tmp_path: Path, content: bytes) -> None:
    """Version, number of tensors and number of keys; each once with every bit flipped."""
    path = tmp_path / "m.gguf"
    for place, bit in itertools.product(range(4, 24), range(8)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            Tokenizer.from_path(path)
        except UserError as error:
            assert "\n" not in str(error), (place, bit)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_flipped_bytes_never_raise_anything_else(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("flipped") / "m.gguf"
    damaged = bytearray(content)
    damaged[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    try:
        Tokenizer.from_path(path)
    except UserError as error:
        assert "\n" not in str(error)
