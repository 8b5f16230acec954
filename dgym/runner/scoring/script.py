"""Runs an evaluation script and reports the outcomes that a parser reads from its text.

The script and the code under test get neither the report's descriptor nor the token. This process holds both, and is
not dumpable: another process of the same user may not trace it, nor open its memory or its descriptors. Code that comes
with a row of a data set parses in a process of its own.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading

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


def run(orders, write):
    """Run the script of ``orders``, report each test and end the process."""
    _hide()
    status, data, complete = _run_script(orders["script"])
    text = data.decode("utf-8", "replace")
    if complete:
        outcomes, why = _read(text, orders)
    else:
        outcomes, why = {}, "the script printed more than %d MiB" % (LIMIT_BYTES // 1024**2)
    for name, outcome in outcomes.items():
        write("test", id=name, outcome=reported(outcome))
    write("reading", parser=orders["parser"], **({} if why is None else {"why": why}))
    write("status", status=status)
    sys.stdout.flush()
    sys.exit(status)


def reported(outcome):
    """The outcome as reports name it; one that no parser should give is an error."""
    return _OUTCOMES.get(outcome, "error")


def _hide():
    try:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (AttributeError, OSError):
        pass


def _run_script(script):
    """The exit status, what was printed, and whether that is all of it."""
    # Unlinked, and closed in this process: bash reads the script while the code under test runs.
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
    # What the script left running may hold the pipe for ever; its words come too late.
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


def _read(text, orders):
    """``(outcomes, why not)``."""
    from .logs import PARSERS, START, read_log

    marked = START in orders["script"]
    if orders["parser"] != "code":
        return read_log(text, PARSERS[orders["parser"]], marked)
    try:
        return read_log(text, lambda part: _parse_with(orders["code"], part), marked)
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
