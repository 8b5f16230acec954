"""Tests of commands in the runner: output, exit status, input, environment and report."""

import asyncio
import os
import sys

import pytest

from dgym.errors import SetupFailed


async def test_output_of_both_streams_keeps_its_order(sandbox):
    result = await sandbox.run("echo one; echo two >&2; echo three; exit 7")
    assert (result.text, result.exit_status, result.ended_by) == ("one\ntwo\nthree\n", 7, "exit")


async def test_an_argument_list_is_executed_without_a_shell(sandbox):
    result = await sandbox.run(["printf", "%s|", "$HOME", "a b"])
    assert result.text == "$HOME|a b|"


async def test_standard_input_of_any_size_arrives_whole(sandbox):
    data = os.urandom(300_000)
    result = await sandbox.run(["cat"], stdin=data, output_limit=1_000_000)
    assert result.output == data


async def test_standard_input_is_empty_by_default(sandbox):
    assert (await sandbox.run(["cat"], timeout_seconds=20)).exit_status == 0


async def test_a_signal_is_a_negative_status(sandbox):
    assert (await sandbox.run("kill -SEGV $$")).exit_status == -11


async def test_a_command_that_cannot_start_returns_a_result_with_the_reason(sandbox):
    for command in (["no-such-program"], ["/"], [], ["a\0b"]):
        result = await sandbox.run(command)
        assert result.exit_status is None, command
        assert result.text.startswith("cannot run"), command


async def test_a_missing_directory_is_a_result_that_names_it(sandbox):
    result = await sandbox.run("true", cwd="gone")
    assert result.exit_status is None
    assert "gone" in result.text


async def test_a_command_too_long_to_send_never_started_and_breaks_nothing(sandbox):
    assert (await sandbox.run("true " + "x" * 2_000_000)).exit_status is None
    assert (await sandbox.shell("true " + "x" * 2_000_000)).exit_status is None
    assert (await sandbox.run("echo \ud800")).exit_status is None
    assert (await sandbox.run("echo on")).text == "on\n"


async def test_long_output_keeps_head_and_tail_and_counts_the_rest(sandbox):
    result = await sandbox.run("echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last", output_limit=1000)
    assert result.text.startswith("first\nx")
    assert result.text.endswith("x\nlast\n")
    assert f"{result.truncated_bytes} bytes cut" in result.text
    assert len(result.output) < 1100


async def test_the_environment_is_built_and_not_inherited(start_runner, interpreter, monkeypatch):
    # ``env -i`` starts the runner, so the environment can only contain variables that the runner sets.
    runner = await start_runner(interpreter, environment={"FROM_TASK": "yes", "PYTHONHASHSEED": "7"})
    result = await runner.client.run(["env"], environment={"FROM_CALL": "also"})
    variables = dict(line.split("=", 1) for line in result.text.splitlines())
    assert variables["FROM_TASK"] == "yes"
    assert variables["FROM_CALL"] == "also"
    assert variables["PYTHONHASHSEED"] == "7"
    assert variables["PYTHONDONTWRITEBYTECODE"] == "1"
    assert variables["TZ"] == "UTC"
    assert variables["HOME"] != variables["TMPDIR"]
    assert os.path.isfile(os.path.join(variables["DGYM_RUNNER"], "__main__.py"))  # noqa: PTH113, PTH118
    assert set(variables) <= {
        *("FROM_TASK", "FROM_CALL", "PATH", "LANG", "TZ", "HOME", "TMPDIR", "DGYM_RUNNER", "DGYM_TAG"),
        *("PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"),
    }


async def test_activate_decides_the_environment_of_every_command(start_runner, interpreter):
    line = 'echo noise; echo more noise >&2; export FROM_ACTIVATE="a\nb" PATH=/activated:$PATH; unset TZ'
    runner = await start_runner(interpreter, activate=line)
    result = await runner.client.run('printf "%s|%s|%s" "$FROM_ACTIVATE" "${TZ-unset}" "$PATH"')
    assert result.text.startswith("a\nb|unset|/activated:")
    assert (await runner.client.shell("echo $FROM_ACTIVATE")).text == "a b\n"


