"""Generated outputs of test runs, with the rows that grade them, for every parser of Python repositories."""

import random
from typing import NamedTuple

REPOSITORIES = {
    "astroid": "pytest",
    "astropy": "pytest",
    "django": "django",
    "flask": "pytest",
    "marshmallow": "pytest",
    "matplotlib": "pytest",
    "pvlib": "pytest",
    "pydicom": "pytest",
    "pylint": "pytest",
    "pytest": "pytest",
    "pytest_options": "pytest",
    "pytest_v2": "pytest",
    "pyvista": "pytest",
    "requests": "pytest",
    "scikit": "pytest",
    "seaborn": "seaborn",
    "sphinx": "pytest",
    "sqlfluff": "pytest",
    "sympy": "sympy",
    "xarray": "pytest",
}
"""Every parser of a Python repository, without the prefix ``parse_log_``, and the style of the text that it reads."""

START, END = "+ : '>>>>> Start Test Output'", "+ : '>>>>> End Test Output'"
_PYTEST_NAMES = (
    "tests/test_a.py::test_one",
    "tests/test_a.py::TestA::test_two",
    "tests/test_a.py::test_p[1-2]",
    "tests/test_a.py::test_p[a b-c]",
    "tests/test_a.py::test_p[/tmp/x/y-1]",
    "tests/test_a.py::test_p[//host/x]",
    "tests/test_a.py::test_p[/a*/b]",
    "tests/test_a.py::test_log[log(photon /(cm2 s))]",
    "tests/test_a.py::test_log[log(photon / s)]",
    "tests/test_a.py::test_q[MouseButton.LEFT]",
    "tests/test_a.py::test_q[MouseButton.RIGHT-1]",
    "tests/test_ä.py::test_ö",
)
_DJANGO_NAMES = (
    "test_one (app.tests.CaseOne)",
    "test_two (app.tests.CaseTwo.test_two)",
    "A description of what it does",
    "--version is equivalent to version",
    "test_ellipsis ... inside (app.tests.X)",
)
_SYMPY_NAMES = ("test_one", "test_two", "test_three", "sympy/core/tests/test_x.py:test_y", "test_four")
_NOISE = (
    "============================= test session starts ==============================",
    "collected 4 items",
    "tests/test_a.py ..F.x                                                      [100%]",
    "PASSED",
    "FAILED",
    "SKIPPED [3] tests/test_a.py:12: no network",
    "SKIPPED [1] x.py:3: reason - with dash",
    "XPASS tests/test_a.py::test_one",
    "PASSED [100%]",
    "\x1b[32mPASSED\x1b[0m tests/test_a.py::\x1b[1mtest_one\x1b[0m",
    "________ sympy/core/tests/test_x.py:test_y ________",
    "ok",
    "",
    "Traceback (most recent call last):",
    "ERROR tests/test_b.py - ImportError: no module",
    "Testing against Django installed in '/testbed' with up to 4 processes (0 silenced).",
)
_FAULTS = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
_PROOFS = (
    *("Tests: 3 passed", "5 passing", "Executed 0 of 0", "TOTAL: 3 SUCCESS", "# tests 4", "a': ok"),
    "3 specs, 0 failures",
)
_GOOD = ("PASSED",) * 9 + ("XFAIL", "SKIPPED")
_ANY = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL")
_DJANGO = {"PASSED": "ok", "FAILED": "FAIL", "ERROR": "ERROR", "SKIPPED": "skipped 'why'", "XFAIL": "expected failure"}


class Case(NamedTuple):
    """An output text, the parser that reads it, and the test lists of a row."""

    number: int
    parser: str
    rule: str
    text: str
    fail_to_pass: list[str]
    pass_to_pass: list[str]


def make_cases(count):
    """The first ``count`` cases. They are the same every time."""
    names = sorted(REPOSITORIES)
    return [_make(number, names[number % len(names)]) for number in range(count)]


