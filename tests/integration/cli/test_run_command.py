import json
import shutil

import pytest

from dgym.results import read_trajectory
from dgym.terminal import printable
from tests.integration.cli.conftest import Folder
from tests.support.calc import BUGGY


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    folder = Folder(tmp_path_factory.mktemp("finished"))
    return folder, folder.run()


@pytest.fixture
def finished(finished_once, tmp_path):
    """The directory of a finished run, and its output."""
    folder, done = finished_once
    shutil.copytree(folder.path, tmp_path, dirs_exist_ok=True)
    return Folder(tmp_path), done


def test_an_episode_ends_with_a_table_and_four_files(finished):
    folder, done = finished
    assert done.returncode == 0, done.stderr
    assert "Resolved" in done.stdout
    assert "1 episode: 1 resolved, 0 unresolved, 0 failed" in done.stdout
    assert "[1/1] calc-0: Resolved 1/1, 6 steps" in done.stderr
    (attempt,) = folder.attempts()
    assert sorted(path.name for path in attempt.iterdir()) == [
        "episode.log",
        "patch.diff",
        "result.json",
        "trajectory.jsonl",
    ]
    assert "+    total += b" in (attempt / "patch.diff").read_text()
    result = json.loads((attempt / "result.json").read_text())
    assert (result["reason"], result["resolved"], result["score"], result["steps"]) == ("Resolved", True, 1, 6)
    trajectory = read_trajectory(attempt / "trajectory.jsonl")
    assert [step.seq for step in trajectory.steps] == list(range(7))
    assert "(2, 3, 2)" in trajectory.steps[3].observation.text
    assert trajectory.header.task == "calc"


def test_a_second_run_skips_what_is_finished_until_forced(finished):
    folder, _ = finished
    again = folder.run()
    assert again.returncode == 0
    assert "1 finished before" in again.stderr
    assert "1 resolved" in again.stdout
    assert len(folder.attempts()) == 1
    assert folder.run("--force").returncode == 0
    assert [attempt.name for attempt in folder.attempts()] == ["1", "2"]


def test_standard_output_contains_only_the_json(folder):
    done = folder.run("--output", "json", "--agent", "solution", "-v")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["summary"] == {"total": 1, "resolved": 1, "unresolved": 0, "failed": 0, "unfinished": 0}
    assert value["episodes"][0]["maxScore"] == 1
    assert "pdb sanity check" in done.stderr


def test_a_debugger_that_cannot_start_is_a_note_beside_the_solutions_outcome(folder):
    folder.manifest(edit=lambda text: text.replace("python check.py", "python -c 'import check'"))
    done = folder.run("--agent", "solution")
    assert done.returncode == 0, done.stderr
    (attempt,) = folder.attempts()
    result = json.loads((attempt / "result.json").read_text())
    assert (result["reason"], result["resolved"]) == ("Resolved", True)
    assert "pdb sanity check: a breakpoint could not be set" in result["notes"][-1]
    assert "set debugEntrypoint" in result["notes"][-1]


def test_failures_exit_with_1_and_run_again_when_asked(folder):
    folder.manifest(edit=lambda text: text.replace("  instructions:", "  setupCommands: [exit 3]\n  instructions:"))
    done = folder.run()
    assert done.returncode == 1
    assert "SetupFailed" in done.stdout
    assert "--force-failed" in done.stderr
    assert folder.run().returncode == 1
    assert len(folder.attempts()) == 1
    assert folder.run("--force-failed").returncode == 1
    assert len(folder.attempts()) == 2


def test_a_broken_agent_fails_its_episode_and_leaves_a_traceback(folder):
    done = folder.run("--agent", "agents_for_tests:Broken")
    assert done.returncode == 1
    assert "InternalError" in done.stdout
    (attempt,) = folder.attempts()
    assert "this agent is broken" in (attempt / "episode.log").read_text()
    assert len(read_trajectory(attempt / "trajectory.jsonl").steps) == 1


def test_an_unsolved_episode_counts(folder):
    (folder.path / "walk.jsonl").write_text('{"tool": "submit"}\n')
    done = folder.run()
    assert done.returncode == 0
    assert "Unresolved" in done.stdout


