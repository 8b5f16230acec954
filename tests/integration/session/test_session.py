"""Tests of the session: each step runs exactly once, limits, contents of the patch, and no leftovers."""

import asyncio
import subprocess

import msgspec
import psutil
import pytest

from dgym.api import ToolSpec
from dgym.errors import ConflictError, EpisodeOver, ManifestError, SandboxLost
from dgym.sandbox.local import LocalProvider
from dgym.session import EpisodeLimits, _outcome
from dgym.wire import OBSERVATION_LIMIT, EndReason
from tests.integration.session.conftest import FILES, PYTEST

REPAIR = "rewrite calc.py 2 <c>    return a + b</c>"
COUNT = "bash echo once >> counter"


async def test_a_repeated_step_runs_once(open_session):
    session = await open_session()
    first = await session.step(1, COUNT)
    assert await session.step(1, COUNT) == first
    together = await asyncio.gather(*(session.step(2, COUNT) for _ in range(3)))
    assert len(set(map(id, together))) == 1
    counted = await session.step(3, "bash cat counter")
    assert counted.text.count("once") == 2
    with pytest.raises(ConflictError, match="another call"):
        await session.step(1, "bash true")
    with pytest.raises(ConflictError, match="gap"):
        await session.step(9, "bash true")
    assert [step.seq for step in session.trajectory()] == [0, 1, 2, 3]
    assert [step.seq for step in session.trajectory(start=2)] == [2, 3]


async def test_a_step_of_a_cancelled_driver_is_executed_once(open_session):
    session = await open_session()
    asking = asyncio.create_task(session.step(1, "bash sleep 0.3; echo once >> counter"))
    done, _ = await asyncio.wait([asking], timeout=0.1)
    assert not done
    asking.cancel()
    await session.step(1, "bash sleep 0.3; echo once >> counter")
    assert (await session.step(2, "bash cat counter")).text.count("once") == 1


async def test_the_last_answer_can_be_asked_again_and_no_other_step_follows(open_session):
    session = await open_session()
    await session.step(1, REPAIR)
    last = await session.step(2, "submit")
    assert last.end_reason == EndReason.RESOLVED
    assert await session.step(2, "submit") == last
    with pytest.raises(EpisodeOver):
        await session.step(3, "bash true")
    assert await session.finish(EndReason.CANCELLED) is session.result


async def test_every_kind_of_change_is_in_the_patch(open_session, tmp_path):
    session = await open_session()
    await session.step(
        1,
        "bash chmod +x tool.sh; rm old.txt; mkdir -p new/deep; printf 'no newline' > new/deep/file.txt; "
        "mv calc.py sums.py; head -c 300 /dev/zero > blob.bin; "
        "ln -s calc.py link.py; printf 'a\\r\\nb\\r\\n' > crlf.txt",
    )
    patch = (await session.patch()).encode("utf-8", "surrogateescape")
    repository = tmp_path / "clone"
    repository.mkdir()
    for file in session.task.spec.source.files:
        (repository / file.path).write_text(file.content)
    subprocess.run(["git", "apply", "--check", "-"], cwd=repository, input=patch, check=True)
    subprocess.run(["git", "apply", "-"], cwd=repository, input=patch, check=True)
    assert (repository / "tool.sh").stat().st_mode & 0o100
    assert not (repository / "old.txt").exists()
    assert not (repository / "calc.py").exists()
    assert (repository / "sums.py").is_file()
    assert (repository / "new/deep/file.txt").read_text() == "no newline"
    assert (repository / "blob.bin").read_bytes() == bytes(300)
    assert (repository / "link.py").is_symlink()
    assert (repository / "crlf.txt").read_bytes() == b"a\r\nb\r\n"


@pytest.mark.parametrize("rules", ["/*\n!/calc.py\n", "calc.py\n", "*\n"])
async def test_a_repair_counts_regardless_of_gitignore(open_session, rules):
    session = await open_session(files={**FILES, ".gitignore": rules})
    await session.step(1, REPAIR)
    await session.step(2, "bash echo new > log.txt; sed -i 's/hello/bye/' tool.sh")
    result = await session.finish()
    assert result.resolved
    assert "+    return a + b" in result.patch
    assert "+echo bye" in result.patch
    assert ("not copied to the verifier: log.txt (it is generated or named by .gitignore)" in result.notes) is (
        rules != "calc.py\n"
    )


async def test_concurrent_requests_for_the_patch_return_the_same(open_session):
    session = await open_session()
    await session.step(1, REPAIR)
    one, other = await asyncio.gather(session.patch(), session.patch())
    assert one == other
    assert "-    return a - b\n+    return a + b" in one


