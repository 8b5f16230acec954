"""Tests of WorkerProcess with simple payloads."""

import importlib
import sys

import pytest

from dgym.episodes._processes import Reported, Returned, RunFailed, WorkerProcess, ready

WORK = """
import asyncio
import contextlib
import os
import time


@contextlib.asynccontextmanager
async def open_work():
    async def run(payload, report):
        match payload:
            case ("fail", text):
                raise ValueError(text)
            case ("cancel",):
                raise asyncio.CancelledError
            case ("echo", value):
                report(os.getpid())
                return value
            case ("wait",):
                await asyncio.Event().wait()
            case ("block",):
                time.sleep(3600)
            case ("die",):
                os._exit(7)
            case ("flood", value):
                for _ in range(64):
                    report(value)
                return "flooded"

    yield run
"""
LARGE = "x" * 1024**2


@pytest.fixture
def process(tmp_path, monkeypatch):
    name = f"work_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    process = WorkerProcess(importlib.import_module(name).open_work)
    yield process
    # Some tests leave an event loop blocked. SIGTERM does not end such a process.
    process.end()
    assert process.exit_status is not None
    sys.modules.pop(name, None)


def messages(process, number):
    """Receive ``number`` results. Returns them by key."""
    found = {}
    while len(found) < number:
        assert ready([process], seconds=60.0) == [process]
        key, _, message = process.receive()
        if not isinstance(message, Reported):
            found[key] = message
    return found


def test_work_that_raises_does_not_affect_other_work(process):
    process.send(0, ("wait",), seconds=60.0)
    process.send(1, ("fail", "no"), seconds=60.0)
    process.send(2, ("cancel",), seconds=60.0)
    process.send(3, ("echo", "yes"), seconds=60.0)
    assert messages(process, 3) == {1: RunFailed("ValueError: no"), 2: RunFailed("CancelledError"), 3: Returned("yes")}
    assert process.payloads == {0: ("wait",)}


def test_a_process_that_dies_leaves_what_it_had_not_returned(process):
    process.send(0, ("wait",), seconds=60.0)
    process.send(1, ("die",), seconds=60.0)
    with pytest.raises(EOFError):
        messages(process, 1)
    process.end()
    assert process.exit_status == 7
    assert set(process.payloads) == {0, 1}


def test_a_process_is_killed_once_a_payloads_time_is_up(process):
    process.send(0, ("echo", 1), seconds=60.0)
    messages(process, 1)
    process.send(1, ("block",), seconds=0.0)
    process.kill_if_overdue()
    with pytest.raises(EOFError):
        messages(process, 1)
    assert process.overdue


def test_large_messages_do_not_deadlock(process):
    process.send(0, ("flood", LARGE), seconds=60.0)
    for key in range(1, 17):
        process.send(key, ("echo", LARGE), seconds=60.0)
    process.send(17, ("block",), seconds=60.0)
    process.send(18, ("echo", LARGE), seconds=60.0)
    assert set(messages(process, 17)) == set(range(17))
