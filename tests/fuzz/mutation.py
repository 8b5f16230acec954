"""Strategies for nearly valid input: valid bytes that are cut, spliced and overwritten, and unusual JSON values."""

import random
from collections.abc import Sequence
from functools import cache

from hypothesis import strategies as st

_NUMBERS = (b"0", b"-1", b"1e999", b"9" * 20, b"9" * 5000, b"1.5", b"18446744073709551616", b"2147483648")
_PIECES = (
    *(b"\x00", b"\xff", b"\n", b"\r\n", b" ", b'"', b"\\", b"/", b"{", b"}", b"[", b"]", b":", b","),
    *(b"null", b"true", b"\xed\xa0\x80", b"\xf0\x9f\x92\xa9", b"\\ud800", b"\\u0000", b"[" * 3000, b'{"a":' * 3000),
    *(b"../", b"/etc/passwd", b"\xe2\x80\xae", b"\x1b[31m", b"a" * 5000),
)
_LENGTHS = (0, 0, 1, 1, 2, 4, 16, 256, 65536)
_CHANGES = ("insert", "replace", "remove", "repeat", "flip", "cut")
_SEEDS = st.integers(0, 2**64 - 1)


def mutated(examples: Sequence[bytes], pieces: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """One of ``examples`` after up to six changes. ``pieces`` are bytes that are special in the format.

    A single drawn seed determines the changes: drawing each change would take longer than most readers need.
    """
    known = (*_PIECES, *_NUMBERS, *pieces, *examples)
    return _SEEDS.map(lambda seed: _mutate(random.Random(seed), examples, known))


def changed(data: bytes, seed: int, pieces: Sequence[bytes] = ()) -> bytes:
    """``data`` after changes that ``seed`` determines."""
    return _mutate(random.Random(seed), (data,), (*_PIECES, *_NUMBERS, *pieces))


def _mutate(chance: random.Random, examples: Sequence[bytes], pieces: Sequence[bytes]) -> bytes:
    data = bytearray(chance.choice(examples))
    for _ in range(chance.randint(0, 6)):
        start = chance.randint(0, len(data))
        end = min(len(data), start + chance.choice(_LENGTHS))
        change = chance.choice(_CHANGES)
        piece = chance.choice(pieces) if chance.random() < 0.8 else chance.randbytes(chance.randint(1, 8))
        if change == "flip" and start < len(data):
            data[start] ^= 1 << chance.randint(0, 7)
        elif change == "insert":
            data[start:start] = piece
        elif change == "replace":
            data[start:end] = piece
        elif change == "remove":
            del data[start:end]
        elif change == "repeat":
            data[start:start] = data[start:end] * chance.choice((1, 2, 50))
        elif change == "cut":
            del data[start:]
    return bytes(data)


@cache
def json_values() -> st.SearchStrategy[object]:
    """JSON values, including unusual numbers and strings."""
    odd = ("", "\ud800", "\0", "a" * 5000, "../x", "1e999", "nan", "\u202e", "true", "2026-01-01T00:00:00Z")
    texts = st.sampled_from(odd) | st.text(max_size=12)
    numbers = st.integers() | st.sampled_from((-1, 0, 2**31, 2**63, 2**64, 10**400)) | st.floats(allow_nan=False)
    leaves = st.none() | st.booleans() | numbers | texts
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=8
    )