def test_a_bare_repository_needs_only_an_agent(folder, tmp_path):
    repository = tmp_path / "Some Repo"
    repository.mkdir()
    (repository / "calc.py").write_text(BUGGY)
    (repository / "test_calc.py").write_text("from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n")
    walk = '{"tool": "rewrite", "arguments": {"path": "calc.py", "start": 2, "end": 2, "new_code": "    return a + b"}}'
    (tmp_path / "short.jsonl").write_text(walk)
    arguments = folder.arguments()[3:]
    done = folder.dgym(
        "run", str(repository), *arguments, "--agent", "replay", "-p", "agent.parameters.trajectory=short.jsonl"
    )
    assert done.returncode == 0, done.stderr
    assert "some-repo" in done.stdout
    assert "1 resolved" in done.stdout
    assert (repository / "calc.py").read_text().endswith("a - b\n")


def test_the_debugger_stops_after_each_step(folder):
    done = folder.run_process("--debug", stdin="p step.seq, step.observation.tool\n" + "c\n" * 7)
    assert done.returncode == 0, done.stderr
    assert "(0, 'reset')" in done.stdout
    assert done.stdout.count("c continues, q quits") == 7
    assert "1 resolved" in done.stdout


def test_leaving_the_debugger_interrupts_the_run(folder):
    done = folder.run_process("--debug", stdin="c\nq\n")
    assert done.returncode == 130, done.stderr
    assert not list(folder.path.glob("results/*/*/*/*/result.json"))


@pytest.mark.parametrize("how", ["same", "changed"])
def test_replay_compares_the_observations(finished, how):
    folder, _ = finished
    (attempt,) = folder.attempts()
    path = attempt / "trajectory.jsonl"
    if how == "changed":
        path.write_text(path.read_text().replace("(2, 3, 2)", "(2, 3, 7)"))
    done = folder.dgym("replay", "--trust", str(path), *folder.arguments()[3:])
    assert done.returncode == (how == "changed"), done.stdout + done.stderr
    assert "6 steps" in done.stdout
    if how == "changed":
        assert "step 3 (pdb): text" in done.stdout
        assert "-(2, 3, 7)" in done.stdout.replace("    ", "")
    else:
        assert "all the same" in done.stdout


@pytest.mark.attack("trajectory")
def test_replay_follows_no_manifest_that_only_the_trajectory_names(finished):
    folder, _ = finished
    (attempt,) = folder.attempts()
    path = str(attempt / "trajectory.jsonl")
    refused = folder.dgym("replay", path, *folder.arguments()[3:])
    assert refused.returncode == 2, refused.stdout
    assert "give --task MANIFEST, or --trust" in refused.stderr
    named = folder.dgym("replay", path, "--task", folder.arguments()[2], *folder.arguments()[3:])
    assert named.returncode == 0, named.stderr


HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202eevil\u2066\u200b"
SHOWN = r"\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202eevil\u2066\u200b"


@pytest.mark.attack("terminal")
def test_terminal_escapes_in_a_trajectory_are_printed_as_text(finished):
    folder, _ = finished
    (attempt,) = folder.attempts()
    path = attempt / "trajectory.jsonl"
    header, *steps = map(json.loads, path.read_text().splitlines())
    header["episode"] = f"{HOSTILE}\nforged: 6 steps, all the same"
    steps[3]["observation"]["text"] = HOSTILE
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *steps)))
    done = folder.dgym("replay", "--trust", str(path), *folder.arguments()[3:])
    assert done.returncode == 1, done.stderr
    assert printable(done.stdout + done.stderr) == done.stdout + done.stderr
    assert f"-{SHOWN}" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("forged")]
    as_json = folder.dgym("replay", "--trust", str(path), *folder.arguments()[3:], "--output", "json").stdout
    assert printable(as_json) == as_json
    assert HOSTILE in "".join(each["text"] for each in json.loads(as_json)[str(path)]["differences"])


@pytest.mark.attack("terminal")
def test_terminal_escapes_in_a_patch_are_printed_as_text_before_it_is_applied(folder, tmp_path):
    repository = tmp_path / "repo"
    repository.mkdir()
    (repository / "calc.py").write_text(f"x = 1\n# {HOSTILE}\n")
    (repository / f"{HOSTILE}.py").write_text("print('" + HOSTILE + "')\nassert False\n")
    call = {"tool": "rewrite", "arguments": {"path": "calc.py", "start": 1, "end": 1, "new_code": f"x = '{HOSTILE}'"}}
    (tmp_path / "short.jsonl").write_text(json.dumps(call))
    done = folder.dgym(
        *("run", str(repository), *folder.arguments()[3:], "-v", "--apply", "--agent", "replay"),
        *("-p", "agent.parameters.trajectory=short.jsonl", "--entrypoint", f"python '{HOSTILE}.py'"),
        stdin="n\n",
    )
    assert printable(done.stdout + done.stderr) == done.stdout + done.stderr
    assert f"+x = '{SHOWN}'" in done.stderr
    assert "Apply it to" in done.stderr
    (attempt,) = folder.attempts()
    assert f"+x = '{HOSTILE}'" in (attempt / "patch.diff").read_text()
    log = (attempt / "episode.log").read_text()
    assert printable(log) == log


