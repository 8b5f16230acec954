"""Tests of the persistent shell: it keeps its state between commands, and survives commands that disturb it."""

import asyncio
import sys

import pytest

SURVIVABLE = [
    "exit 3",
    "set -e; false",
    "set -eu; echo $undefined_variable",
    "set -o pipefail; set -u",
    "exec true",
    "exec no-such-program",
    "exec >&- 2>&- <&-",
    "exec 1>/dev/null",
    "kill -9 $$",
    "trap 'echo trapped' EXIT",
    "trap 'false' DEBUG; trap 'true' ERR",
    "set -C; set -f",
    "set -x; true",
    "IFS=,; PATH=/nowhere; LANG=xx",
    "readonly fixed=1; readonly PWD",
    "unset PATH HOME IFS",
    "mkdir gone; cd gone; rmdir ../gone",
    "echo 'unfinished",
    "if true; then",
    ") } ;;",
    "printf() { return 1; }; declare() { return 1; }; cd() { false; }",
    "alias cd=false echo=false",
    "set -n",
    "shopt -s extglob nullglob failglob nocaseglob",
    "set -o posix",
    "umask 777",
    "ulimit -n 10",
    "f() { f; }; unset -f f; set -- a b c",
    "cat <<'E'\n$x\nE",
    "",
]


async def test_the_shell_keeps_directory_variables_functions_aliases_and_options(sandbox):
    await sandbox.run("mkdir -p 'a b'")
    first = await sandbox.shell(
        "cd 'a b'; plain='x y'; export exported=$'1\\n2'; declare -a list=(p 'q r'); declare -A map=([k]='v w')\n"
        "f() { echo \"f got $1\"; }; alias greet='echo hello'; set -o noglob; umask 027; shopt -s extglob"
    )
    assert first.exit_status == 0
    assert first.cwd == sandbox.workspace + "/a b"
    second = await sandbox.shell(
        'pwd; echo "$plain|${list[1]}|${map[k]}"; env | grep -A1 ^exported=; f z; greet; echo *; umask; shopt extglob'
    )
    assert second.text.splitlines() == [
        f"{sandbox.workspace}/a b",
        "x y|q r|v w",
        "exported=1",
        "2",
        "f got z",
        "hello",
        "*",
        "0027",
        "extglob        \ton",
    ]


async def test_extended_patterns_in_functions_are_restored(sandbox):
    await sandbox.shell("shopt -s extglob")
    await sandbox.shell("shout() { case $1 in +(a|b)) echo ab;; *) echo other;; esac; }")
    assert (await sandbox.shell("shout aba; shout c")).text == "ab\nother\n"


@pytest.mark.parametrize("command", SURVIVABLE)
async def test_the_shell_survives(start_warm, command):
    # The behaviour depends on bash and not on the Python that starts it, so one Python is enough.
    sandbox = await start_warm(sys.executable)
    await sandbox.shell("kept=before")
    await sandbox.shell(command, timeout_seconds=20)
    # The command may have replaced the builtins that this test uses, so they are restored first.
    result = await sandbox.shell("unalias -a; unset -f printf declare cd; builtin echo $kept", timeout_seconds=20)
    assert result.text.splitlines()[-1:] == ["before"]


async def test_options_persist_like_everything_else(sandbox):
    await sandbox.shell("set -u")
    result = await sandbox.shell("echo $undefined; echo not reached")
    assert result.exit_status != 0
    assert "undefined: unbound variable" in result.text
    assert "not reached" not in result.text


async def test_the_state_before_a_failing_exit_is_kept(sandbox):
    assert (await sandbox.shell("now=set; cd /; exit 4")).exit_status == 4
    result = await sandbox.shell("echo $now; pwd")
    assert (result.text, result.cwd) == ("set\n/\n", "/")


async def test_a_timeout_ends_the_command_and_not_the_shell(sandbox):
    await sandbox.shell("kept=1")
    for timeout in (0.3, 2, 20):  # a busy machine may need a longer timeout until the first output
        result = await sandbox.shell("echo begin; lost=1; exec sleep 600", timeout_seconds=timeout)
        if result.text:
            break
    assert (result.text, result.ended_by) == ("begin\n", "timeout")
    assert (await sandbox.shell("echo $kept$lost")).text == "1\n"


async def test_line_numbers_and_names_in_errors_are_the_commands_own(sandbox):
    assert (await sandbox.shell("true\nno-such-program")).text == "bash: line 2: no-such-program: command not found\n"


async def test_the_shell_has_no_terminal_input(sandbox):
    assert (await sandbox.shell("read line; echo $?", timeout_seconds=20)).text == "1\n"


async def test_variables_and_functions_of_dgym_are_not_visible_in_the_shell(sandbox):
    result = await sandbox.shell("set | grep -v BASH_EXECUTION_STRING | grep -c __dgym; echo $#; alias; declare -F")
    await sandbox.shell("set -v; true")
    assert result.text.splitlines()[1:] == ["0"]


async def test_a_user_trap_runs_and_the_state_is_saved_all_the_same(sandbox):
    assert (await sandbox.shell("trap 'echo bye >&2' EXIT; x=1")).text == "bye\n"
    assert (await sandbox.shell("echo $x")).text == "1\n"


async def test_long_commands_work(sandbox):
    result = await sandbox.shell(f"x={'y' * 300_000}; echo ${{#x}}")
    assert result.text == "300000\n"
    assert (await sandbox.shell("echo ${#x}")).text == "300000\n"


async def test_calls_queue(sandbox):
    await sandbox.shell("n=0")
    await asyncio.gather(*(sandbox.shell("n=$((n + 1))") for _ in range(8)))
    assert (await sandbox.shell("echo $n")).text == "8\n"


async def test_background_jobs_end_with_the_call(sandbox, helpers):
    result = await sandbox.shell("sleep 600 & echo $!", timeout_seconds=60)
    pid = int(result.text)
    await helpers.eventually(lambda: pid not in helpers.alive_with("sleep 600"))
