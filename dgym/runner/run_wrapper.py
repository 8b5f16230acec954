"""Start a task's entrypoint so that it reports what it did.

Two stages. The first runs isolated (``-I -S``), reads its orders from standard input and finds out what the entrypoint
is; then it becomes the second stage under the entrypoint's own interpreter, or the parent of a shell. The orders hold
a token that the program's code must not see, so they travel in an unlinked file: an environment and arguments can be
read from ``/proc`` by the program.
"""

import fcntl
import json
import os
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LOWEST_DESCRIPTOR = 900
ORDERS_VARIABLE = "DGYM_REPORT_ORDERS_FD"
REPORT_VARIABLE = "DGYM_REPORT_FD"
CHANGE_DIRECTORY = re.compile(r"\s*cd\s+([\w./+-]+)\s*&&\s*")
PACKAGE = "dgym_runner"
PLUGIN = "dgym_shell_plugin"


def load(name):
    """Import a file of this directory without putting the directory on ``sys.path``."""
    import importlib

    if PACKAGE not in sys.modules:
        package = type(sys)(PACKAGE)
        package.__path__ = [HERE]
        sys.modules[PACKAGE] = package
    return importlib.import_module(PACKAGE + "." + name)


# The descriptors


def pack_orders(orders):
    """A descriptor of an unlinked file with ``orders``, inherited by children."""
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(orders).encode())
        file.flush()
        descriptor = os.dup(file.fileno())
    os.set_inheritable(descriptor, True)
    return descriptor


def read_orders(descriptor):
    size = os.fstat(descriptor).st_size
    return json.loads(os.pread(descriptor, size, 0).decode())


def duplicate(descriptor):
    """``descriptor`` once more, where a program that closes or reuses small numbers does not meet it."""
    for lowest in (LOWEST_DESCRIPTOR, 200, 3):
        try:
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except (OSError, ValueError):
            continue
    return descriptor


def hide(descriptor):
    """Move ``descriptor`` to such a place."""
    hidden = duplicate(descriptor)
    if hidden != descriptor:
        os.close(descriptor)
    return hidden


def open_writer(descriptor, token):
    """A function that writes one record, in the process that opened it only."""
    identity = _identity(descriptor)
    owner = os.getpid()
    getpid, write_bytes, encode = os.getpid, os.write, json.JSONEncoder(ensure_ascii=True).encode

    def write(kind, **fields):
        if getpid() != owner or _identity(descriptor) != identity:
            return
        data = ("%s %s\n" % (token, encode(dict(fields, kind=kind)))).encode()
        while data:
            data = data[write_bytes(descriptor, data) :]

    return write


def _identity(descriptor):
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# The first stage


def main():
    orders = json.loads(sys.stdin.buffer.read().decode())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    launch = parse(orders["entrypoint"])
    report = int(os.environ[REPORT_VARIABLE])
    os.set_inheritable(report, True)
    # Said here, where no code of the task runs: a run without this record never began, which is not the agent's doing.
    write = open_writer(report, orders["token"])
    write("form", form="shell" if launch is None else "pytest" if launch.is_pytest else "python")
    if launch is None:
        run_shell(orders)
    orders["launch"] = {
        "kind": launch.kind,
        "target": launch.target,
        "argv": list(launch.argv),
        "is_pytest": launch.is_pytest,
    }
    environment = dict(os.environ)
    environment.update(launch.env)
    environment[ORDERS_VARIABLE] = str(pack_orders(orders))
    argv = [launch.python] + list(launch.flags) + [os.path.abspath(__file__), "--start"]
    os.execve(launch.python, argv, environment)


def parse(entrypoint):
    """How to start ``entrypoint`` as one Python program; None when only a shell understands it.

    ``cd DIRECTORY && …`` is understood here: under a shell much less is known of how the program ended.
    """
    launch = load("launch")
    directory = os.getcwd()
    moved = CHANGE_DIRECTORY.match(entrypoint)
    if moved:
        directory = os.path.normpath(os.path.join(directory, moved.group(1)))
        entrypoint = entrypoint[moved.end() :]
    try:
        parsed = launch.parse_entrypoint(entrypoint, dict(os.environ), directory)
        os.chdir(directory)
    except (launch.LaunchRefused, OSError):
        return None
    if moved:
        parsed.env.setdefault("PWD", directory)
    return parsed


def run_shell(orders):
    """Run a shell line whose interpreters find the plugin on PYTHONPATH; the shell's status is the result."""
    environment = dict(os.environ)
    environment[ORDERS_VARIABLE] = str(pack_orders(orders))
    plugins = os.path.join(HERE, "shell_plugin")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [plugins, environment.get("PYTHONPATH")]))
    programs = tempfile.mkdtemp(prefix="dgym-programs-")
    load("path_programs").make_importing(programs, plugins, environment)
    environment["PATH"] = os.pathsep.join([programs, environment.get("PATH", os.defpath)])
    shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
    os.execve(shell, [shell, "-c", orders["entrypoint"]], environment)


# The second stage


def start():
    descriptor = int(os.environ.pop(ORDERS_VARIABLE))
    report = int(os.environ.pop(REPORT_VARIABLE))
    orders = read_orders(descriptor)
    os.close(descriptor)
    report = hide(report)
    write = open_writer(report, orders.pop("token"))
    if orders["launch"]["is_pytest"]:
        load("run_pytest").run(orders, write)
    else:
        load("run_program").run(orders, write)


if __name__ == "__main__":
    if sys.argv[1:] == ["--start"]:
        # Files of this directory must not be importable by the program, nor hide those of the standard library.
        del sys.path[0]
        start()
    else:
        main()
