import os
import signal
import time

import pytest

from dgym.results import read_trajectory

WAITING = ("--agent", "agents_for_tests:Waiting", "--workers", "2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_stops_and_can_be_continued(folder, no_process_survives, number):
    folder.manifest(samples=3)
    process = folder.start(*WAITING)
    folder.waiting(2)
    started = time.monotonic()
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    output, _ = process.communicate(timeout=90)
    assert time.monotonic() - started < 60
    assert process.returncode == 130, output
    assert "the same command continues where this command stopped" in output
    assert "Traceback" not in output
    assert len(folder.attempts()) == 2
    for attempt in folder.attempts():
        assert not (attempt / "result.json").exists()
        assert len(read_trajectory(attempt / "trajectory.jsonl").steps) == 2
    folder.release()
    assert folder.run(*WAITING).returncode == 0
    assert len(list(folder.path.glob("results/*/*/*/*/result.json"))) == 3


def test_only_the_episode_of_a_killed_worker_process_is_run_again(folder, no_process_survives):
    folder.manifest(samples=2)
    process = folder.start(*WAITING)
    victim = folder.waiting(2)[0]
    os.kill(victim, signal.SIGKILL)
    folder.waiting(3)
    folder.release()
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    assert sorted((path.parts[-3], path.name) for path in folder.attempts()) in (
        [("calc-0", "1"), ("calc-0", "2"), ("calc-1", "1")],
        [("calc-0", "1"), ("calc-1", "1"), ("calc-1", "2")],
    )
    assert "2 unresolved, 0 failed" in output


def test_an_episode_that_kills_its_workers_is_lost_and_others_are_not(folder, no_process_survives):
    folder.manifest(samples=2)
    done = folder.run("--agent", "agents_for_tests:Dying", "--workers", "1")
    assert done.returncode == 1
    assert done.stdout.count("AgentPodLost") >= 2
    assert "died 2 times" in done.stdout
    assert len(folder.attempts()) == 4


def test_a_killed_run_leaves_readable_trajectories_and_no_processes(folder, no_process_survives):
    process = folder.start(*WAITING)
    folder.waiting(1)
    process.kill()
    process.communicate(timeout=90)
    (attempt,) = folder.attempts()
    trajectory = read_trajectory(attempt / "trajectory.jsonl")
    assert [step.seq for step in trajectory.steps] == [0, 1]
