"""Run pytest in this process with the reporting plugin, as ``python -m pytest`` or ``pytest`` would."""

import os
import sys


def make_reporter(load, orders, write):
    """The plugin for one pytest session; ``load`` imports files of the runner directory."""
    guard = make_canary = None
    if orders["changed"] is not None:
        canary = load("pytest_canary")
        guard = load("pytest_guard").Guard([os.path.join(orders["workspace"], path) for path in orders["changed"]])
        name = "test_" + os.urandom(6).hex()

        def make_canary(session, on_broken, on_outcome):
            return canary.make_canary(session, name, on_broken, on_outcome)

    return load("pytest_report").Reporter(write, guard=guard, make_canary=make_canary)


def run(orders, write):
    launch = orders["launch"]
    pytest = import_pytest(launch)
    from_wrapper = sys.modules["__main__"]
    sys.argv = [pytest.__file__ if launch["kind"] == "module" else launch["target"]] + arguments(orders)
    reporter = make_reporter(from_wrapper.load, orders, write)
    status = int(pytest.main(sys.argv[1:], plugins=[reporter]))
    flush()
    write("status", status=status & 0xFF)
    sys.exit(status)


def arguments(orders):
    extra = []
    if orders["collect_only"]:
        extra.append("--collect-only")
    if orders["setup_only"]:
        extra += ["--setup-only", "--continue-on-collection-errors"]
    return list(orders["launch"]["argv"]) + extra + list(orders["select"])


def import_pytest(launch):
    """Import pytest from where it is installed, and only then let the workspace be found."""
    first = os.getcwd() if launch["kind"] == "module" else os.path.dirname(launch["target"])
    isolated = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    try:
        import pytest
    except ImportError:
        sys.path.insert(0, first)
        import pytest
    else:
        import_early()
        if not isolated:
            sys.path.insert(0, first)
    return pytest


def import_early():
    """Import what pytest's own plugins need of the library: the workspace's code must not run before it is watched."""
    import importlib

    for name in ("difflib", "unittest", "xml.etree.ElementTree"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue
