"""Tests that the verifier's runner removes objects that a sandbox left in the IPC namespace that they share."""

import shutil

import pytest

from tests.fakes.shared_objects import COUNT, FOUND, KEY, LEAVE
from tests.support.required import absent


@pytest.fixture
def container(tmp_path):
    """Command prefix that starts the command after it as the first process of a container."""
    if shutil.which("bwrap") is None:
        absent("bubblewrap", "there is no bwrap")
    places = ["--ro-bind", "/", "/", "--bind", "/tmp", "/tmp"]
    places += ["--dev", "/dev", "--mqueue", "/dev/mqueue", "--proc", "/proc"]
    return ["bwrap", *places, "--unshare-ipc", "--unshare-pid", "--die-with-parent"]


@pytest.fixture
async def first(start_runner, interpreter, container):
    return (await start_runner(interpreter, below=[*container, "--as-pid-1"])).client


async def leave(client, interpreter):
    result = await client.run([interpreter, "-c", LEAVE])
    assert result.exit_status == 0, result.text


async def found(client, interpreter):
    return int((await client.run([interpreter, "-c", FOUND])).text.removeprefix("found "))


async def test_everything_that_outlives_its_process_is_removed(first, interpreter):
    await leave(first, interpreter)
    assert await found(first, interpreter) == COUNT
    cleared = await first.clear_ipc()
    assert (cleared.removed, cleared.left) == (COUNT, 0)
    assert cleared.notes == ("removed before the tests: 6 System V objects and message queues that the sandbox left",)
    assert await found(first, interpreter) == 0


async def test_without_leftover_objects_there_are_no_notes(first):
    cleared = await first.clear_ipc()
    assert (cleared.removed, cleared.left, cleared.notes) == (0, 0, ())


async def test_a_segment_in_use_is_found_by_its_key_no_longer(first, interpreter):
    await leave(first, interpreter)
    attach = f"""
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
libc.shmat(libc.shmget({KEY}, 0, 0), None, 0)
if os.fork():
    os._exit(0)
os.setsid()
time.sleep(600)
"""
    await first.run([interpreter, "-c", attach])
    cleared = await first.clear_ipc()
    assert (cleared.removed, cleared.left) == (COUNT, 0)
    assert await found(first, interpreter) == 0


async def test_objects_of_another_user_are_counted_as_left(start_runner, interpreter, container):
    # The verifier has no rights to the objects of the sandbox's user: it is root, but without capabilities.
    private = f"import ctypes, os; os.setuid(65534); assert ctypes.CDLL(None).msgget({KEY}, 0o1600) >= 0"
    below = [*container, "--as-pid-1", "--cap-add", "ALL", "sh", "-c", f'{interpreter} -c "$0" && exec "$@"', private]
    client = (await start_runner(interpreter, below=[*below, "setpriv", "--bounding-set=-all"])).client
    cleared = await client.clear_ipc()
    assert (cleared.removed, cleared.left) == (0, 1)
    (note,) = cleared.notes
    assert note == "not to be removed before the tests: 1 System V objects and message queues that the sandbox left"


async def test_only_the_first_process_of_a_container_removes(start_runner, interpreter, container):
    client = (await start_runner(interpreter, below=container)).client
    await leave(client, interpreter)
    cleared = await client.clear_ipc()
    assert (cleared.removed, cleared.left) == (0, COUNT)
    assert await found(client, interpreter) == COUNT


async def test_objects_of_the_machine_are_not_touched(runner, interpreter):
    mine = f"import ctypes; print(ctypes.CDLL(None).msgget({KEY}, 0o1600))"
    made = (await runner.client.run([interpreter, "-c", mine])).text.strip()
    try:
        cleared = await runner.client.clear_ipc()
        assert cleared.removed == 0
        there = f"import ctypes; print(ctypes.CDLL(None).msgget({KEY}, 0))"
        assert (await runner.client.run([interpreter, "-c", there])).text.strip() == made
    finally:
        await runner.client.run([interpreter, "-c", f"import ctypes; ctypes.CDLL(None).msgctl({made}, 0, None)"])
