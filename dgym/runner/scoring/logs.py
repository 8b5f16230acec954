"""Reads the outcomes of tests from the text that their run printed, as the harness of SWE-bench 5 does.

A parser is a function from a text to a dict: the name of each test, and PASSED, FAILED, SKIPPED, ERROR or XFAIL. The
names and the quirks are part of data sets: their lists of tests were made with these rules. ``read_log`` finds the part
of the text that the tests printed, and refuses a text that does not describe a whole run.
"""

import re

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
EXIT_CODE = re.compile(r">>>>> Test Exit Code:\s*(-?\d+)")
_FAULTS = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
# A count of zero is no proof: a runner that lost its browser still prints its summary.
_SUITE_RAN = re.compile(
    r"Executed [1-9]\d* of \d+"
    r"|TOTAL: [1-9]\d* (?:SUCCESS|FAILED)"
    r"|[1-9]\d* passing"
    r"|Tests:\s+[1-9]\d*"
    r"|Test Suites:\s+(?:\d+ \w+, )*[1-9]\d* total"
    r"|^# tests [1-9]\d*"
    r"|[1-9]\d* specs?, \d+ failures?"
    r"|': ok$",
    re.M,
)
_STATUSES = ("FAILED", "PASSED", "SKIPPED", "ERROR", "XFAIL")
_COUNT = re.compile(r"^\[\d+\]$")
_OPTION = re.compile(r"(.*?)\[(.*)\]")
_COLOR = re.compile(r"\[(\d+)m")
_CONTROL = dict.fromkeys(range(1, 32))


def read_log(text, parse, marked=True):
    """``(outcomes, None)``, or ``({}, why)`` for a text that is no proof of a whole run.

    ``marked``: the script prints the markers around the tests' output.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for fault in _FAULTS:
        if fault in text:
            return {}, "the script reports %r" % fault.lstrip("> ")
    if marked and not (START in text and END in text):
        return {}, "the script did not get to the tests, or not to their end"
    outcomes = parse(text.split(START)[1].split(END)[0] if marked else text)
    if not outcomes and marked:
        # Standard output and standard error may arrive in another order than they were written.
        outcomes = parse(text)
    if not outcomes and not _SUITE_RAN.search(text):
        return {}, "the text has no outcome of a test and no sign that a test ran"
    status = EXIT_CODE.search(text)
    if status and int(status.group(1)) != 0 and outcomes and not {"FAILED", "ERROR"}.intersection(outcomes.values()):
        return {}, "the tests exited with status %s although the text reports no failure" % status.group(1)
    return outcomes, None


def _split(line):
    """The words of a line that begins with an outcome; empty for every other line."""
    if not line.startswith(_STATUSES):
        return []
    if line.startswith("FAILED"):
        line = line.replace(" - ", " ")
    words = line.split()
    return [] if len(words) <= 1 or _is_summary(words) else words


def _is_summary(words):
    """Whether it is pytest's ``SKIPPED [3] path:line: reason``, which counts tests and names none."""
    return words[0] == "SKIPPED" and bool(_COUNT.match(words[1]))


def parse_pytest(text):
    """The summary of ``pytest -rA``."""
    found = {}
    for line in text.split("\n"):
        words = _split(line)
        if words:
            found[words[1]] = words[0]
    return found


def parse_pytest_options(text):
    """The same; of a parameter that is a path its last part counts."""
    found = {}
    for line in text.split("\n"):
        words = _split(line)
        if not words:
            continue
        name = words[1]
        option = _OPTION.search(name)
        if option:
            main, value = option.groups()
            if value.startswith("/") and not value.startswith("//") and "*" not in value:
                value = "/" + value.split("/")[-1]
            name = "%s[%s]" % (main, value)
        found[name] = words[0]
    return found


