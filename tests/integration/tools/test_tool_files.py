"""Tests of listdir, view and grep on real files, and on files that a policy hides."""

import re

import pytest

from dgym.api import ToolSpec
from tests.support.calc import FIXED

FILES = {
    "calc.py": FIXED,
    "pkg/deep/mod.py": "VALUE = 1\n",
    "pkg/.debugignore": "hidden.py\n",
    "pkg/hidden.py": "SECRET = 'add'\n",
    "secret/keep.py": "SECRET = 'add'\n",
    "tests/test_calc.py": "from calc import add\n",
    ".debugignore": "secret/\n!secret/keep.py\n",
    ".debugreadonly": "tests/\n",
    "blob.bin": b"add\0add",
}


@pytest.fixture
async def bench(make_bench):
    return await make_bench(FILES)


async def test_listdir_shows_a_tree_with_marks_and_without_hidden_files(bench, both_kinds):
    assert (await bench.text("listdir . 3")).splitlines() == [
        "./",
        "  .debugignore (read-only)",
        "  .debugreadonly (read-only)",
        "  blob.bin",
        "  calc.py",
        "  pkg/",
        "    .debugignore (read-only)",
        "    deep/",
        "      mod.py",
        "  tests/ (read-only)",
        "    test_calc.py (read-only)",
    ]
    assert (await bench.text("listdir pkg/deep")).splitlines() == ["pkg/deep/", "  mod.py"]


async def test_caches_of_tools_are_not_listed(make_bench):
    left = {f"{name}/file": "" for name in (".pytest_cache", ".mypy_cache", ".ruff_cache", ".tox", "a/__pycache__")}
    bench = await make_bench({"a/b.py": "", "CACHEDIR.TAG": "", **left})
    assert (await bench.text("listdir . 3")).splitlines() == ["./", "  CACHEDIR.TAG", "  a/", "    b.py"]


async def test_listdir_is_limited_and_reports_the_limit(make_bench, sandbox, monkeypatch):
    bench = await make_bench({})
    await sandbox.run("mkdir empty many && cd many && touch $(seq 1 700)")
    text = await bench.text("listdir many")
    assert len(text.splitlines()) == 502
    assert text.endswith("200 entries more; list less at once.")
    monkeypatch.setattr("dgym.tools._context.LIST_LIMIT", 600)
    assert (await bench.text("listdir . 2")).endswith("At least 100 entries more; list less at once.")
    assert "Only 598 files were searched" in await bench.text("grep nothing")
    assert await bench.text("listdir empty") == "empty/\n  (empty)"


async def test_listdir_shows_links_and_does_not_follow_them_out(bench, sandbox):
    await sandbox.run("ln -s /etc out; ln -s pkg in; mkfifo pipe")
    text = await bench.text("listdir . 2")
    assert "  out -> /etc\n" in text
    assert "  in -> pkg\n" in text
    assert "  pipe (special file)\n" in text
    observation = await bench.use("listdir out")
    assert not observation.ok
    assert "leads outside the workspace" in observation.text
    assert (await bench.text("listdir in/deep")).splitlines() == ["in/deep/", "  mod.py"]


async def test_view_numbers_lines_and_takes_a_range(bench, both_kinds):
    observation = await bench.use("view calc.py")
    assert observation.text.splitlines() == [
        "calc.py, lines 1 to 2 of 2:",
        "  1  def add(a, b):",
        "  2      return a + b",
    ]
    assert observation.focus_file == "calc.py"
    assert (await bench.text("view calc.py 2 99")).splitlines()[1:] == ["  2      return a + b"]
    plain = await bench.call("view", path="calc.py", include_line_numbers=False)
    assert plain.text.splitlines()[1:] == ["def add(a, b):", "    return a + b"]


async def test_view_marks_read_only_files(bench):
    assert (await bench.text("view tests/test_calc.py")).startswith(
        "tests/test_calc.py (read-only), lines 1 to 1 of 1:"
    )


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("view calk.py", "`calk.py` does not exist. Did you mean `calc.py`?"),
        ("view pkg/deep/mud.py", "Did you mean `pkg/deep/mod.py`?"),
        ("view pkg", "is a directory"),
        ("view blob.bin", "is a binary file of 7 bytes"),
        ("view calc.py 3", "`start` is 3, but `calc.py` has 2 lines."),
        ("view calc.py 2 1", "`end` is 1, before `start`, which is 2"),
        ("view ../etc/passwd", "outside the workspace"),
        ("view /etc/passwd", "outside the workspace"),
        ("view ''", "path is empty"),
        ("listdir calc.py", "is a file, not a directory"),
        ("listdir nowhere", "does not exist"),
        ("grep '(' .", "not a regular expression"),
        ("grep ''", "`pattern` is empty"),
        (f"view {'x' * 300}", "x"),
    ],
)
async def test_a_wrong_path_or_range_is_answered_with_what_is_valid(bench, action, expected):
    observation = await bench.use(action)
    assert not observation.ok
    assert expected in observation.text


