import contextlib
import os
import posixpath
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dgym.errors import PathError
from dgym.workspace import decode_path, encode_path, normalize
from dgym.workspace._paths import ancestors, is_git_directory, resolve_link


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.py", "a.py"),
        ("./src//a.py", "src/a.py"),
        ("src/../a.py", "a.py"),
        ("src/", "src"),
        (".", "."),
        ("/workspace", "."),
        ("/workspace/", "."),
        ("/workspace/src/a.py", "src/a.py"),
        ("//workspace/a.py", "a.py"),
        ("../workspace/a.py", "a.py"),
        ("a\\b", "a\\b"),
        (" a ", " a "),
        ("..a", "..a"),
    ],
)
def test_paths_are_normalised(path, expected):
    assert normalize(path, "/workspace") == expected


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a\0b", "NUL"),
        ("..", "outside"),
        ("/etc/passwd", "outside"),
        ("/workspace2/a", "outside"),
        ("a/../../b", "outside"),
        ("/", "outside"),
        ("a" * 5000, "longer"),
        ("\ud800", "cannot be the name"),
    ],
)
def test_refused(path, message):
    with pytest.raises(PathError, match=message):
        normalize(path, "/workspace")


def test_a_workspace_at_the_root():
    assert normalize("/etc/x", "/") == "etc/x"
    assert normalize("/", "/") == "."


segments = st.sampled_from(("a", "b", "..", ".", "", "workspace"))


@given(st.lists(segments, min_size=1, max_size=8).map("/".join), st.booleans())
def test_accepted_paths_are_inside_of_the_workspace_and_normalising_is_idempotent(path, absolute):
    path = "/workspace/" + path if absolute else path
    whole = "/" + posixpath.normpath(posixpath.join("/workspace", path)).lstrip("/")
    inside = whole == "/workspace" or whole.startswith("/workspace/")
    if not inside or not path:
        with pytest.raises(PathError):
            normalize(path, "/workspace")
    else:
        short = normalize(path, "/workspace")
        assert posixpath.normpath("/workspace/" + short) == whole
        assert normalize(short, "/workspace") == short


@given(st.binary(max_size=50))
def test_every_name_of_a_file_can_be_written_as_text(raw):
    assert encode_path(decode_path(raw)) == raw


def test_ancestors():
    assert ancestors("a/b/c") == ["a", "a/b"]
    assert ancestors("a") == []


links = st.dictionaries(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=2).map("/".join),
    st.lists(st.sampled_from(("a", "b", "c", "..", ".")), min_size=1, max_size=4).map("/".join),
    max_size=4,
)


@settings(deadline=None)
@given(links)
def test_links_that_lead_outside_are_detected(links):
    with tempfile.TemporaryDirectory() as base:
        root = Path(base).resolve() / "above" / "root"
        root.mkdir(parents=True)
        made = {}
        for path, target in sorted(links.items()):
            file = root / path
            if not any((root / above).is_symlink() for above in ancestors(path)) and not os.path.lexists(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.symlink_to(target)
                made[path] = target
        for outside in "abc":
            (root.parent / outside).mkdir()
        for path, target in made.items():
            # A link that is broken or part of a loop has no target.
            with contextlib.suppress(OSError):
                real = os.path.realpath(root / path, strict=True)
                assert resolve_link(path, target, made) is None or f"{real}/".startswith(f"{root}/")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("x", "d/x"),
        ("../x", "x"),
        ("..", "."),
        ("../..", None),
        ("/x", None),
        ("../loop", "loop"),
        ("../hop/../..", None),
        ("link/../../..", None),
    ],
)
def test_a_link_is_followed_through_others(target, expected):
    tree = {"d/link": target, "hop": "d", "loop": "loop"}
    assert resolve_link("d/link", target, tree) == expected


SPELLINGS = ".gitGIT~1 :\\\u200c\u200d\ufeff\u202eé."


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Returns whether git, with the rules of every file system, accepts a path into its index."""
    root = tmp_path_factory.mktemp("index")
    run = partial(subprocess.run, cwd=root, capture_output=True, check=False)
    run(["git", "init", "-q"])
    blob = run(["git", "hash-object", "-w", "--stdin"], input=b"").stdout.decode().strip()
    settings = ["-c", "core.protectHFS=true", "-c", "core.protectNTFS=true"]

    def takes(path):
        line = f"100644 {blob}\t{path}\0".encode()
        return run(["git", *settings, "update-index", "--add", "-z", "--index-info"], input=line).stderr == b""

    return takes


@example(".GIT")
@example(".g\u200cit")
@example("git~1")
@example(".git . .")
@example(".git::$INDEX_ALLOCATION")
@example(".git\\x")
@example("x\\.git")
@example(".gitignore")
@example("git~10")
@given(st.text(SPELLINGS, min_size=1, max_size=8))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_names_that_git_takes_for_its_directory(index, part):
    if part not in (".", ".."):
        assert is_git_directory(part) != index(f"{part}/hooks")
