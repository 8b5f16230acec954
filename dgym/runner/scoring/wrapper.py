"""Start a task's entrypoint so that it reports what it did.

Two stages. The first runs isolated (``-I -S``), reads its orders from standard input and parses the entrypoint;
then it becomes the second stage under the entrypoint's own interpreter, or the parent of a shell. The orders hold
a token that the program's code must not see, so they travel in an unlinked file: an environment and arguments can be
read from ``/proc`` by the program.
"""

import os
import sys

# Nothing else is imported up here: what is loaded now is what the program's own interpreter would have loaded.
_LOADED = frozenset(sys.modules)
HERE = os.path.dirname(os.path.abspath(__file__))
ORDERS_VARIABLE = "DGYM_REPORT_ORDERS_FD"
REPORT_VARIABLE = "DGYM_REPORT_FD"
_CHANGE_DIRECTORY = r"\s*cd\s+([\w./+-]+)\s*&&\s*"
_PACKAGE = "dgym_runner"


# The descriptors


def _pack_orders(orders):
    """A descriptor of an unlinked file with ``orders``, inherited by children."""
    import json
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(orders).encode())
        file.flush()
        descriptor = os.dup(file.fileno())
    os.set_inheritable(descriptor, True)
    return descriptor


def read_orders(descriptor):
    """The orders in a descriptor that ``_pack_orders`` made; its position stays what it is."""
    import json

    size = os.fstat(descriptor).st_size
    return json.loads(os.pread(descriptor, size, 0).decode())


def open_writer(descriptor, token):
    """A function that writes one record, in the process that opened it only."""
    import json

    from dgym_runner.descriptors import identity

    opened = identity(descriptor)
    owner = os.getpid()
    getpid, write_bytes, encode = os.getpid, os.write, json.JSONEncoder(ensure_ascii=True).encode

    def write(kind, **fields):
        if getpid() != owner or identity(descriptor) != opened:
            return
        data = ("%s %s\n" % (token, encode(dict(fields, kind=kind)))).encode()
        while data:
            data = data[write_bytes(descriptor, data) :]

    return write


# The first stage


def _plan():
    import json

    from dgym_runner.launch import LaunchRefused

    orders = json.loads(sys.stdin.buffer.read().decode())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if orders["evaluation"] is not None:
        _run_evaluation(orders)
    try:
        launch = _parse(orders["entrypoint"])
    except (LaunchRefused, OSError):
        launch = None  # only a shell understands it
    report = int(os.environ[REPORT_VARIABLE])
    os.set_inheritable(report, True)
    # Reported here, where no code of the task runs: a run without this record never began, which is no fault of the
    # agent.
    write = open_writer(report, orders["token"])
    write("form", form="shell" if launch is None else "pytest" if launch.is_pytest else "python")
    if launch is None:
        _run_shell(orders)
    orders["launch"] = launch.fields()
    environment = dict(os.environ)
    environment.update(launch.env)
    environment[ORDERS_VARIABLE] = str(_pack_orders(orders))
    argv = [launch.python] + list(launch.flags) + [os.path.abspath(__file__), "--start"]
    os.execve(launch.python, argv, environment)


def _run_evaluation(orders):
    """Run the evaluation script as this process's child; ends the process."""
    from dgym_runner.descriptors import move_high
    from dgym_runner.scoring import script

    write = open_writer(move_high(int(os.environ[REPORT_VARIABLE])), orders["token"])
    write("form", form="script")
    script.run(orders["evaluation"], write)


def _parse(entrypoint):
    """How to start ``entrypoint`` as one Python program, in whose directory this process is then.

    ``cd DIRECTORY && …`` is understood here: under a shell much less is known of how the program ended.
    """
    import re

    from dgym_runner.launch import parse_entrypoint

    directory = os.getcwd()
    moved = re.match(_CHANGE_DIRECTORY, entrypoint)
    if moved:
        directory = os.path.normpath(os.path.join(directory, moved.group(1)))
        entrypoint = entrypoint[moved.end() :]
    launch = parse_entrypoint(entrypoint, dict(os.environ), directory)
    os.chdir(directory)
    if moved:
        launch.env.setdefault("PWD", directory)
    return launch


def _run_shell(orders):
    """Run a shell line whose interpreters find the hook on PYTHONPATH; the shell's status is the result."""
    import tempfile

    from dgym_runner import shims

    environment = shims.hook_scored(tempfile.mkdtemp(prefix="dgym-programs-"), os.environ)
    environment[ORDERS_VARIABLE] = str(_pack_orders(orders))
    shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
    os.execve(shell, [shell, "-c", orders["entrypoint"]], environment)


# The second stage


def _start():
    from dgym_runner import shims

    # Files of this directory must not be importable by the program, nor those of the workspace hide the library's here.
    path = sys.path[1:] if os.path.realpath(sys.path[0]) == os.path.realpath(HERE) else list(sys.path)
    sys.path[:] = shims.library_entries(path)
    from dgym_runner.descriptors import move_high
    from dgym_runner.scoring import start  # imported while the workspace is out of the way

    descriptor = int(os.environ.pop(ORDERS_VARIABLE))
    report = int(os.environ.pop(REPORT_VARIABLE))
    orders = read_orders(descriptor)
    os.close(descriptor)
    write = open_writer(move_high(report), orders.pop("token"))
    sys.path[:] = path
    start.run(orders, write, _LOADED)


if __name__ == "__main__":
    sys.modules[_PACKAGE] = type(sys)(_PACKAGE)
    sys.modules[_PACKAGE].__path__ = [os.path.dirname(HERE)]
    if sys.argv[1:] == ["--start"]:
        _start()
    else:
        _plan()