def parse_pytest_v2(text):
    """The summary of ``pytest -rA`` with colours and names with spaces; older ones end with the outcome."""
    found = {}
    for line in text.split("\n"):
        line = _COLOR.sub("", line).translate(_CONTROL)
        if line.startswith(_STATUSES):
            if line.startswith("FAILED"):
                line = line.split(" - ", 1)[0]
            words = line.split()
            if len(words) >= 2 and not _is_summary(words):
                found[" ".join(words[1:])] = words[0]
        elif line.endswith(_STATUSES):
            words = line.split()
            if len(words) >= 2:
                found[" ".join(words[:-1])] = words[-1]
    return found


def parse_matplotlib(text):
    """The summary of ``pytest -rA`` with buttons of the mouse by their numbers."""
    return parse_pytest(text.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def parse_seaborn(text):
    """Outcomes before or after the name."""
    found = {}
    for line in text.split("\n"):
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith("FAILED"):
            found[words[1]] = "FAILED"
        elif " PASSED " in line:
            if words[1] == "PASSED":
                found[words[0]] = "PASSED"
        elif line.startswith("PASSED"):
            found[words[1]] = "PASSED"
    return found


def parse_sympy(text):
    """The output of ``bin/test --verbose``."""
    found = {}
    for line in text.split("\n"):
        for _, path, name, _ in re.findall(r"(_*) (.*)\.py:(.*) (_*)", line):
            found["%s.py:%s" % (path, name)] = "FAILED"
    for line in text.split("\n"):
        line = line.strip()
        if line.startswith("test_"):
            for mark, outcome in ((" E", "ERROR"), (" F", "FAILED"), (" ok", "PASSED")):
                if line.endswith(mark):
                    found[line.split()[0]] = outcome
    return found


_DJANGO_TAIL = "--version is equivalent to version"
_DJANGO_MIGRATION = "Applying sites.0002_alter_domain_unique...test_no_migrations"
_DJANGO_BROKEN = tuple(
    re.compile(pattern, re.M)
    for pattern in (
        r"^(.*?)\s\.\.\.\sTesting\ against\ Django\ installed\ in\ ((?s:.*?))\ silenced\)\.\nok$",
        r"^(.*?)\s\.\.\.\sInternal\ Server\ Error:\ \/(.*)\/\nok$",
        r"^(.*?)\s\.\.\.\sSystem check identified no issues \(0 silenced\)\nok$",
    )
)


def parse_django(text):
    """The output of Django's ``runtests.py --verbosity 2``; a test's name is its description where it has one."""
    found = {}
    before = None
    for line in text.split("\n"):
        line = line.strip()
        if _DJANGO_TAIL in line:
            found[_DJANGO_TAIL] = "PASSED"
        if " ... " in line:
            before = line.split(" ... ")[0]
        line = _read_django_line(line, found)
        if line.lstrip().startswith("ok") and before is not None:
            # Other output stood between the name and the outcome.
            found[before] = "PASSED"
    for pattern in _DJANGO_BROKEN:
        for match in pattern.finditer(text):
            found[match.group(1)] = "PASSED"
    return found


def _read_django_line(line, found):
    for suffix in (" ... ok", " ... OK", " ...  OK"):
        if line.endswith(suffix):
            if line.startswith(_DJANGO_MIGRATION):
                line = line.split("...", 1)[-1].strip()
            found[line.rsplit(suffix, 1)[0]] = "PASSED"
            break
    if " ... skipped" in line:
        found[line.split(" ... skipped")[0]] = "SKIPPED"
    for suffix, prefix, outcome in ((" ... FAIL", "FAIL:", "FAILED"), (" ... ERROR", "ERROR:", "ERROR")):
        if line.endswith(suffix):
            found[line.split(suffix)[0]] = outcome
        if line.startswith(prefix):
            found[(line.split() + [""])[1]] = outcome
    return line


PARSERS = {
    "pytest": parse_pytest,
    "pytestOptions": parse_pytest_options,
    "pytestV2": parse_pytest_v2,
    "django": parse_django,
    "seaborn": parse_seaborn,
    "sympy": parse_sympy,
    "matplotlib": parse_matplotlib,
}
