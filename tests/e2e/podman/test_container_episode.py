"""Tests of whole episodes in containers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dgym import AsyncRepoEnv
from dgym.api import DebugTask, DebugTaskSpec, InlineFile, ObjectMeta, Resources, SourceSpec
from dgym.errors import ManifestError
from dgym.sandbox.local import bubblewrap_works

CODE = "def add(a, b):\n    total = a - b\n    return total\n"
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
REPAIR = {"tool": "rewrite", "arguments": {"path": "calc.py", "start": 2, "end": 2, "new_code": "    total = a + b"}}

BAKED = """
    USER 0
    WORKDIR /testbed
    RUN python -c "import base64; open('calc.py', 'wb').write(base64.b64decode('{code}'))" \\
     && python -c "import base64; open('test_calc.py', 'wb').write(base64.b64decode('{test}'))" \\
     && mkdir .git && touch .git/HEAD
"""


def task(**fields):
    fields.setdefault(
        "source",
        SourceSpec(files=(InlineFile(path="calc.py", content=CODE), InlineFile(path="test_calc.py", content=TEST))),
    )
    return DebugTask(metadata=ObjectMeta(name="adding"), spec=DebugTaskSpec(**fields))


@pytest.fixture
def baked(build):
    import base64

    code, test = (base64.b64encode(text.encode()).decode() for text in (CODE, TEST))
    return build("repository", BAKED.format(code=code, test=test))


async def play(env):
    _, info = await env.reset(options={"eval": True})
    assert info["score"] == 0
    await env.step("pdb b calc.py:3")
    observation, *_ = await env.step("pdb c")
    assert observation["frame"]["line"] == 3, observation["text"]
    observation, *_ = await env.step("pdb p total")
    assert "-1" in observation["text"]
    await env.step(REPAIR)
    return await env.step("submit")


async def test_an_episode_is_resolved(engine):
    async with AsyncRepoEnv(task(), sandbox="container", engine=engine.flavor) as env:
        *_, reward, terminated, _, info = await play(env)
        assert (reward, terminated, info["reason"]) == (1.0, True, "Resolved"), info
        assert "+    total = a + b" in await env.patch()


async def test_a_repository_in_the_image_needs_no_upload(engine, baked):
    reported = []
    described = task(source=None, image=baked, working_directory="/testbed")
    async with AsyncRepoEnv(described, sandbox="auto", engine=engine.flavor, progress=reported.append) as env:
        *_, info = await play(env)
        assert info["reason"] == "Resolved"
        assert env._episode._sandboxes._provider._image.name == baked
    assert reported == []


async def test_setup_and_build_commands_run_in_both_containers(engine, build):
    described = task(
        image=build("tools", "ENV STYLE=plain\n"),
        setup_commands=("touch /tmp/was-set-up && test $STYLE = plain",),
        build_commands=("test -e /tmp/was-set-up",),
        resources=Resources(limits={"memory": "512Mi", "cpu": "1500m"}),
    )
    async with AsyncRepoEnv(described, engine=engine.flavor) as env:
        *_, info = await play(env)
        assert info["reason"] == "Resolved"


async def test_changes_of_the_agents_container_do_not_affect_the_verifier(engine):
    async with AsyncRepoEnv(task(), sandbox="container", engine=engine.flavor) as env:
        await env.reset()
        await env.step("bash mkdir -p ~/.local && echo 'import os; os._exit(0)' > /tmp/conftest.py; pip --version")
        await env.step("bash (while :; do echo x > /workspace/x; sleep 0.1; done) >/dev/null 2>&1 &")
        *_, info = await env.step("submit")
        assert info["reason"] == "Unresolved"


async def test_a_sandbox_that_dies_between_steps_is_replaced_without_poisoning_a_step(engine, podman):
    async with AsyncRepoEnv(task(), sandbox="container", engine=engine.flavor) as env:
        await env.reset()
        await env.step(REPAIR)
        podman("kill", env._episode._sandboxes._sandbox.name)
        observation, *_ = await env.step("view calc.py")
        assert "total = a + b" in observation["text"]
        *_, info = await env.step("submit")
        assert info["reason"] == "Resolved"


async def test_auto_chooses_bubblewrap_for_tasks_without_an_image(engine):
    if not bubblewrap_works():
        pytest.skip("bubblewrap does not work here")
    async with AsyncRepoEnv(task(), engine=engine.flavor) as env:
        await env.reset()
        assert env._episode._sandboxes._sandbox.kind == "bubblewrap"


async def test_auto_takes_a_container_where_bubblewrap_does_not_work(engine, monkeypatch):
    monkeypatch.setattr("dgym.sandbox.container._provider.bubblewrap_works", lambda: False)
    async with AsyncRepoEnv(task(), engine=engine.flavor) as env:
        await env.reset()
        assert env._episode._sandboxes._sandbox.kind == "container"


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({}, {"sandbox": "container", "python": sys.executable}, "which is not available in a container"),
        ({"requirements": ("numpy",)}, {"sandbox": "container"}, r"has requirements \(numpy\) but no image"),
        ({"source": None, "image": "some/image"}, {"sandbox": "bubblewrap"}, "the repository is in the image"),
    ],
)
async def test_incompatible_options_are_refused(engine, fields, options, message):
    async with AsyncRepoEnv(task(**fields), engine=engine.flavor, **options) as env:
        with pytest.raises(ManifestError, match=message):
            await env.reset()


SET = """
apiVersion: dgym.dev/v1alpha1
kind: EpisodeSet
metadata: {name: some}
spec:
  tasks: [{name: league-table}, {name: order-book}, {name: timesheet}]
  template:
    agent: {name: replay, parameters: {trajectory: "package:dgym.benchmarks.mini_nightmare"}}
"""


@pytest.mark.timeout(300)
def test_bundled_tasks_are_resolved_in_containers_and_replayed_without_differences(engine, tmp_path):
    (tmp_path / "set.yaml").write_text(SET)
    done = dgym(
        "run", "set.yaml", "--output", "json", "--sandbox", "container", "--engine", engine.flavor, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["resolved"] == 3
    trajectories = [str(path) for path in tmp_path.glob("results/local/*/*/1/trajectory.jsonl")]
    again = dgym("replay", "--trust", *trajectories, "--sandbox", "container", "--engine", engine.flavor, cwd=tmp_path)
    assert again.stdout.count("all the same") == 3, again.stdout


def dgym(*arguments, cwd):
    command = [Path(sys.executable).with_name("dgym"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=140, check=False)
