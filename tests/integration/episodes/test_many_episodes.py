"""Tests of worker processes that block or die, and of many episodes in one process."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from dgym.episodes import Finished, Models, Started, run_episode
from dgym.episodes._worker_processes import Bounds, OwnCode, WorkerProcesses, bounds_of
from dgym.wire import EndReason

EPISODES = 8
IN_ONE_PROCESS = 20
PATIENT = Bounds(prepare=60.0, play=60.0)


class Run:
    """Listener that records how often each episode started, the results and their order."""

    def __init__(self):
        self.starts = Counter()
        self.results = {}
        self.order = []

    def __call__(self, job, event):
        if isinstance(event, Started):
            self.starts[job.episode] += 1
        if isinstance(event, Finished):
            assert job.episode not in self.results
            self.results[job.episode] = event.result
            self.order.append(job.episode)

    @property
    def reasons(self):
        return {episode: result.reason for episode, result in self.results.items()}


def test_a_process_whose_loop_is_blocked_is_killed_and_its_episode_lost_after_a_retry(agents, new_job):
    run = Run()
    stuck = new_job("stuck", f"{agents}:Blocking")
    others = [new_job(name, f"{agents}:Talking", parameters={"together": 1, "me": name}) for name in ("one", "two")]
    worker_processes = WorkerProcesses(
        workers=2,
        listener=run,
        bounds=lambda job: Bounds(prepare=60.0, play=0.5) if job is stuck else PATIENT,
    )
    worker_processes.run([stuck, *others])
    assert run.reasons == {
        "stuck": EndReason.AGENT_POD_LOST,
        "one": EndReason.UNRESOLVED,
        "two": EndReason.UNRESOLVED,
    }
    assert "did not answer any more" in run.results["stuck"].message
    assert run.starts == {"stuck": 2, "one": 1, "two": 1}


@pytest.mark.parametrize("culprit", ["Killing", "BlockingAll"])
def test_episodes_that_shared_a_process_with_a_crash_run_again_separately(agents, new_job, tmp_path, culprit):
    run = Run()
    names = ("one", "two", "three")
    marks = {name: str(tmp_path / f"{name}.marks") for name in names}
    guilty = new_job("guilty", f"{agents}:{culprit}", parameters={"neighbours": list(marks.values())})
    worker_processes = WorkerProcesses(
        workers=4,
        listener=run,
        bounds=lambda job: Bounds(prepare=60.0, play=3.0) if job is guilty else PATIENT,
        may_share=lambda _: True,
        processes=1,
    )
    worker_processes.run(
        [guilty, *(new_job(name, f"{agents}:Neighbour", parameters={"marks": marks[name]}) for name in names)]
    )
    assert run.reasons == {"guilty": EndReason.AGENT_POD_LOST, **dict.fromkeys(names, EndReason.UNRESOLVED)}
    assert run.starts == {"guilty": 3, **dict.fromkeys(names, 2)}
    assert "died 2 times" in run.results["guilty"].message
    processes = [Path(marks[name]).read_text().split() for name in names]
    assert len({first for first, _ in processes}) == 1
    assert len({second for _, second in processes} | {processes[0][0]}) == 4


def test_an_episode_whose_process_died_after_its_result_was_stored_is_not_run_again(agents, new_job):
    run = Run()
    job = new_job("stored", f"{agents}:DyingOnceStored")
    WorkerProcesses(workers=1, listener=run, bounds=lambda _: PATIENT).run([job])
    assert run.reasons == {"stored": EndReason.UNRESOLVED}
    assert run.starts == {"stored": 1}
    assert run.results["stored"] == job.folder.result()


def test_twenty_episodes_share_a_process(agents, new_job):
    run = Run()
    # Each agent waits until all agents have reached the same point in this process.
    jobs = [
        new_job(f"e{number}", f"{agents}:Talking", parameters={"together": IN_ONE_PROCESS, "me": str(number)})
        for number in range(IN_ONE_PROCESS)
    ]
    worker_processes = WorkerProcesses(
        workers=IN_ONE_PROCESS, listener=run, bounds=lambda _: PATIENT, may_share=lambda _: True, processes=1
    )
    worker_processes.run(jobs)
    assert Counter(run.reasons.values()) == {EndReason.UNRESOLVED: IN_ONE_PROCESS}
    assert set(run.starts.values()) == {1}


def test_agents_and_tools_of_users_are_distinguished_from_those_of_dgym(agents, new_job):
    own = OwnCode()
    assert own.runs(new_job("one", "replay"))
    assert own.runs(new_job("one", "dgym.agents.replay:ReplayAgent", tools=["pdb", "view"]))
    assert not own.runs(new_job("one", f"{agents}:Talking"))
    assert not own.runs(new_job("one", "replay", tools=["pdb", f"{agents}:Sleeping"]))


def test_the_time_limits_of_a_process_exceed_all_limits_of_the_episode(new_job):
    bounds = bounds_of(new_job("one", "replay", activeDeadlineSeconds=1000))
    assert bounds.play > 1000 + 3 * 300
    assert bounds.prepare > 3600


async def test_many_episodes_share_a_process_and_each_has_its_own_log(agents, new_job):
    jobs = [
        new_job(f"e{number}", f"{agents}:Talking", parameters={"together": EPISODES, "me": f"number {number}."})
        for number in range(EPISODES)
    ]
    models, reported = Models(), {job.episode: [] for job in jobs}
    results = await asyncio.gather(*(run_episode(job, reported[job.episode].append, models=models) for job in jobs))
    assert [result.reason for result in results] == [EndReason.UNRESOLVED] * EPISODES
    for number, job in enumerate(jobs):
        (attempt,) = job.folder.attempts()
        logged = [line.partition(" I am ")[2] for line in attempt.log.read_text().splitlines() if " I am " in line]
        assert logged == [f"number {number}."] * 3
        assert attempt.trajectory.read_text().count("\n") == 5
        texts = [event.text for event in reported[job.episode] if getattr(event, "text", "").startswith("I am")]
        assert texts == [f"I am number {number}."] * 3
