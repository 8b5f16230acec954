"""Tests of untrusted text and files: the time and memory to read them are bounded."""

import os
import socket
import time
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgym.untrusted import TEXT_LIMIT, ask, open_regular, parse_ini, parse_toml, read_regular

BOMBS = {
    "a dotted key": b"a" + b".a" * 100_000 + b" = 1\n",
    "a long number": b"x = " + b"9" * 5000,
    "brackets": b"x = " + b"[" * 3000,
    "braces": b"x = " + b"{a = " * 3000,
    "not UTF-8": b"\xff = 1",
    "too large": b"#" * (TEXT_LIMIT + 1),
}


@pytest.mark.thorough
@pytest.mark.attack("parsers")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_toml_bomb_is_not_parsed(bomb):
    began = time.monotonic()
    assert parse_toml(BOMBS[bomb]) is None
    assert time.monotonic() - began < 12


@pytest.mark.thorough
@pytest.mark.attack("parsers")
def test_an_ini_bomb_is_not_parsed():
    assert parse_ini(b"[a]\n" + b"x\n" * 200_000) is None


def test_documents_are_read():
    assert parse_toml(b"[tool.pytest]\na = [1, {b = 'c'}]\nd = 1979-05-27\n") == {
        "tool": {"pytest": {"a": [1, {"b": "c"}], "d": "1979-05-27"}}
    }
    assert parse_ini(b"[DEFAULT]\nx = 1\n[a]\ny = %\n  2\n") == {"a": {"x": "1", "y": "%\n2"}}
    assert parse_toml(b"") == {}


@settings(max_examples=15, deadline=None)
@given(st.text(alphabet="a=[]{}\"'.\n #1\\", max_size=60))
def test_toml_is_what_the_library_reads(text):
    try:
        expected = tomllib.loads(text)
    except ValueError:
        expected = None
    assert parse_toml(text.encode()) == expected


def test_a_request_that_crashes_the_program_does_not_affect_other_requests(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import os\ndef answer(x):\n    return os._exit(1) if x == 1 else x * 10\n")
    assert ask(program, [0, 1, 2]) == [0, None, 20]
    assert ask(program, [1, 1, 1, 1, 5]) == [None] * 5


@pytest.mark.attack("openers")
def test_only_regular_files_that_lie_inside_are_opened(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_text("secret")
    (root / "inside").write_text("text")
    (root / "good").symlink_to("inside")
    (root / "leaves").symlink_to("../outside")
    (root / "endless").symlink_to("/dev/zero")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    with (root / "sparse").open("wb") as file:
        file.truncate(40 * 1024**3)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    assert read_regular(root / "good", root=root) == b"text"
    assert read_regular(root / "inside") == b"text"
    for name in ("leaves", "endless", "loop", "fifo", "sparse", "socket", "missing", "."):
        with pytest.raises(OSError):
            read_regular(root / name, root=root)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(root / "good")