async def test_an_activate_line_that_fails_fails_the_setup_with_its_output(start_runner, interpreter):
    runner = await start_runner(interpreter, configure=False)
    from dgym.sandbox import SandboxSpec

    with pytest.raises(SetupFailed, match="the reason"):
        await runner.client.configure(SandboxSpec(workspace="/tmp", activate="echo the reason; false"))


async def test_the_interpreter_of_the_task_is_first_on_path(start_runner, interpreter, tmp_path):
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    runner = await start_runner(interpreter, python=str(tmp_path / "venv"))
    result = await runner.client.run("command -v python; echo $VIRTUAL_ENV")
    assert result.text.split() == [str(programs / "python"), str(tmp_path / "venv")]


async def test_the_report_is_separate_from_the_output_and_uses_a_high_descriptor(sandbox):
    # The descriptor stays open in programs that close all low descriptors.
    close = 'for n in 3 4 5 6 7 8 9; do eval "exec $n>&-"; done'
    line = f"{close}; echo out; echo told >&$DGYM_REPORT_FD; echo $DGYM_REPORT_FD"
    result = await sandbox.run(line, report=True)
    assert result.report == b"told\n"
    assert result.text.split()[0] == "out"
    assert int(result.text.split()[1]) >= 900


async def test_a_report_may_be_large_and_has_an_end(sandbox):
    line = "head -c 20000000 /dev/zero >&$DGYM_REPORT_FD; echo done"
    result = await sandbox.run(line, report=True)
    assert (len(result.report), result.text) == (16 * 1024**2, "done\n")


async def test_without_report_a_descriptor_is_not_inherited(sandbox):
    assert (await sandbox.run("echo ${DGYM_REPORT_FD-none}; ls /proc/self/fd | wc -l")).text.split() == ["none", "4"]


async def test_commands_run_side_by_side(sandbox, tmp_path):
    # Each command waits for the file of the other command. If they ran one after the other, they would not end.
    one = "touch a; until [ -e b ]; do sleep 0.01; done"
    two = "touch b; until [ -e a ]; do sleep 0.01; done"
    results = await asyncio.gather(
        *(sandbox.run(command, cwd=str(tmp_path), timeout_seconds=30) for command in (one, two))
    )
    assert [result.exit_status for result in results] == [0, 0]


async def test_more_calls_than_workers_all_get_their_answer(sandbox):
    results = await asyncio.gather(*(sandbox.run(["printf", str(number)]) for number in range(80)))
    assert [result.text for result in results] == [str(number) for number in range(80)]


async def test_a_small_call_is_answered_while_long_ones_run(sandbox):
    long = [asyncio.create_task(sandbox.run("sleep 100", timeout_seconds=200)) for _ in range(20)]
    assert (await sandbox.stat(["."]))[0].type == "directory"
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)


async def test_bytecode_is_not_written(sandbox, interpreter):
    await sandbox.write_file("module.py", b"x = 1\n")
    await sandbox.run([interpreter, "-c", "import module"])
    assert [entry.path for entry in await sandbox.list_directory(depth=3)] == ["module.py"]


async def test_modules_of_the_workspace_are_not_imported_by_the_runner(start_runner, interpreter, tmp_path):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    for name in ("json", "tarfile", "hashlib", "debugger", "traceback"):
        (workspace / f"{name}.py").write_text("raise SystemExit('imported the wrong one')\n")
    runner = await start_runner(interpreter)
    assert len(await runner.client.manifest()) == 5
    archive = [chunk async for chunk in runner.client.get_archive(["json.py"])]
    assert b"imported the wrong one" in b"".join(archive)