def _make(number, parser):
    chance = random.Random(number)
    style = REPOSITORIES[parser]
    known = {"pytest": _PYTEST_NAMES, "seaborn": _PYTEST_NAMES, "django": _DJANGO_NAMES, "sympy": _SYMPY_NAMES}[style]
    mostly_good = chance.random() < 0.6
    ran = chance.sample(known, chance.randint(0 if chance.random() < 0.2 else 1, len(known)))
    lines = []
    for name in ran:
        lines += _lines(chance, style, name, mostly_good)
        if chance.random() < 0.25:
            lines.append(chance.choice(_NOISE))
    listed = ran if chance.random() < 0.7 and ran else list(known)
    chosen = [_listed(chance, parser, name) for name in chance.sample(listed, chance.randint(1, len(listed)))]
    chosen = list(dict.fromkeys(chosen))
    cut = chance.randint(1, len(chosen))
    rule = "fail_only" if chance.random() < 0.15 else "pass_and_fail"
    return Case(number, parser, rule, _frame(chance, lines, mostly_good), chosen[:cut], chosen[cut:])


def _listed(chance, parser, name):
    """The name as it appears in a list of a row: as the parser returns it, cut off, or unchanged."""
    if parser == "matplotlib":
        name = name.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")
    if parser in ("pydicom", "requests", "pylint", "pytest_options"):
        name = name.replace("[/tmp/x/y-1]", "[/y-1]")
    if " " in name and "::" in name and parser not in ("astropy", "scikit", "sphinx", "pytest_v2"):
        return name.split()[0]
    if "[" in name and chance.random() < 0.2:
        return name[: name.index("[") + chance.randint(1, 4)]
    return name


def _lines(chance, style, name, good):
    outcome = chance.choice(_GOOD if good else _ANY)
    if style == "django":
        forms = [f"{name} ... {_DJANGO[outcome]}"]
        if outcome == "PASSED":
            forms += [f"{name} ... OK", f"{name} ...  OK", f"{name} ... Something else was printed\nok"]
            forms += [f"{name} ... System check identified no issues (0 silenced)\nok"]
            forms += [
                f"{name} ... Internal Server Error: /x/\nok",
                f"{name} ... Testing against Django installed in 'x' silenced).\nok",
            ]
            forms += [f"Applying sites.0002_alter_domain_unique...{name} ... ok"]
        if outcome in ("FAILED", "ERROR"):
            forms += [f"{_DJANGO[outcome]}: {name}"]
        return [chance.choice(forms)]
    if style == "sympy":
        ends = {"PASSED": "ok", "FAILED": "F", "ERROR": "E", "SKIPPED": "s", "XFAIL": "f"}
        return [f"{chance.choice(('', '  '))}{name} {ends[outcome]}"]
    if style == "seaborn" and chance.random() < 0.6:
        return [f"{name} {outcome} [ 42%]"]
    forms = [f"{outcome} {name}"] * 6 + [
        f"{name} {outcome}",
        f"{name} {outcome} [ 50%]",
        f"  {outcome} {name}",
        f"{outcome} {name}\r",
    ]
    if outcome in ("FAILED", "ERROR"):
        forms += [f"{outcome} {name} - AssertionError: a - b"] * 4
    return [chance.choice(forms)]


def _frame(chance, lines, good):
    """The output of a whole run: preparation, markers, test lines and exit status."""
    before = ["+ cd /testbed", "Checking patch tests/test_a.py..."]
    after = ["+ git checkout abc tests/test_a.py"]
    roll = chance.random()
    if roll < 0.04:
        before.append(chance.choice(_FAULTS))
    elif roll < 0.08:
        return "\n".join([*before, START, *lines])
    elif roll < 0.11:
        return "\n".join([*before, *lines])
    elif roll < 0.15:
        lines, after = [], [*lines, *after]
    elif roll < 0.20:
        lines = [chance.choice(_PROOFS)]
    elif roll < 0.23:
        lines = [*lines, START, *lines[:1]]
    status = []
    if chance.random() < 0.8:
        code = chance.choice((0, 0, 0, 1) if good else (0, 1, 1, 2, 137, -9))
        status = [f">>>>> Test Exit Code: {code}"]
    ending = "\n" if chance.random() < 0.9 else "\r\n"
    return ending.join([*before, START, *lines, END, *status, *after, ""])