@pytest.mark.attack("trajectory")
def test_replay_imports_no_tool_that_a_trajectory_names_by_module(finished):
    folder, _ = finished
    (attempt,) = folder.attempts()
    path = attempt / "trajectory.jsonl"
    header, *steps = path.read_text().splitlines(keepends=True)
    header = json.loads(header)
    header["tools"].append("planted:Tool")
    path.write_text(json.dumps(header) + "\n" + "".join(steps))
    (folder.path / "planted.py").write_text("open('imported', 'w').close()\n")
    done = folder.dgym("replay", str(path), "--task", folder.arguments()[2], *folder.arguments()[3:])
    assert done.returncode == 2, done.stdout
    assert "planted:Tool" in done.stderr
    assert not (folder.path / "imported").exists()


def test_run_and_replay_read_a_repository_outside_of_the_manifests_directory_only_if_allowed(folder, tmp_path):
    repository = tmp_path / "elsewhere"
    repository.mkdir()
    (repository / "calc.py").write_text("def add(a, b):\n    total = a\n    total -= b\n    return total\n")
    (repository / "check.py").write_text("from calc import add\nassert add(2, 3) == 5, add(2, 3)\n")
    folder.manifest(
        edit=lambda text: (
            text[: text.index("    files:")] + "    localPath: ../elsewhere\n" + text[text.index("  solution:") :]
        )
    )
    (folder.path / "sub").mkdir()
    (folder.path / "x.yaml").rename(folder.path / "sub" / "x.yaml")
    manifest, *options = folder.arguments()[2:]
    assert folder.dgym("run", f"sub/{manifest}", *options).returncode == 2
    done = folder.dgym("run", f"sub/{manifest}", *options, "--allow-local-path", "elsewhere")
    assert "1 resolved" in done.stdout, done.stderr
    (attempt,) = folder.attempts()
    replay = ["replay", str(attempt / "trajectory.jsonl"), "--trust", *options]
    refused = folder.dgym(*replay)
    assert refused.returncode == 2, refused.stdout
    assert "localPath: '../elsewhere' leads out of the manifest's directory" in refused.stderr
    again = folder.dgym(*replay, "--allow-local-path", str(repository))
    assert again.returncode == 0, again.stderr


@pytest.mark.attack("host-interpreter")
def test_no_interpreter_of_the_repository_is_started(folder, tmp_path):
    repository, canary = tmp_path / "hostile", tmp_path / "canary"
    for place in (".venv/bin", "venv/bin", "bin", "."):
        (repository / place).mkdir(parents=True, exist_ok=True)
        (repository / place / "pyvenv.cfg").write_text("home = /usr/bin\n")
        for name in ("python", "python3", "uv", "pip"):
            (repository / place / name).write_text(f'#!/bin/sh\necho $0 >> {canary}\nexec python3 "$@"\n')
            (repository / place / name).chmod(0o755)
    (repository / "test_one.py").write_text("def test_one():\n    assert True\n")
    (tmp_path / "short.jsonl").write_text('{"tool": "submit"}')
    options = ["--sandbox", "none", "--agent", "replay", "-p", "agent.parameters.trajectory=short.jsonl"]
    done = folder.dgym("run", str(repository), *options)
    assert "1 resolved" in done.stdout, done.stderr
    assert not canary.exists(), canary.read_text()
    folder.dgym("run", str(repository), *options, "--force", "--python", str(repository / ".venv"))
    assert canary.exists()


def test_an_agent_that_steps_after_the_end_keeps_its_outcome(folder):
    done = folder.run("--agent", "agents_for_tests:Deaf")
    assert done.returncode == 0, done.stderr
    assert "1 episode: 1 resolved, 0 unresolved, 0 failed" in done.stdout


def test_results_inside_the_repository_are_not_packed_with_it(folder):
    folder.manifest(
        edit=lambda text: text[: text.index("    files:")] + "    localPath: .\n" + text[text.index("  solution:") :]
    )
    (folder.path / "calc.py").write_text("def add(a, b):\n    total = a\n    total -= b\n    return total\n")
    (folder.path / "check.py").write_text("from calc import add\nassert add(2, 3) == 5, add(2, 3)\n")
    first = folder.run()
    assert "1 resolved" in first.stdout, first.stderr
    assert "1 finished before" in folder.run().stderr
    assert len(folder.attempts()) == 1
