"""Runs an evaluation script and reports the outcomes that a parser finds in its output.

The script and the code under test get neither the report descriptor nor the token. This process has both and is not
dumpable. Other processes of the same user can therefore neither trace it nor open its memory and descriptors. Parser
code from a row of a data set runs in a separate process.

The parsers work as the harness of SWE-bench 5 does. A parser is a function that gets a text and returns a dict from the
name of each test to PASSED, FAILED, SKIPPED, ERROR or XFAIL. The test lists of data sets were made with these rules, so
the names and the quirks must not change. ``read_log`` finds the output of the tests in a text, and refuses a text that
does not describe a complete run.
"""

import re
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
EXIT_CODE = re.compile(r">>>>> Test Exit Code:\s*(-?\d+)")
_FAULTS = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
# A count of zero does not prove that tests ran: a test runner whose browser crashed still prints its summary.
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
    """Parse the output of an evaluation script.

    Args:
        text: The output.
        parse: The parser.
        marked: True if the script prints the markers around the output of the tests.

    Returns:
        ``(outcomes, None)``, or ``({}, reason)`` if the text does not prove a complete run.
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
    """Returns the words of a line that begins with an outcome, and an empty list for any other line."""
    if not line.startswith(_STATUSES):
        return []
    if line.startswith("FAILED"):
        line = line.replace(" - ", " ")
    words = line.split()
    return [] if len(words) <= 1 or _is_summary(words) else words


def _is_summary(words):
    """Returns True for pytest's ``SKIPPED [3] path:line: reason``, which counts tests without their names."""
    return words[0] == "SKIPPED" and bool(_COUNT.match(words[1]))


def parse_pytest(text):
    """Parse the summary of ``pytest -rA``."""
    found = {}
    for line in text.split("\n"):
        words = _split(line)
        if words:
            found[words[1]] = words[0]
    return found


def parse_pytest_options(text):
    """Like ``parse_pytest``. A parameter that is an absolute path is reduced to its last component."""
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
    """Like ``parse_pytest``, with colours, names that contain spaces, and lines that end with the outcome."""
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
    """Like ``parse_pytest``, with the members of ``MouseButton`` replaced by their numbers."""
    return parse_pytest(text.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def parse_seaborn(text):
    """Parse pytest's output with the outcome before or after the name."""
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
    """Parse the output of SymPy's ``bin/test --verbose``."""
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
    """Parse the output of Django's ``runtests.py --verbosity 2``. A test with a description has it as its name."""
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
            # Other output was printed between the name and the outcome.
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


LIMIT_BYTES = 64 * 1024 * 1024
PARSING_SECONDS = 300
_AFTER_SECONDS = 5.0
_PR_SET_DUMPABLE = 4
_OUTCOMES = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped", "ERROR": "error", "XFAIL": "xfailed"}
_RUN_CODE = """\
import json, sys
text = sys.stdin.buffer.read().decode("utf-8", "replace")
size, text = text.split("\\n", 1)
code, log = text[:int(size)], text[int(size):]
names = {"__name__": "parser"}
exec(compile(code, "<parserCode>", "exec"), names)
found = names["parse"](log)
sys.stdout.write("\\n" + json.dumps({str(name): str(outcome) for name, outcome in dict(found).items()}))
"""


def run(settings, write):
    """Run the script of ``settings``, report each test and exit."""
    _hide()
    status, data, complete = _run_script(settings["script"])
    text = data.decode("utf-8", "replace")
    if complete:
        outcomes, why = _read(text, settings)
    else:
        outcomes, why = {}, "the script printed more than %d MiB" % (LIMIT_BYTES // 1024**2)
    for name, outcome in outcomes.items():
        write("test", id=name, outcome=reported(outcome))
    write("reading", parser=settings["parser"], **({} if why is None else {"why": why}))
    write("status", status=status)
    sys.stdout.flush()
    sys.exit(status)


def reported(outcome):
    """Returns a parser's outcome in the form of the report; an unknown outcome becomes "error"."""
    return _OUTCOMES.get(outcome, "error")


def _hide():
    try:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (AttributeError, OSError):
        pass


def _run_script(script):
    """Returns the exit status, the output, and True if the output is complete."""
    # bash reads the script while the code under test runs. The file is therefore unlinked, and only bash keeps a
    # descriptor of it, which is read-only.
    with tempfile.TemporaryFile() as file:
        file.write(script.encode("utf-8", "surrogateescape"))
        file.flush()
        reading = os.open("/proc/self/fd/%d" % file.fileno(), os.O_RDONLY)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DGYM_REPORT")}
    process = subprocess.Popen(
        ["bash", "/dev/fd/%d" % reading],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(reading,),
        env=environment,
    )
    os.close(reading)
    pieces = []
    reader = threading.Thread(target=_read_output, args=(process.stdout, pieces))
    reader.daemon = True
    reader.start()
    status = process.wait()
    # A process that the script left running may keep the pipe open. Its output after this time is ignored.
    reader.join(_AFTER_SECONDS)
    data = b"".join(list(pieces))
    return (128 - status if status < 0 else status), data[:LIMIT_BYTES], len(data) <= LIMIT_BYTES


def _read_output(stream, pieces):
    from dgym_runner.descriptors import write_all

    size = 0
    while True:
        data = os.read(stream.fileno(), 65536)
        if not data:
            return
        if size <= LIMIT_BYTES:
            pieces.append(data)
            size += len(data)
        write_all(1, data)


def _read(text, settings):
    """Returns ``(outcomes, reason)`` as ``read_log`` does."""
    marked = START in settings["script"]
    if settings["parser"] != "code":
        return read_log(text, PARSERS[settings["parser"]], marked)
    try:
        return read_log(text, lambda part: _parse_with(settings["code"], part), marked)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {}, "parserCode failed: %s" % error


def _parse_with(code, text):
    data = ("%d\n%s%s" % (len(code), code, text)).encode("utf-8", "replace")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _RUN_CODE],
        input=data,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=PARSING_SECONDS,
        cwd="/",
        env={"PATH": os.defpath, "PYTHONIOENCODING": "utf-8"},
    )
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
        raise ValueError("status %d: %s" % (done.returncode, last[0][:300]))
    found = json.loads(done.stdout.decode("utf-8", "replace").rpartition("\n")[2])
    if not isinstance(found, dict):
        raise ValueError("it returned no dict")
    return found
