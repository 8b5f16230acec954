"""Tests of the tool rewrite on real files: changed lines, unchanged lines and refused calls."""

import pytest

SOURCE = "import os\n\n\ndef f(x):\n    y = x + 1\n    return y\n"


@pytest.fixture
async def bench(make_bench):
    files = {"a.py": SOURCE, "tests/test_a.py": "pass\n", ".debugreadonly": "tests/\n", ".debugignore": "*.secret\n"}
    return await make_bench({**files, "x.secret": "hidden\n"})


async def content(bench, path="a.py"):
    return (await bench.sandbox.read_file(path)).decode()


async def test_lines_are_replaced_and_the_observation_has_the_diff(bench, both_kinds):
    execution = await bench.execute("rewrite a.py 5:6 <c>    return x + 2</c>")
    assert await content(bench) == "import os\n\n\ndef f(x):\n    return x + 2\n"
    assert execution.rewrote
    assert execution.observation.focus_file == "a.py"
    assert execution.observation.diff in execution.observation.text + "\n"
    assert "-    y = x + 1\n-    return y\n+    return x + 2\n" in execution.observation.diff


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("rewrite a.py 1 <c>import sys</c>", SOURCE.replace("os", "sys")),
        ("rewrite a.py 1:0 <c># first</c>", "# first\n" + SOURCE),
        ("rewrite a.py 7 <c># last</c>", SOURCE + "# last\n"),
        ("rewrite a.py 2:3 <c></c>", SOURCE.replace("\n\n\n", "\n")),
        ("rewrite a.py <c>x = 1\n</c>", "x = 1\n"),
    ],
)
async def test_the_ranges_of_the_grammar(bench, action, expected):
    assert (await bench.use(action)).ok
    assert await content(bench) == expected


async def test_directories_of_a_new_file_are_created(bench):
    observation = await bench.use("rewrite new/deep/b.py <c>b = 1</c>")
    assert observation.text.startswith("Created new/deep/b.py.")
    assert await content(bench, "new/deep/b.py") == "b = 1\n"


async def test_everything_else_is_kept_byte_for_byte(make_bench, sandbox):
    original = "# coding: latin-1\r\nname = 'é'\r\nlast = 1".encode("latin-1")
    bench = await make_bench({"run.py": original})
    await sandbox.run("chmod 755 run.py")
    await bench.use("rewrite run.py 2 <c>name = 'è'\nmore = 0</c>")
    assert await sandbox.read_file("run.py") == "# coding: latin-1\r\nname = 'è'\r\nmore = 0\r\nlast = 1".encode(
        "latin-1"
    )
    (found,) = await sandbox.stat(["run.py"])
    assert found.mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("action", "fragment"),
    [
        ("rewrite a.py 9 <c>x</c>", "the file has 6 lines"),
        ("rewrite a.py 3:9 <c>x</c>", "end is 9"),
        ("rewrite a.py 3:1 <c>x</c>", "end is 1"),
        ("rewrite a.py 0 <c>x</c>", "`start` is out of range: it must be an integer of at least 1"),
        ("rewrite tests/test_a.py <c>x</c>", "is read-only and cannot be changed"),
        ("rewrite tests/new.py <c>x</c>", "is read-only and cannot be changed"),
        ("rewrite .debugreadonly <c></c>", "is read-only and cannot be changed"),
        ("rewrite x.secret <c>x</c>", "is protected and cannot be written"),
        ("rewrite y.secret <c>x</c>", "is protected and cannot be written"),
        ("rewrite link/test_a.py <c>x</c>", "is read-only and cannot be changed"),
        ("rewrite out/passwd <c>x</c>", "leads outside the workspace"),
        ("rewrite ../x.py <c>x</c>", "outside the workspace"),
        ("rewrite tests <c>x</c>", "read-only"),
        ("rewrite . <c>x</c>", "is a directory"),
        ("rewrite a.py/b.py <c>x</c>", "a.py/b.py"),
        ("rewrite new.py 3 <c>x</c>", "does not exist; leave `start` and `end` out"),
        ("rewrite a.py 1 <c>import os</c>", "already has this text"),
        ({"tool": "rewrite", "arguments": {"path": "a.py", "end": 3, "new_code": ""}}, "without start"),
        ({"tool": "rewrite", "arguments": {"path": "a.py", "start": 1}}, "`new_code` is missing"),
    ],
)
async def test_an_invalid_rewrite_is_refused_without_changes(bench, sandbox, action, fragment):
    await sandbox.run("ln -s tests link; ln -s /etc out")
    before = await sandbox.manifest()
    execution = await bench.execute(action)
    assert not execution.observation.ok
    assert not execution.rewrote
    assert fragment in execution.observation.text
    assert await sandbox.manifest() == before


async def test_a_link_inside_the_workspace_stays_a_link(bench, sandbox, both_kinds):
    await sandbox.run("ln -s a.py alias.py")
    observation = await bench.use("rewrite alias.py 1 <c>import sys</c>")
    assert observation.focus_file == "a.py"
    assert await content(bench) == SOURCE.replace("os", "sys")
    (found,) = await sandbox.stat(["alias.py"])
    assert found.type == "symlink"
