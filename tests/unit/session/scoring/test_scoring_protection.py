"""Tests of the selection of the agent's changes that are applied before the tests run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.session.scoring._protection import affects_tests, protect, select_changes, why_dropped
from dgym.session.scoring._score import ExpectedTests, SuiteCache
from dgym.workspace.patches import FileVersion

PRISTINE = [
    "calc.py",
    "conftest.py",
    "pyproject.toml",
    "tests/helpers.py",
    "tests/unit/test_calc.py",
    "lib/test/client.py",
    "speed_test.py",
    "setup.cfg",
]
PROTECTION = protect(PRISTINE, ["tests/unit/test_calc.py::test_a"], ["hidden/secret_checks.py"])
PYPROJECT = b"[project]\nname = 'a'\n[tool.pytest.ini_options]\naddopts = '-q'\n"


def outcome(path, data=b"", *, symlink=False):
    allowed, refused = select_changes({path: FileVersion(data, is_symlink=symlink)}, PROTECTION, PYPROJECT)
    assert (path in allowed) != (path in refused)
    return path in allowed


@pytest.mark.parametrize("path", ["calc.py", "new.py", "lib/test/client.py", "speed_test.py", "testing/tools.py"])
def test_changes_of_code_are_scored(path):
    assert outcome(path)


@pytest.mark.parametrize(
    "path",
    [
        "tests/unit/test_calc.py",
        "tests/helpers.py",
        "tests/new.py",
        "tests",
        "tests/unit",
        "tests/unit/test_calc.py/inner",
        "hidden",
        "hidden/secret_checks.py",
        "conftest.py",
        "lib/conftest.py",
        "setup.cfg",
        "pytest.ini",
        "lib/pytest.ini",
        "tox.ini",
        "pytest.py",
        "lib/pytest.py",
        "pytest.cpython-311-x86_64-linux-gnu.so",
        "_pytest/__init__.py",
        "_pytest",
        "pluggy/__init__.py",
        "pluggy.py",
        "sitecustomize.py",
        "usercustomize/__init__.py",
        "evil.pth",
        "test_new.py",
        "lib/new_test.py",
    ],
)
def test_changes_that_affect_the_tests_are_refused(path):
    assert not outcome(path)
    assert not outcome(path, b"elsewhere", symlink=True)


def test_the_repository_of_pytest_accepts_new_files_of_pytest():
    protection = protect(["src/_pytest/runner.py", "src/pytest/__init__.py"], ["testing/test_runner.py::test_a"])
    assert protection.why_refused("src/_pytest/runner.py") is None
    assert protection.why_refused("src/_pytest/new.py") is None
    assert protection.why_refused("_pytest/new.py") is not None


def test_deletions_of_tests_are_refused():
    _, refused = select_changes({"tests/unit/test_calc.py": None, "conftest.py": None}, PROTECTION, PYPROJECT)
    assert set(refused) == {"tests/unit/test_calc.py", "conftest.py"}


@pytest.mark.parametrize(
    ("data", "travels"),
    [
        (b"[project]\nname = 'b'\n[tool.pytest.ini_options]\naddopts = '-q'\n", True),
        (b"[project]\nname = 'a'\n", False),
        (b"[project]\nname = 'a'\n[tool.pytest.ini_options]\naddopts = '-p evil'\n", False),
        (b"[tool.pytest]\naddopts = ['-q']\n", False),
        (b"[tool\n", False),
        (b"\xff\xfe", False),
        (b"tool = 3\n", False),
    ],
)
def test_the_section_of_pytest_in_pyproject_cannot_change(data, travels):
    assert outcome("pyproject.toml", data) is travels


def test_a_deeper_pyproject_may_not_bring_a_section():
    assert outcome("lib/pyproject.toml", b"[project]\nname = 'b'\n")
    assert not outcome("lib/pyproject.toml", b"[tool.pytest.ini_options]\naddopts = '-q'\n")


def test_test_ids_are_found_below_the_workspace():
    protection = protect(["app/checks/test_a.py"], ["checks/test_a.py::TestX::test_y[1::2]"])
    assert protection.is_restored("app/checks/test_a.py")
    assert protection.why_refused("app/checks/test_a.py") == "it affects the tests"


def test_files_to_put_back_after_a_build():
    assert [path for path in PRISTINE if PROTECTION.is_restored(path)] == [
        "conftest.py",
        "tests/helpers.py",
        "tests/unit/test_calc.py",
        "setup.cfg",
    ]


PATHS = st.lists(st.sampled_from(["tests", "unit", "lib", "test_calc.py", "x.py", "conftest.py"]), min_size=1).map(
    "/".join
)


@given(PATHS)
def test_changes_at_above_or_below_a_protected_path_are_refused(path):
    protected = {"tests/unit/test_calc.py", "conftest.py"}
    touches = any(
        path == file or file.startswith(path + "/") or path.startswith(file + "/") for file in protected
    ) or path.startswith("tests/")
    if touches or affects_tests(path):
        assert not outcome(path)


@given(st.text(max_size=30))
def test_why_dropped_accepts_any_name(path):
    assert why_dropped(path) is None or isinstance(why_dropped(path), str)


def test_the_suite_of_a_task_is_remembered(tmp_path):
    cache = SuiteCache(tmp_path / "made" / "later", "digest")
    expected = ExpectedTests(outcomes={"a": "passed", "b": ""}, collection_errors=("c.py",))
    assert cache.get() is None
    cache.put(expected)
    assert cache.get() == expected
    assert SuiteCache(tmp_path / "made" / "later", "other").get() is None


def test_a_damaged_or_unwritable_cache_is_ignored(tmp_path):
    cache = SuiteCache(tmp_path, "digest")
    cache.put(ExpectedTests(outcomes={"a": ""}))
    for file in tmp_path.iterdir():
        file.write_text("not json")
    assert cache.get() is None
    blocked = tmp_path / "file"
    blocked.write_text("")
    SuiteCache(blocked, "digest").put(ExpectedTests())


@pytest.mark.thorough
@pytest.mark.attack("parsers")
@pytest.mark.parametrize(
    "text",
    [b"a" + b".a" * 100_000 + b" = 'pytest'", b"x = " + b"9" * 5000 + b"\ny = 'pytest'", b"pytest = " + b"[" * 3000],
    ids=["dotted key", "number", "brackets"],
)
def test_an_unreadable_pyproject_is_refused(text):
    protection = protect(["pyproject.toml"], [])
    changed, refused = select_changes({"pyproject.toml": FileVersion(text)}, protection, b"[tool.pytest]\n")
    assert not changed
    assert refused == {"pyproject.toml": "its section about pytest differs"}


def test_a_pyproject_without_a_section_about_pytest_is_accepted():
    version = FileVersion(b"x = " + b"9" * 5000)
    assert select_changes({"pyproject.toml": version}, protect(["pyproject.toml"], []), b"") == (
        {"pyproject.toml": version},
        {},
    )


def test_a_key_in_escapes_is_a_section_about_pytest():
    version = FileVersion(rb'[tool."\u0070ytest".ini_options]' + b"\naddopts = '--co'\n")
    assert select_changes({"pyproject.toml": version}, protect(["pyproject.toml"], []), b"")[1]
