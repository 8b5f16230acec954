"""Attacks that take resources from the runner, an ancestor of every process in a sandbox."""

LIMITS = ("AS", "NOFILE", "STACK", "FSIZE", "DATA")

_PROGRAM = """
import os, resource
process = os.getpid()
while True:
    with open("/proc/%d/stat" % process) as file:
        process = int(file.read().rpartition(")")[2].split()[1])
    if process in {spared!r}:
        break
    for name in {names!r}:
        resource.prlimit(process, getattr(resource, "RLIMIT_" + name), (0, 0))
"""


def program(*names: str, spared: tuple[int, ...] = ()) -> str:
    """Sets these limits of all ancestors to 0, up to one that is spared or to the first process."""
    return _PROGRAM.format(names=names, spared=(0, *spared))


def command(*names: str, spared: tuple[int, ...] = ()) -> dict[str, object]:
    """The call that runs the program."""
    script = program(*names, spared=spared)
    return {"tool": "bash", "arguments": {"command": f"python - <<'END'\n{script}\nEND"}}
