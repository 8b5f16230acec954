"""Tests of bounded output: it keeps its head and tail, and counts the removed part."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dgym.runner.descriptors import MARK, HeadAndTail


def captured(pieces: list[bytes], limit: int) -> tuple[bytes, int]:
    kept = HeadAndTail(limit)
    for piece in pieces:
        kept.write(piece)
    return kept.finish()


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(2, 200))
def test_short_output_is_whole_and_long_output_adds_up(pieces, limit):
    whole = b"".join(pieces)
    kept, cut = captured(pieces, limit)
    if len(whole) <= limit // 2 * 2:
        assert (kept, cut) == (whole, 0)
    elif cut:
        mark = MARK % cut
        assert len(kept) - len(mark) + cut == len(whole)
        head, found, tail = kept.partition(mark)
        assert found
        assert whole.startswith(head)
        assert whole.endswith(tail)
    assert len(kept) <= limit + len(MARK % cut)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=300), st.integers(16, 64))
def test_a_cut_does_not_split_a_character(text, limit):
    data = text.encode("utf-8", "replace")
    kept, cut = captured([data], limit)
    whole = HeadAndTail(limit)
    whole.write(data)
    assert whole.text() == (kept.decode("utf-8"), cut)


def test_how_the_output_was_split_does_not_matter():
    data = bytes(range(256)) * 10
    assert captured([data], 100) == captured([bytes([byte]) for byte in data], 100)
