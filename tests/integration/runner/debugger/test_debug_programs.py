"""Tests of programs under the debugger that end, fail, fork, read, print, sleep and hang."""

import pytest

from tests.support.plain_python import plain


async def test_the_end_of_the_program_reports_exit_status_and_last_output(debug):
    debug.write("main.py", "import sys\nprint('working')\nsys.exit(3)\n")

    result = await debug("c")

    assert (result.state, result.exit_status, result.program_output) == ("ended", 3, "working\n")
    assert result.output == ""
    again = await debug("p 1")
    assert again.state == "stopped"
    assert again.frame.line == 1
    assert again.notices == ("The program was started again.",)


async def test_exit_statuses_are_those_of_the_interpreter(debug):
    for statement, status, output in [
        ("sys.exit()", 0, ""),
        ("sys.exit('a message')", 1, "a message\n"),
        ("sys.exit(300)", 300 % 256, ""),
        ("raise SystemExit(False)", 0, ""),
        ("os._exit(7)", 7, ""),
        ("pass", 0, ""),
    ]:
        debug.write("main.py", f"import os, sys\n{statement}\n")
        result = await debug("c")
        assert (result.state, result.exit_status, result.program_output) == ("ended", status, output), statement


async def test_killed_by_a_signal(debug):
    debug.write("main.py", "import os\nprint('going', flush=True)\nos.kill(os.getpid(), 9)\n")
    result = await debug("c")
    assert (result.state, result.exit_status, result.program_output) == ("killed", -9, "going\n")
    assert (await debug("n")).frame.line == 2


async def test_a_syntax_error_is_shown_and_the_next_command_tries_again(debug):
    debug.write("main.py", "x = 1\ndef broken(:\n    pass\n")
    result = await debug("b 1")
    assert (result.state, result.exit_status) == ("ended", 1)
    assert "SyntaxError" in result.program_output
    assert "dgym" not in result.program_output
    assert "was not run" in result.output
    debug.write("main.py", "x = 1\n")
    assert (await debug("b 1")).output == "Breakpoint 1 at main.py:1\n"


async def test_an_import_error_leads_to_post_mortem(debug):
    debug.write("main.py", "value = 41\nimport no_such_module\n")
    result = await debug("c")
    assert result.state == "stopped"
    assert (result.frame.file, result.frame.line) == ("main.py", 2)
    assert "No module named 'no_such_module'" in result.output
    assert "dgym" not in result.program_output
    assert (await debug("p value + 1")).output == "42\n"


async def test_an_uncaught_exception_stops_where_it_was_raised(debug):
    debug.write("main.py", "def divide(a, b):\n    return a / b\n\ndef outer():\n    divide(1, 0)\nouter()\n")
    result = await debug("c")
    assert "ZeroDivisionError: division by zero" in result.output
    assert result.frame.function == "divide"
    trace = result.program_output
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.count("File ") == 3
    assert (await debug("u")).frame.function == "outer"
    assert len((await debug("w")).output.splitlines()) == 6
    result = await debug("c")
    assert (result.state, result.exit_status, result.program_output) == ("ended", 1, "")


async def test_a_missing_script(debug, python):
    result = await debug("n")
    assert (result.state, result.exit_status) == ("ended", 2)
    assert result.program_output == plain(python, "python main.py", debug.workspace).replace("python:", f"{python}:", 1)


async def test_calls_of_set_trace_stop_in_the_debugger(debug):
    debug.write("main.py", "import pdb\nx = 1\npdb.set_trace()\nx = 2\nfrom pdb import set_trace\nset_trace()\nx = 3\n")
    assert (await debug("c")).frame.line == 4
    assert (await debug("p x")).output == "1\n"
    assert (await debug("c")).frame.line == 7
    assert (await debug("c")).state == "ended"


async def test_the_breakpoint_builtin(debug, python):
    if "3.6" in python:
        pytest.skip("breakpoint() came with Python 3.7")
    debug.write("main.py", "def f(n):\n    breakpoint()\n    return n\nf(1)\nf(2)\n")
    assert (await debug("c")).frame.line == 3
    assert (await debug("p n")).output == "1\n"
    assert (await debug("c")).frame.line == 3
    assert (await debug("p n")).output == "2\n"
    assert (await debug("n")).output.startswith("--Return--")


