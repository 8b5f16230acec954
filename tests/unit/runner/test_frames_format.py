"""Tests of the frame format: both sides use the same format and check every length."""

import asyncio
import contextlib
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.runner import connection as inside
from dgym.sandbox import _channel as outside

# Values that JSON keeps unchanged: integers of 64 bits, and text without lone surrogates.
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=10,
)
_HEADERS = st.dictionaries(_TEXT, _VALUES, max_size=5)


def read_all_outside(data: bytes) -> list[tuple[dict, bytes]]:
    async def read() -> list[tuple[dict, bytes]]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        found = []
        while (frame := await outside.read_frame(reader)) is not None:
            found.append(frame)
        return found

    return asyncio.run(read())


def read_all_inside(data: bytes) -> list[tuple[dict, bytes]]:
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb", closefd=True) as stream:
            stream.write(data)

    feeder = threading.Thread(target=write)
    feeder.start()
    connection = inside.Connection(reading, -1)
    found = []
    try:
        while (frame := connection.receive()) is not None:
            found.append(frame)
    finally:
        # Read the rest, so that the feeder can always end.
        while os.read(reading, 65536):
            pass
        feeder.join()
        os.close(reading)
    return found


def written_inside(header: dict, payload: bytes) -> bytes:
    reading, writing = os.pipe()
    try:
        inside.Connection(-1, writing).send(header, payload)
        os.close(writing)
        with os.fdopen(reading, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(reading)


@given(st.lists(st.tuples(_HEADERS, st.binary(max_size=300)), max_size=4))
def test_the_runner_reads_frames_of_the_trusted_side(frames):
    assert read_all_inside(b"".join(outside.encode_frame(*frame) for frame in frames)) == frames


@given(_HEADERS, st.binary(max_size=300))
def test_the_trusted_side_reads_frames_of_the_runner(header, payload):
    assert read_all_outside(written_inside(header, payload)) == [(header, payload)]


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_frames_or_an_error_on_the_trusted_side(data):
    with contextlib.suppress(outside.FrameError):
        read_all_outside(data)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_frames_or_an_error_in_the_runner(data):
    with contextlib.suppress(inside.FrameError):
        read_all_inside(data)


@given(_HEADERS, st.binary(min_size=1, max_size=50), st.data())
def test_a_frame_that_is_cut_off_is_an_error(header, payload, data):
    frame = outside.encode_frame(header, payload)
    cut = frame[: data.draw(st.integers(1, len(frame) - 1))]
    with pytest.raises(outside.FrameError):
        read_all_outside(cut)
    with pytest.raises(inside.FrameError):
        read_all_inside(cut)


@pytest.mark.parametrize("lengths", [(outside.MAX_HEADER + 1, 0), (2, outside.MAX_PAYLOAD + 1), (2**32 - 1, 2**32 - 1)])
def test_a_length_above_the_bound_is_refused_before_anything_is_read(lengths):
    prefix = outside.PREFIX.pack(*lengths)
    with pytest.raises(outside.FrameError, match="too large"):
        read_all_outside(prefix)
    with pytest.raises(inside.FrameError, match="too large"):
        read_all_inside(prefix)


def test_both_sides_refuse_to_send_frames_that_are_too_large():
    with pytest.raises(outside.FrameError):
        outside.encode_frame({"text": "x" * outside.MAX_HEADER})
    with pytest.raises(inside.FrameError):
        written_inside({}, b"x" * (inside.MAX_PAYLOAD + 1))


def test_both_sides_have_the_same_bounds():
    for name in ("MAX_HEADER", "MAX_PAYLOAD", "CHUNK"):
        assert getattr(inside, name) == getattr(outside, name)


def test_text_that_no_decoder_takes_is_replaced():
    assert read_all_outside(written_inside({"text": "a\ud800b"}, b"")) == [({"text": "a?b"}, b"")]
