"""Tests of the workspace in a container: source of the repository, owner, user and environment."""

import pytest

from dgym.errors import ManifestError, SandboxStartFailed

BAKED = """
    USER 0
    RUN mkdir /testbed && echo 'x = 1' > /testbed/code.py && mkdir /testbed/package && echo old > /testbed/package/a.txt
"""


async def output_of(sandbox, command):
    result = await sandbox.run(command)
    assert result.exit_status == 0, result.text
    return result.text.strip()


async def test_a_delivered_repository_gets_an_empty_workspace(open_sandbox, build):
    image = build("baked", BAKED)
    sandbox = await open_sandbox(image, workspace="/testbed")
    assert await output_of(sandbox, "ls -A /testbed") == ""
    await sandbox.write_file("code.py", b"x = 2\n")
    assert (
        await output_of(sandbox, "cat code.py; stat -c %u /testbed /testbed/code.py; pwd")
        == "x = 2\n1000\n1000\n/testbed"
    )


async def test_a_workspace_that_the_image_lacks_is_made(open_sandbox):
    sandbox = await open_sandbox(workspace="/srv/deep/repository")
    assert await output_of(sandbox, "touch x; pwd; ls") == "/srv/deep/repository\nx"


async def test_the_user_of_an_image_is_kept(open_sandbox, build):
    image = build(
        "named",
        """
        USER 0
        RUN echo 'tester:x:4321:4322::/home/tester:/bin/sh' >> /etc/passwd \\
         && mkdir /home/tester && touch /home/tester/code.py && chown -R 4321 /home/tester
        USER tester
        """,
    )
    for delivered in (True, False):
        sandbox = await open_sandbox(image, delivered=delivered, workspace="/home/tester" if not delivered else "/work")
        await output_of(sandbox, "touch here")
        assert await output_of(sandbox, "id -u; id -g; whoami; echo $HOME") == "4321\n4322\ntester\n/home/tester"


async def test_a_repository_in_the_image_is_used_in_place(open_sandbox, build):
    image = build("baked", BAKED)
    sandbox = await open_sandbox(image, delivered=False, workspace="/testbed")
    assert await sandbox.read_file("code.py") == b"x = 1\n"
    await sandbox.write_file("package/a.txt", b"new\n")
    await sandbox.write_file("code.py", b"x = 2\n")
    assert sorted(await sandbox.manifest()) == ["code.py", "package/a.txt"]
    other = await open_sandbox(image, delivered=False, workspace="/testbed")
    assert await other.read_file("package/a.txt") == b"old\n"


async def test_an_image_without_the_repository_is_refused_with_the_remedy(open_sandbox):
    with pytest.raises(ManifestError, match="contains no files at /workspace: set workingDirectory"):
        await open_sandbox(delivered=False)


async def test_the_environment_of_the_image_is_kept(open_sandbox, build):
    image = build("environment", 'ENV FLAVOUR=vanilla TMPDIR=/nowhere\nENTRYPOINT ["false"]\nHEALTHCHECK CMD true\n')
    sandbox = await open_sandbox(image, environment={"COLOUR": "green"})
    assert await output_of(sandbox, "echo $FLAVOUR $COLOUR $TMPDIR $HOME") == "vanilla green /tmp /home/agent"
    await output_of(sandbox, 'mktemp && touch "$HOME/x"')


async def test_activate_runs_in_the_container(open_sandbox):
    sandbox = await open_sandbox(activate="export MOOD=sunny && cd /")
    assert await output_of(sandbox, "echo $MOOD; pwd") == "sunny\n/workspace"


async def test_an_image_without_the_interpreter_is_named(open_sandbox):
    with pytest.raises(
        SandboxStartFailed, match=r"(?s)python9.*does the image have 'python9' \(the task's 'interpreter'\)"
    ):
        await open_sandbox(interpreter="python9")


async def test_a_workspace_over_the_system_is_refused(open_sandbox):
    with pytest.raises(ManifestError, match="would replace"):
        await open_sandbox(workspace="/usr")


async def test_volumes_of_the_image_are_writable_and_removed_with_the_container(open_sandbox, build, podman):
    before = podman("volume", "ls", "--quiet").split()
    sandbox = await open_sandbox(build("volume", "USER 0\nVOLUME /workspace\n"))
    assert await output_of(sandbox, "touch x; ls") == "x"
    await sandbox.stop()
    assert podman("volume", "ls", "--quiet").split() == before
