"""Tests of steps out of generators and coroutines, in threads and at the end of a module, compared with pdb."""

import re
import subprocess
import textwrap

import pytest

_PLACE = re.compile(r"^(?:\(Pdb\) )*> (?:.*/)?(\S+?)\((\d+)\)(\S+)\(\)", re.MULTILINE)

AWAITED = """
import asyncio
async def inner(x):
    y = x + 1
    await asyncio.sleep(0)
    return y
async def outer():
    a = await inner(1)
    b = a + 1
    return b
async def main():
    r = await outer()
    print(r)
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
print("end")
"""

TASK = """
import asyncio
async def other():
    for _ in range(5):
        await asyncio.sleep(0)
async def inner(x):
    y = x + 1
    await asyncio.sleep(0)
    return y
async def main():
    first = asyncio.ensure_future(other())
    second = asyncio.ensure_future(inner(1))
    r = await second
    return r
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
print("end")
"""

YIELD_FROM = """
def inner(x):
    y = x + 1
    yield y
    yield y + 1
    return 7
def outer():
    a = yield from inner(1)
    b = a + 1
    yield b
for v in outer():
    print(v)
print("end")
"""

ASYNC_GENERATOR = """
import asyncio
async def numbers(n):
    y = n
    yield y
    yield y + 1
async def main():
    async for v in numbers(1):
        print(v)
    print("done")
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
print("end")
"""

LOOP = """
def numbers(x):
    y = x + 1
    yield y
    yield next(iter([y + 1]))
def use():
    for v in numbers(1):
        print(v)
    return 5
use()
print("end")
"""

RAISES = """
import asyncio
async def inner(x):
    y = x + 1
    try:
        await asyncio.sleep(0)
        raise ValueError(y)
    finally:
        y = 0
async def main():
    try:
        await inner(1)
    except ValueError:
        print("caught")
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
print("end")
"""


def stops_of_pdb(python, source, commands, tmp_path):
    """Places where Python's pdb stops after each command: (file, line, function)."""
    (tmp_path / "main.py").write_text(source)
    text = "".join(command + "\n" for command in (*commands, "q"))
    done = subprocess.run(
        [python, "-m", "pdb", "main.py"], input=text, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    return [(file, int(line), function) for file, line, function in _PLACE.findall(done.stdout)]


async def stops(debug, source, commands):
    """Places where this debugger stops after each command, beginning with the first line of the program."""
    debug.write("main.py", source)
    seen = [("main.py", 1, "<module>")]
    await debug("p 0")
    for command in commands:
        result = await debug(command)
        if command.split()[0] in ("c", "n", "s", "r") and result.frame is not None:
            seen.append((result.frame.file, result.frame.line, result.frame.function))
    return seen


@pytest.mark.parametrize(
    ("source", "commands"),
    [
        pytest.param(AWAITED, ("b 3", "c", "r", "r"), id="awaited"),
        pytest.param(AWAITED, ("b 3", "c", "n", "n", "n", "n"), id="next"),
        pytest.param(YIELD_FROM, ("b 2", "c", "r"), id="yield-from"),
        pytest.param(ASYNC_GENERATOR, ("b 4", "c", "cl 1", "r"), id="async-generator"),
    ],
)
async def test_steps_out_of_a_generator_as_pdb_does(debug, python, tmp_path, source, commands):
    source = source.lstrip("\n")
    expected = stops_of_pdb(python, source, commands, tmp_path)
    assert len(expected) > 2
    assert await stops(debug, source, commands) == expected


async def test_a_return_from_an_awaited_coroutine_names_the_value(debug):
    debug.write("main.py", AWAITED.lstrip("\n"))
    result = await debug.each("tbreak 3", "c", "r")
    assert result.output == "Internal StopIteration: 2\n> main.py(7)outer()\n-> a = await inner(1)\n"


@pytest.mark.parametrize(
    ("source", "commands", "function"),
    [
        pytest.param(LOOP, ("tbreak 2", "c", "r"), "use", id="for"),
        pytest.param(LOOP, ("tbreak 4", "c", "n"), "use", id="for-next"),
        pytest.param(RAISES, ("tbreak 3", "c", "r"), "main", id="exception"),
        pytest.param(TASK, ("tbreak 6", "c", "r"), "main", id="task"),
        pytest.param(TASK, ("tbreak 12", "c", "r"), "<module>", id="outermost"),
    ],
)
async def test_where_pdb_loses_the_caller_the_step_ends_there(debug, source, commands, function):
    """pdb waits for a StopIteration. A ``for`` loop since 3.10 does not report it, and another task may raise it."""
    result = await debug_from(debug, source, commands)
    assert (result.state, result.frame.function) == ("stopped", function)


async def debug_from(debug, source, commands):
    debug.write("main.py", textwrap.dedent(source.lstrip("\n")))
    return await debug.each(*commands)


THREADS = """
import threading
def first():
    x = 1
    return x
def second():
    y = 2
    return y
for work in (first, second, second):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print("end")
"""


async def test_a_step_in_a_thread_that_ends_stops_in_no_other_thread(debug):
    await debug_from(debug, THREADS, ["b first", "c", "n"])
    result = await debug("n")
    assert result.output.startswith("--Return--"), "as in pdb"
    result = await debug("n")
    assert (result.state, result.frame) == ("ended", None)


async def test_a_return_from_the_module_ends_the_program(debug):
    result = await debug_from(debug, LOOP, ["tbreak 10", "c", "r"])
    assert result.output == '--Return--\n> main.py(10)<module>()->None\n-> print("end")\n'
    assert (await debug("p self")).output == "*** NameError: name 'self' is not defined\n"
    assert "Oldest frame" in (await debug("u")).output
    result = await debug("r")
    assert (result.state, result.exit_status) == ("ended", 0)


async def test_no_step_stops_in_the_debugger(debug):
    """Tested with handlers that run after the module, and with a module that imports and raises."""
    source = """
import atexit
def after():
    x = 1
    return x
atexit.register(after)
print("end")
"""
    debug.write("main.py", source.lstrip("\n"))
    for commands in (["tbreak 6", "c", "r", "s"], ["tbreak 6", "c", "s", "s"], ["tbreak 6", "c", "n", "unt"]):
        for command in ["run", *commands]:
            result = await debug(command)
            assert result.frame is None or result.frame.file == "main.py", (commands, result.frame)
