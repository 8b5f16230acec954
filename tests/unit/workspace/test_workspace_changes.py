import hashlib

import pytest

from dgym.sandbox import ManifestEntry
from dgym.workspace import Policy, Refusal, compare, refuse


def of_kind(changes, kind):
    return tuple(change.path for change in changes.items if change.kind == kind)


def file(content: str, mode: int = 0o644) -> ManifestEntry:
    digest = hashlib.sha256(content.encode()).hexdigest()
    return ManifestEntry(type="file", mode=mode, size=len(content), sha256=digest)


def link(target: str) -> ManifestEntry:
    return ManifestEntry(type="symlink", mode=0o777, target=target)


FIFO = ManifestEntry(type="other", mode=0o644)


def test_kinds_of_change():
    before = {"same": file("s"), "edited": file("1"), "mode": file("m"), "gone": file("g"), "swapped": file("x")}
    after = {
        "same": file("s"),
        "edited": file("2"),
        "mode": file("m", 0o755),
        "new": file("n"),
        "swapped": link("same"),
    }
    changes = compare(before, after)
    assert of_kind(changes, "added") == ("new",)
    assert of_kind(changes, "modified") == ("edited", "swapped")
    assert of_kind(changes, "mode") == ("mode",)
    assert of_kind(changes, "deleted") == ("gone",)
    assert changes.paths == ("edited", "gone", "mode", "new", "swapped")
    assert changes
    assert not compare(before, before)


def test_only_the_executable_bit_of_a_mode_is_compared():
    assert not compare({"a": file("a", 0o644)}, {"a": file("a", 0o600)})
    assert of_kind(compare({"a": file("a", 0o644)}, {"a": file("a", 0o744)}), "mode") == ("a",)


def split_changes(before, after, policy=None, delivered=()):
    allowed, refused = refuse(compare(before, after), policy or Policy.parse({}), delivered)
    return list(allowed.paths), dict(refused)


def test_changes_of_protected_files_are_refused_with_reasons():
    policy = Policy.parse({".debugignore": "secret.txt\n", ".debugreadonly": "test_*.py\n"})
    before = {"a.py": file("1"), "test_a.py": file("1"), "secret.txt": file("1"), ".debugignore": file("1")}
    after = {"a.py": file("2"), "test_a.py": file("2"), "b/.debugreadonly": file(""), "b/test_b.py": file("")}
    allowed, refused = split_changes(before, after, policy)
    assert allowed == ["a.py"]
    assert refused == {
        ".debugignore": "policy files cannot be changed",
        "b/.debugreadonly": "policy files cannot be changed",
        "b/test_b.py": "it is read-only",
        "secret.txt": "it is hidden by .debugignore",
        "test_a.py": "it is read-only",
    }


@pytest.mark.parametrize("replacement", [link("elsewhere"), file("x")])
def test_a_directory_with_protected_files_cannot_be_swapped(replacement):
    policy = Policy.parse({".debugreadonly": "test_*.py\n"})
    before = {"pkg/tests/test_a.py": file("1"), "pkg/tests/data.txt": file("d")}
    after = {"pkg/tests": replacement, "elsewhere/test_a.py": file("2")}
    allowed, refused = split_changes(before, after, policy)
    assert allowed == ["pkg/tests/data.txt"]
    assert refused == {
        "elsewhere/test_a.py": "it is read-only",
        "pkg/tests": "pkg/tests/test_a.py below it is protected",
        "pkg/tests/test_a.py": "it is read-only",
    }


def test_a_protected_file_cannot_become_a_directory():
    policy = Policy.parse({".debugreadonly": "conftest.py\n"})
    allowed, refused = split_changes({"conftest.py": file("1")}, {"conftest.py/x.py": file("2")}, policy)
    assert allowed == []
    assert set(refused) == {"conftest.py", "conftest.py/x.py"}


def test_a_link_with_the_name_of_a_protected_directory_is_refused():
    policy = Policy.parse({".debugreadonly": "tests/\n"})
    allowed, refused = split_changes({}, {"tests": link("mine"), "mine/a": file("")}, policy)
    assert allowed == ["mine/a"]
    assert refused == {"tests": "it is read-only"}


@pytest.mark.parametrize("target", ["/etc/passwd", "..", "sub/../../x", "hop/../.."])
def test_links_out_of_the_workspace_are_refused(target):
    after = {"d/hop": link("../sub"), "d/link": link(target)}
    allowed, refused = split_changes({}, after)
    assert allowed == (["d/hop", "d/link"] if target in ("..", "sub/../../x") else ["d/hop"])
    assert all("outside the workspace" in why for why in refused.values())


def test_special_files_are_refused():
    refused = {"fifo": "it is or was neither a file nor a symbolic link"}
    assert split_changes({}, {"fifo": FIFO}) == split_changes({"fifo": FIFO}, {}) == ([], refused)


def test_generated_files_are_named_by_their_topmost_directory():
    policy = Policy.parse({".gitignore": "build/\n*.log\n"})
    after = {f"build/lib/{n}.o": file("") for n in range(50)} | {"run.log": file(""), "a/x.egg-info/y": file("")}
    allowed, refused = refuse(compare({}, after), policy)
    why = "it is generated or named by .gitignore"
    assert allowed.items == ()
    assert refused == [Refusal("a/x.egg-info/", why), Refusal("build/", why), Refusal("run.log", why)]


def test_changes_of_original_files_are_allowed_regardless_of_gitignore():
    policy = Policy.parse({".gitignore": "/*\n!/src/\nkept.cfg\n"})
    before = {path: file("1") for path in ("a.egg-info/kept", "b/kept.cfg", "built.so", "gone.py", "src/calc.py")}
    after = {**{path: file("2") for path in before if path != "gone.py"}, "new.py": file("1"), "src/new.py": file("1")}
    delivered = before.keys() - {"built.so"}
    allowed, refused = split_changes(before, after, policy, delivered)
    assert allowed == ["src/calc.py", "src/new.py", "a.egg-info/kept", "b/kept.cfg", "gone.py"]
    assert set(refused) == {"built.so", "new.py"}


def test_version_control_is_never_carried():
    assert split_changes({".hg/store": file("1")}, {".hg/store": file("2")}, delivered=(".hg/store",))[0] == []
