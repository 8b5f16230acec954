"""Tests that the sidecar stays below its limit of 128 MiB, whatever an agent writes into its workspace."""

from pathlib import Path

import pytest

from dgym.wire import EndReason

MIB = 1024**2


def peak_bytes(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


@pytest.mark.thorough
@pytest.mark.attack("killed-sandbox")
@pytest.mark.parametrize(
    ("command", "left_behind"),
    [
        ("for i in $(seq 300); do head -c 1000000 /dev/urandom > f$i; done", 294),
        ("head -c 6000000 /dev/urandom > f; yes ab | head -c 200000 > g", 0),
        ("yes ab | head -c 6200000 > f", 0),
        ("for i in $(seq 41); do seq 1 25000 > f$i; done", 0),
    ],
    ids=["300 MB", "no text", "many equal lines", "many lines"],
)
async def test_many_changed_bytes_are_unresolved_and_the_sidecar_survives(new_pod, command, left_behind):
    pod = new_pod()
    pod.start_runners()
    pod.settings.directory.mkdir()
    process = pod.start_process(fresh=True)
    await pod.listening()
    await pod.ready()
    await pod.prepare()
    pod.operate()
    env = pod.connect()
    await env.reset()
    await env.step({"tool": "bash", "arguments": {"command": command}})
    result = await env.finish()
    assert (result.reason, result.score, result.max_score) == (EndReason.UNRESOLVED, 0, 1)
    notes = [note for note in result.notes if "it is too large to copy" in note]
    assert (len(notes), result.notes[-1:]) == (
        (199, (f"and {left_behind - 199} more notes",)) if left_behind > 200 else (left_behind, ())
    )
    assert peak_bytes(process) < 110 * MIB