@pytest.mark.parametrize(
    "path", ["secret/keep.py", "secret", "pkg/hidden.py", "through/keep.py", "pkg/../secret/keep.py"]
)
async def test_hidden_files_are_reported_as_missing(bench, sandbox, path):
    await sandbox.run("ln -s secret through")
    assert "through" not in await bench.text("listdir")
    for action in (f"view {path}", f"listdir {path}", f"grep SECRET {path}"):
        observation = await bench.use(action)
        assert not observation.ok
        assert "does not exist" in observation.text
        assert "SECRET" not in observation.text


async def test_absolute_paths_within_the_workspace_are_taken(bench, sandbox, both_kinds):
    assert (await bench.use(f"view {sandbox.workspace}/calc.py")).ok


async def test_view_of_a_long_file_shows_both_ends_and_names_the_range_left_out(make_bench):
    code = [f"line = {number:06}" for number in range(1, 10_001)]
    bench = await make_bench({"long.py": "\n".join(code) + "\n", "wide": "x" * 200_000 + "\nlast"})
    observation = await bench.use("view long.py")
    assert 7 * 1024 < len(observation.text) < 8 * 1024 + 200
    shown = observation.text.splitlines()[1:]
    (mark,) = (line for line in shown if line.startswith("["))
    first, last = re.search(r"lines (\d+) to (\d+) are not shown: view that range", mark).groups()
    assert shown.index(mark) == int(first) - 1
    assert len(shown) - shown.index(mark) - 1 == 10_000 - int(last)
    assert observation.truncated_bytes > 100_000
    assert f"{first}  line = {int(first):06}" in await bench.text(f"view long.py {first} {int(first) + 5}")

    wide = (await bench.text("view wide")).splitlines()[1:]
    assert wide[0].endswith("[line cut]")
    assert wide[1].endswith("last")


async def test_the_size_of_a_view_is_an_option(make_bench):
    spec = ToolSpec(name="view", options={"outputBytes": 2048})
    bench = await make_bench({"long.py": "x = 1\n" * 10_000}, tools=[spec])
    assert 1500 < len(await bench.text("view long.py")) < 2048 + 200


async def test_a_view_of_a_range_leaves_the_file_in_focus(make_bench):
    bench = await make_bench({"a.py": "a = 1\n", "b.py": "b = 1\nb = 2\n"})
    await bench.use("view a.py")
    observation = await bench.use("view b.py 2 2")
    assert observation.focus_file is None
    assert bench.context.focus_file == "a.py"
    await bench.use("view b.py")
    assert bench.context.focus_file == "b.py"


async def test_view_decodes_as_python_would(make_bench):
    bench = await make_bench({
        "latin.py": "# coding: latin-1\nname = 'é'\n".encode("latin-1"),
        "wide.txt": "één\nb\n".encode("utf-16"),
        "odd.txt": b"a\x0cb\x85c\r\nd\re",
        "empty.py": "",
    })  # fmt: skip
    assert "name = 'é'" in await bench.text("view latin.py")
    assert "één" in await bench.text("view wide.txt")
    assert "lines 1 to 3 of 3" in await bench.text("view odd.txt")
    assert await bench.text("view empty.py") == "empty.py, an empty file:"


async def test_grep_finds_lines_in_visible_text_files_only(bench, both_kinds):
    assert (await bench.text("grep add")).splitlines() == [
        "calc.py:1: def add(a, b):",
        "tests/test_calc.py:1: from calc import add",
        "1 file skipped: binary, very large or unreadable.",
    ]
    assert (await bench.text("grep '^    return' calc.py")).splitlines() == ["calc.py:2:     return a + b"]
    assert (await bench.text("grep 'VALUE|add' . 1")).splitlines()[:2] == [
        "calc.py:1: def add(a, b):",
        "Only the first 1 match shown.",
    ]
    assert (await bench.text("grep nothing_like_it pkg")) == "No line matches in 2 files."


async def test_grep_does_not_follow_links(bench, sandbox):
    await sandbox.run("ln -s secret/keep.py peek.py; ln -s /etc/passwd users")
    text = await bench.text("grep 'SECRET|root'")
    assert text.startswith("No line matches")


async def test_a_pattern_that_never_ends_is_stopped(make_bench, monkeypatch):
    monkeypatch.setattr("dgym.tools.grep.TIMEOUT_SECONDS", 0.5)
    bench = await make_bench({"a.txt": "hit\n" + "a" * 40 + "!\n"})
    text = await bench.text("grep 'hit|(a+)+$'")
    assert "The search was stopped after 0.5 s; simplify the pattern" in text
