"""Workers that stop answering, and many episodes in one process."""

import asyncio

from dgym.episodes.job import Finished, Started
from dgym.episodes.local import run_episode
from dgym.episodes.models import Models
from dgym.episodes.pool import Bounds, Pool, bounds_of
from dgym.wire import EndReason

EPISODES = 8


def test_a_worker_whose_loop_is_blocked_is_killed_and_its_episode_lost_after_a_retry(agents, new_job):
    events = []
    stuck = new_job("stuck", f"{agents}:Blocking")
    fine = new_job("fine", f"{agents}:Talking", parameters={"together": 1, "me": "fine"})
    bounds = {"stuck": Bounds(prepare=60.0, play=0.5), "fine": Bounds(prepare=60.0, play=60.0)}
    pool = Pool(
        workers=2,
        listener=lambda job, event: events.append((job.episode, event)),
        bounds=lambda job: bounds[job.episode],
    )
    pool.run([stuck, fine])
    ends = {episode: event.result for episode, event in events if isinstance(event, Finished)}
    assert ends["stuck"].reason is EndReason.AGENT_LOST
    assert "did not answer any more" in ends["stuck"].message
    assert ends["fine"].reason is EndReason.UNRESOLVED
    assert sum(isinstance(event, Started) for episode, event in events if episode == "stuck") == 2


def test_the_bounds_leave_time_for_everything_that_has_a_limit_of_its_own(new_job):
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
        said = [line.partition(" I am ")[2] for line in attempt.log.read_text().splitlines() if " I am " in line]
        assert said == [f"number {number}."] * 3
        assert attempt.trajectory.read_text().count("\n") == 5
        told = [event.text for event in reported[job.episode] if getattr(event, "text", "").startswith("I am")]
        assert told == [f"I am number {number}."] * 3