async def test_post_mortem_of_the_program_itself(debug):
    debug.write(
        "main.py",
        """
        import pdb
        try:
            {}['key']
        except KeyError:
            pdb.post_mortem()
        print('on')
        """,
    )
    result = await debug("c")
    assert result.frame.line == 4
    assert "KeyError" in result.output
    result = await debug("c")
    assert (result.state, result.program_output) == ("ended", "on\n")


IN_A_CHILD = (
    "Breakpoint 1 at main.py:4 was reached by a child process, where the program does not stop; to debug the child's "
    "work, give a command that does it without a child as the entrypoint."
)


async def test_a_forked_child_reports_the_breakpoint_that_it_reaches(debug):
    debug.write(
        "main.py",
        """
        import os, sys
        def work():
            return os.getpid()
        child = os.fork()
        if child == 0:
            work()
            print('child', flush=True)
            os._exit(5)
        status = os.waitpid(child, 0)[1] >> 8
        work()
        print('parent', status)
        """,
    )
    result = await debug.each("b work", "commands 1\np 1\nend", "tbreak 5", "c", "c")
    assert (result.frame.function, result.program_output) == ("work", "child\n")
    assert result.notices == (IN_A_CHILD,)
    assert (await debug("p status")).output == "5\n"
    result = await debug("c")
    assert (result.program_output, result.notices) == ("parent 5\n", ())


async def test_multiprocessing(debug):
    debug.write(
        "main.py",
        """
        import multiprocessing
        def double(n):
            return 2 * n
        if __name__ == '__main__':
            for method in ('fork', 'spawn'):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(method, pool.map(double, [1, 2]))
        """,
    )
    for command, notices in (("p 1", 0), ("b 4", 1)):
        result = await debug.each(command, "c")
        assert result.state == "ended"
        assert "fork [2, 4]\nspawn [2, 4]" in result.program_output
        assert result.notices.count(IN_A_CHILD) == notices