async def test_changes_that_cannot_be_copied_are_dropped_and_the_rest_is_scored(open_session):
    names = "; ".join(f"f{number}=$(printf '{number}\\377')" for number in range(5))
    session = await open_session(
        setupCommands=["head -c 17000000 /dev/zero > large.bin", f"{names}; touch $f0 $f1 $f2", "mkfifo pipe"]
    )
    await session.step(1, REPAIR)
    await session.step(2, "bash rm large.bin pipe; chmod 000 old.txt")
    await session.step(3, f"bash {names}; echo 2 > $f0; rm $f1; ln -sf y $f2; echo > $f3; mkfifo $f4")
    result = await session.finish()
    assert result.resolved
    reasons = dict(note.removeprefix("not copied to the verifier: ").split(" ", 1) for note in result.notes)
    assert reasons.pop("old.txt").startswith("(it cannot be read")
    assert reasons == {
        **{f"{number}\\xff": "(its name is not UTF-8)" for number in range(5)},
        "large.bin": "(it is too large to copy (17,000,000 bytes))",
        "pipe": "(it is or was neither a file nor a symbolic link)",
    }


LONG = "/".join("d" * 200 for _ in range(18))


async def test_more_paths_than_a_frame_header_takes_are_carried(open_session):
    session = await open_session()
    await session.step(1, REPAIR)
    await session.step(2, f"bash mkdir -p {LONG}; cd {LONG}; for n in $(seq 300); do : > $n; done")
    result = await session.finish()
    assert result.resolved
    assert result.patch.count("new file mode") == 300


async def test_changes_are_computed_without_a_verifier(open_session):
    class OneSandbox(LocalProvider):
        async def verifier(self):
            raise AssertionError("a verifier was started")

    session = await open_session(provider=OneSandbox)
    await session.step(1, REPAIR)
    await session.step(2, "bash rm old.txt; echo new > new.txt; chmod -x tool.sh")
    patch = await session.patch()
    assert "-    return a - b\n+    return a + b\n" in patch
    assert "-going away\n" in patch
    assert "+new\n" in patch
    await session.close()


async def test_files_that_the_setup_changed_have_the_setups_originals(open_session):
    session = await open_session(setupCommands=["echo 'built = 1' >> calc.py"])
    await session.step(1, "bash echo 'built = 2' >> calc.py")
    patch = await session.patch()
    assert " built = 1\n+built = 2\n" in patch
    assert "+built = 1" not in patch


async def test_a_submission_that_is_not_evaluated_ends_without_a_score(open_session):
    tools = ("bash", msgspec.convert({"name": "submit", "options": {"evaluate": False}}, ToolSpec))
    session = await open_session(tools=tools)
    (_, submit) = session.toolset.tools
    assert "scored" not in submit.description
    await session.step(1, "bash echo changed > old.txt")
    last = await session.step(2, "submit all understood")
    assert (last.end_reason, last.text) == ("Submitted", "Submitted: all understood")
    result = session.result
    assert (result.reason, result.resolved, result.max_score) == (EndReason.SUBMITTED, False, 0)
    assert "+changed" in result.patch
    assert "evaluate: false" in result.message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("for n in range(25_001): open(str(n), 'x').close()", "25,002 files were changed; at most 25,000 are copied"),
        (
            f"os.makedirs('{LONG}'); os.chdir('{LONG}')\nfor n in range(2400): open(str(n), 'x').close()",
            "at most 8,388,608 are copied",
        ),
    ],
    ids=["files", "paths"],
)
async def test_too_many_changes_count_as_unresolved(open_session, make, message):
    session = await open_session()
    await session.step(1, REPAIR)
    await session.step(2, f"bash python3 - <<'END'\nimport os\n{make}\nEND")
    result = await session.finish()
    assert (result.resolved, result.reason, result.patch) == (False, EndReason.UNRESOLVED, "")
    assert message in result.message


async def test_limits_of_changes_are_checked_before_anything_is_carried(open_session, monkeypatch):
    session = await open_session()
    await session.step(1, "bash touch 1 2 3")
    monkeypatch.setattr(_outcome, "MAXIMUM_PATH_BYTES", 2)
    assert "have 3 bytes; at most 2 are copied" in (await session._sandboxes.changes()).unscorable
    monkeypatch.setattr(_outcome, "MAXIMUM_CHANGED_FILES", 2)
    result = await session.finish()
    assert (result.resolved, result.reason, result.patch) == (False, EndReason.UNRESOLVED, "")
    assert "3 files were changed; at most 2 are copied" in result.message


async def test_hidden_files_and_the_test_patch_reach_the_verifier_only(open_session):
    test_patch = (
        "--- a/test_calc.py\n+++ b/test_calc.py\n@@ -3,3 +3,7 @@\n \n def test_add():\n"
        "     assert calc.add(2, 3) == 5\n+\n+\n+def test_more():\n+    assert calc.add(1, 1) == 2\n"
    )
    session = await open_session(
        entrypoint=PYTEST,
        scoring={
            "failToPass": ["test_hidden.py::test_negative", "test_calc.py::test_more"],
            "hiddenFiles": [
                {"path": "test_hidden.py", "content": "import calc\ndef test_negative(): assert calc.add(-1, 1) == 0\n"}
            ],
            "testPatch": test_patch,
        },
    )
    assert "hidden" not in (await session.step(1, "bash ls; grep -c more test_calc.py")).text
    await session.step(2, REPAIR)
    await session.step(3, "submit")
    assert session.result.resolved
    assert session.result.tests == {"test_hidden.py::test_negative": "passed", "test_calc.py::test_more": "passed"}


