import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dgym.errors import ManifestError
from dgym.workspace import Policy, policy_files
from dgym.workspace._policy import is_policy_file


def test_each_policy_file_has_its_own_effect():
    policy = Policy.parse(
        {".debugignore": "secret/\n", ".debugreadonly": "test_*.py\n", ".gitignore": "build/\n", "README": "*\n"}
    )
    assert policy.ignored("secret/key.txt")
    assert policy.ignored("secret", True)
    assert not policy.ignored("secret")
    assert not policy.ignored("tests/test_a.py")
    assert policy.read_only("tests/test_a.py")
    assert policy.read_only("secret/key.txt")
    assert not policy.read_only("a.py")
    assert policy.excluded_from_patch("build/x.o")
    assert not policy.excluded_from_patch("tests/test_a.py")


def test_a_path_below_an_excluded_directory_cannot_be_included_again():
    policy = Policy.parse({".debugignore": "secret/\n!secret/keep.py\n"})
    assert policy.ignored("secret/keep.py")
    policy = Policy.parse({".debugignore": "secret/*\n!secret/keep.py\n"})
    assert not policy.ignored("secret/keep.py")
    assert policy.ignored("secret/other.py")


def test_deeper_files_overrule_higher_ones_and_the_task_all_of_them():
    files = {".debugreadonly": "*.json\n", "data/.debugreadonly": "!free.json\n"}
    policy = Policy.parse(files)
    assert policy.read_only("a.json")
    assert policy.read_only("data/a.json")
    assert not policy.read_only("data/free.json")
    policy = Policy.parse(files, read_only=["free.json", "!a.json"])
    assert policy.read_only("data/free.json")
    assert not policy.read_only("a.json")


def test_patterns_of_the_task():
    policy = Policy.parse({}, ignore=["/solution", "*.key"], read_only=["tests/"])
    assert policy.ignored("solution/a.py")
    assert not policy.ignored("src/solution")
    assert policy.ignored("x/y.key")
    assert policy.read_only("tests/test_a.py")
    assert not policy.ignored("tests/test_a.py")


@pytest.mark.parametrize("path", [".debugignore", "a/.debugreadonly", ".debugreadonly"])
def test_policy_files_are_protected_in_every_directory(path):
    assert is_policy_file(path)
    assert Policy.parse({}).read_only(path)
    assert not Policy.parse({}).ignored(path)


def test_the_repositorys_gitignore_may_be_changed():
    assert not Policy.parse({".gitignore": "x\n"}).read_only(".gitignore")


@pytest.mark.parametrize(
    "path",
    [".git/config", "a/__pycache__/b", ".GIT/x", "b.pyc", "pkg.egg-info/PKG-INFO", ".pytest_cache/v", "sub/.git"],
)
def test_generated_files_are_never_in_a_patch(path):
    assert Policy.parse({}).excluded_from_patch(path)


def test_names_that_only_look_generated():
    assert not Policy.parse({}).excluded_from_patch(".github/workflow.yml")
    assert not Policy.parse({}).excluded_from_patch("pyc.py")


def test_policy_files_of_a_tree():
    assert policy_files(["a.py", ".gitignore", "d/.debugignore", "x.debugignore"]) == [".gitignore", "d/.debugignore"]


@pytest.mark.parametrize(
    "line", ["a.py", "/new?line/a.py", "new?line", "*", "**", "new*/*.py", "**/*.py", "*/", "n[!x]*"]
)
def test_a_line_break_in_a_name_is_a_character_as_any_other(line):
    assert Policy.parse({".debugignore": line + "\n"}).ignored("new\nline/a.py")


def test_a_line_break_at_the_end_of_a_name_belongs_to_it():
    policy = Policy.parse({".debugignore": "/a\n", "b\n/.debugignore": "c\n"})
    assert not policy.ignored("a\n")
    assert policy.ignored("b\n/c")
    assert not policy.ignored("b/c")


def test_a_line_ends_at_a_zero_byte_as_in_git():
    policy = Policy.parse({".debugignore": "a\0b\n"})
    assert policy.ignored("a")
    assert not policy.ignored("a\nb")


@pytest.mark.parametrize(
    "pattern", ["*a" * 200 + "b", "**/a/" * 60 + "b", "/" + "*a" * 40 + "/" + "**/*a*" * 40 + "/b"]
)
def test_hostile_patterns_are_matched_quickly(pattern):
    policy = Policy.parse({".debugignore": pattern + "\n"})
    started = time.process_time()
    assert not policy.ignored("/".join(["a" * 200] * 15) + "/" + "a/" * 300 + "c")
    assert time.process_time() - started < 10


@example("\ud800", "a")
@given(st.text(max_size=40), st.text(alphabet="ab/*.", min_size=1, max_size=10))
def test_every_text_is_a_valid_policy(text, path):
    policy = Policy.parse({".debugignore": text, "a/.debugreadonly": text})
    for is_dir in (False, True):
        assert policy.ignored(path, is_dir) <= policy.read_only(path, is_dir)


@pytest.mark.parametrize("line", ["tests//a", "./tests", "src/../tests", "[ab", "[[:nope:]]", "a\\", "/"])
@pytest.mark.parametrize("field", ["ignore", "read_only"])
def test_a_tasks_own_pattern_that_matches_no_path_is_refused_by_its_field(field, line):
    name = {"ignore": "ignorePatterns", "read_only": "readOnlyPatterns"}[field]
    with pytest.raises(ManifestError, match=rf"{name}\[1\]: .* matches no path"):
        Policy.parse({}, **{field: ["tests/", line]})