async def test_a_daemon_does_not_hide_the_end(debug):
    debug.write(
        "main.py",
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        print('parent ends')
        """,
    )
    result = await debug("c")
    assert (result.state, result.exit_status, result.program_output) == ("ended", 0, "parent ends\n")


async def test_threads_stop_at_breakpoints_and_wait_their_turn(debug):
    debug.write(
        "main.py",
        """
        import threading
        def work(n):
            result = n * 10
            return result
        threads = [threading.Thread(target=work, args=(n,), name='worker-%d' % n) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print('joined')
        """,
    )
    await debug("b main.py:4")
    seen = set()
    for _ in range(3):
        result = await debug("c")
        assert result.frame.function == "work"
        assert "--Thread worker-" in result.output
        seen.add((await debug("p n")).output)
    assert seen == {"0\n", "1\n", "2\n"}
    assert (await debug("c")).program_output.endswith("joined\n")


async def test_stepping_stays_in_one_thread(debug):
    debug.write(
        "main.py",
        """
        import threading
        stop = threading.Event()
        def spin():
            while not stop.wait(0.0005):
                pass
        thread = threading.Thread(target=spin)
        thread.start()
        for i in range(20):
            x = i
        stop.set()
        thread.join()
        """,
    )
    await debug.each("b 9", "c", "cl 1")
    for _ in range(20):
        result = await debug("s")
        assert result.frame.function == "<module>"


async def test_standard_input_is_empty(debug):
    debug.write("main.py", "try:\n    input('name? ')\nexcept EOFError:\n    print('no input')\n")
    result = await debug("c")
    assert result.program_output == "name? no input\n"


SURROUNDINGS = """
import io, os, sys
import helper
def _open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
{change}
helper.call(1)
x = 5
"""


async def test_programs_that_change_their_streams_paths_and_modules(debug):
    debug.write("helper.py", "def call(n):\n    return n\n")
    await debug("b helper.py:2", entrypoint="python helper.py")
    for change in [
        "sys.stdout.close()",
        "sys.stdout = io.StringIO()",
        "sys.stdout = None",
        "os.close(1)",
        "os.chdir('/')",
        "os.closerange(3, 256)",
        "[os.close(fd) for fd in range(3, 64) if _open(fd)]",
        "sys.setrecursionlimit(200)",
        "sys.path[:] = []",
        "sys.modules.pop('linecache', None)",
        "sys.displayhook = None",
    ]:
        debug.write("main.py", SURROUNDINGS.format(change=change))
        result = await debug("c")
        assert (result.frame.file, result.frame.line) == ("helper.py", 2), change
        assert (await debug("p n")).output == "1\n", change
        assert (await debug.each("r", "n", "n", "p 1")).frame.file == "main.py", change
        assert " at helper.py:1\n" in (await debug("tbreak helper.py:1")).output, change
        await debug(f"cl {debug.breakpoints[-1].number}")
        assert (await debug("q")).state == "idle"


async def test_files_of_the_program_do_not_get_data_of_the_debugger(debug):
    debug.write(
        "main.py",
        """
        import os
        os.closerange(3, 512)
        files = [open('file%d' % n, 'w') for n in range(20)]
        x = 1
        for file in files:
            file.close()
        """,
    )
    await debug.each("b 5", "c", "p x", "n", "n", "c")
    assert all((debug.workspace / f"file{n}").read_bytes() == b"" for n in range(20))


async def test_a_program_that_closes_every_descriptor_runs_on_without_the_debugger(debug):
    debug.write("main.py", "import os\nos.closerange(3, 2000)\nx = 1\nprint('done')\n")
    result = await debug("n")
    result = await debug("n", timeout=30)
    assert (result.state, result.exit_status) == ("ended", 0)
    assert "done" in result.program_output


async def test_a_program_that_replaces_itself(debug):
    debug.write("main.py", "import os, sys\nos.execv('/bin/sh', ['sh', '-c', 'echo replaced; exit 4'])\n")
    result = await debug("c")
    assert (result.state, result.exit_status, result.program_output) == ("ended", 4, "replaced\n")


async def test_output_of_the_program_appears_at_the_stop_that_follows_it(debug):
    debug.write("main.py", "import sys\nsys.stdout.write('one')\nsys.stderr.write('two')\nsys.stdout.write('three')\n")
    await debug("n")
    assert (await debug("n")).program_output == "one"
    assert (await debug("n")).program_output == "two"
    assert "three" in (await debug("n")).program_output


async def test_megabytes_of_output(debug):
    debug.write("main.py", "import sys\nprint('begin')\nfor _ in range(200): print('x' * 100000)\nprint('finish')\n")
    result = await debug("c", output_limit=4096)
    assert result.state == "ended"
    assert result.program_output.startswith("begin\n")
    assert result.program_output.endswith("finish\n")
    assert result.truncated_bytes > 19_000_000
    assert len(result.program_output) < 5000


async def test_printed_prompts_do_not_affect_the_debugger(debug):
    debug.write("main.py", "print('(Pdb) ')\nprint('> main.py(99)fake()\\n-> lies')\nx = 1\n")
    result = await debug.each("n", "n")
    assert (result.frame.line, result.output) == (3, "> main.py(3)<module>()\n-> x = 1\n")


async def test_forged_messages_of_the_program_are_ignored(debug):
    debug.write(
        "main.py",
        """
        import json, os, socket, stat, struct
        def say(message):
            data = json.dumps(message).encode()
            for descriptor in range(3, 2000):
                try:
                    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                        os.write(descriptor, struct.pack('>I', len(data)) + data)
                except OSError:
                    pass
        say({'type': 'stop', 'frame': 'nonsense', 'breakpoints': 3})
        print('goes on')
        """,
    )
    result = await debug("c")
    assert (result.state, result.exit_status, result.program_output) == ("ended", 0, "goes on\n")
    assert (await debug("p 1")).output == "1\n"


async def test_names_that_are_not_text_are_answered_in_text(debug):
    debug.write("main.py", "x = '\\udc80 \\U0001F600'\ny = 1\n")
    result = await debug.each("n", "p x", "!print(x)")
    assert "\U0001f600" in result.output
    assert "udc80" in result.output