async def test_programs_and_processes_of_the_agent_do_not_affect_the_score(open_session):
    session = await open_session(entrypoint=PYTEST)
    await session.step(
        1,
        "bash mkdir -p ~/bin; printf '#!/bin/sh\\nexit 0\\n' > ~/bin/python; chmod +x ~/bin/python; "
        "export PATH=~/bin:$PATH; (trap '' TERM; while :; do cp -f /dev/null test_calc.py; sleep 0.05; done) "
        "> /dev/null 2>&1 &",
    )
    await session.step(2, "submit")
    assert not session.result.resolved


async def test_build_commands_run_before_the_tests(open_session):
    session = await open_session(buildCommands=["printf 'OFFSET = 0\\n' > offset.py"])
    await session.step(1, "rewrite calc.py <c>import offset\n\n\ndef add(a, b):\n    return a + b + offset.OFFSET</c>")
    await session.step(2, "submit")
    assert session.result.resolved


async def test_exit_status_scoring(open_session):
    session = await open_session(entrypoint="python -c 'import calc; assert calc.add(2, 2) == 4'")
    result = await session.finish()
    assert (result.score, result.max_score, result.reason) == (0, 1, EndReason.UNRESOLVED)
    again = await open_session(entrypoint="python -c 'import calc; assert calc.add(2, 2) == 4'")
    await again.step(1, REPAIR)
    assert (await again.finish()).resolved


async def test_a_cancelled_episode_is_scored(open_session):
    session = await open_session()
    result = await session.finish(EndReason.CANCELLED)
    assert (result.reason, result.score, result.max_score) == (EndReason.CANCELLED, 0, 1)


async def test_the_episode_is_scored_at_its_deadline_without_a_call(open_session):
    session = await open_session(limits=EpisodeLimits(deadline_seconds=0.5))
    async with asyncio.timeout(60):
        while session.result is None:
            await asyncio.sleep(0.02)
    assert session.result.reason == EndReason.DEADLINE_EXCEEDED
    last = await session.step(1, "bash true")
    assert last.end_reason == EndReason.DEADLINE_EXCEEDED


async def test_a_call_after_the_end_does_not_count_as_a_step(open_session):
    session = await open_session()
    await session.step(1, "bash true")
    result = await session.finish(EndReason.DEADLINE_EXCEEDED)
    refused, looked = await session.step(2, "bash true"), await session.peek("view calc.py")
    assert "Not executed" in refused.text
    assert (looked.text, refused.ok, looked.ok) == ("The episode has ended.", False, False)
    assert session.steps == result.steps == 1


async def test_with_max_rewrites_0_the_tool_rewrite_is_missing(open_session):
    session = await open_session(limits=EpisodeLimits(max_rewrites=0))
    assert "rewrite" not in session.tools
    observation = await session.step(1, REPAIR)
    assert not observation.ok
    assert observation.end_reason is None
    assert not (await session.finish()).resolved


async def test_the_option_eval_without_its_tool_is_refused(open_session):
    session = await open_session(reset=False, tools=["view"])
    with pytest.raises(ManifestError, match="add it to tools"):
        await session.reset(evaluate=True)
    assert (await session.reset()).ok


async def test_the_first_observation_has_the_size_of_any_other(open_session):
    files = {f"{number:0200}.py": "" for number in range(100)}
    session = await open_session(reset=False, instructions="words " * 10_000, files=files, tools=["listdir", "submit"])
    observation = await session.reset()
    assert len(observation.text.encode()) <= OBSERVATION_LIMIT
    assert observation.text.startswith("words words")
    assert observation.truncated_bytes > 10_000
    assert "bytes cut" in observation.text


async def test_a_session_is_reset_once(open_session):
    session = await open_session()
    with pytest.raises(ConflictError):
        await session.reset()


async def test_closing_leaves_no_process(open_session):
    before = {process.pid for process in psutil.process_iter()}
    session = await open_session()
    await session.step(
        1, "bash (trap '' TERM; setsid sleep 86401 &) > /dev/null 2>&1; setsid sleep 86402 > /dev/null 2>&1 &"
    )
    await session.close()
    mine = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.pid not in before and (process.info["cmdline"] or [])[:1] == ["sleep"]
    ]
    assert [process for process in mine if process.info["cmdline"][1] in ("86401", "86402")] == []
    with pytest.raises((EpisodeOver, SandboxLost)):
        await session.patch()


async def test_a_solution_that_does_not_apply_is_reported_with_file_and_hunk(open_session):
    session = await open_session(solution="--- a/calc.py\n+++ b/calc.py\n@@ -1,1 +1,1 @@\n-nothing\n+something\n")
    with pytest.raises(ManifestError, match=r"spec.solution does not apply .* calc.py: hunk 1"):
        await session.apply_solution()
    assert not (await (await open_session()).apply_solution()).ok
