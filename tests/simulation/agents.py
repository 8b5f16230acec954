"""Models of agent pods and of external drivers.

An agent pod stores an outcome before it releases the sandbox pod. It loses its memory when its process ends.
"""

import asyncio
import base64
import contextlib

from dgym.api import EPISODE_LABEL
from dgym.episodes.agent_pod._assignments import Breakers
from dgym.episodes.agent_pod._session import make_past
from dgym.errors import ModelUnavailable, SetupFailed
from dgym.results import TimedStep
from dgym.wire import AttemptOutcome, EndReason, Observation, ToolCall
from dgym.wire.assignments import AssignmentMode, AssignmentState
from tests.simulation import reports
from tests.simulation.sidecar import NAMESPACE, SandboxDied, Superseded
from tests.simulation.store import GivenUp
from tests.simulation.virtual import VirtualClock

MODEL = "model"
AWAY = "the model is away"
STEPS = 4
GIVE_UP_SECONDS = 120.0
"""An agent pod stops trying to reach a sidecar after this time."""
_RECORDED = tuple(
    TimedStep(
        seq=seq, call=ToolCall(tool="bash") if seq else None, observation=Observation(text="done"), elapsed_seconds=0.0
    )
    for seq in range(STEPS + 1)
)
_OVER = (AssignmentState.FINISHED, AssignmentState.FAILED)
_STORING = (AssignmentState.STORING, AssignmentState.STORE_UNAVAILABLE)


class Gone(Exception):
    """A sidecar does not answer."""


async def reach(world, url, ask, *, reachable=lambda: True, ended=False):
    """Call the sidecar until it answers. With ``ended``, return None if it does not answer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + GIVE_UP_SECONDS
    while True:
        await asyncio.sleep(world.random.expovariate(1 / 0.05))
        sidecar = world.peers.get(url)
        if sidecar is not None and sidecar.reachable and reachable():
            return ask(sidecar)
        if ended:
            return None
        if loop.time() > deadline:
            raise Gone
        await asyncio.sleep(world.random.uniform(0.5, 5.0))


class AgentPod:
    """An agent pod. Its process runs the assigned episodes."""

    def __init__(self, world, name, slots):
        self.world = world
        self.name = name
        self.slots = slots
        self.cut_until = 0.0
        """Until this time the operator and the sidecars cannot be reached. The results store can."""
        self.longest_cut = 0.0
        self.without_store_until = 0.0
        self.incarnation = 0
        self._breakers = Breakers(asyncio.get_running_loop().time, self.world.random.random)
        self.alive = True
        self.draining = False
        self._assignments = reports.Assignments()
        self._held, self._states = self._assignments.held, self._assignments.states
        self._tasks = {}
        self._storing = {}
        self._running = {}
        """Time at which the deadline of each episode began to run, by UID of the episode."""
        pod = world.api.create(
            "pods", NAMESPACE, {"metadata": {"name": name, "labels": dict(reports.AGENT_LABELS)}, "spec": {}}
        )
        self.uid = pod["metadata"]["uid"]
        self.address = world.listen(self)
        status = reports.running(self.address, VirtualClock().now(), ("agent",))
        world.api.patch("pods", NAMESPACE, name, {"status": status}, status=True)

    def cut(self, seconds):
        """Cut the agent pod off for this time."""
        self.longest_cut = max(self.longest_cut, seconds)
        self.cut_until = asyncio.get_running_loop().time() + seconds

    @property
    def held(self):
        """UIDs of the assigned episodes."""
        return set(self._held)

    @property
    def idle(self):
        """True if no assignment runs."""
        return not self._storing and all(state.state in _OVER for state in self._states.values())

    def is_storing(self, uid, attempt):
        """Return True if the agent pod has the attempt's outcome and the results store does not have it yet."""
        state = self._states.get(uid)
        return state is not None and state.attempt == attempt and state.state in _STORING

    def has_failed(self, uid):
        """Return True if the agent pod reports that it cannot continue the episode."""
        return uid in self._states and self._states[uid].state is AssignmentState.FAILED

    @property
    def storing_pod(self):
        """Sandbox pod of an episode whose outcome will be stored next, or None."""
        return next(
            (
                each.pod_name
                for uid, each in self._held.items()
                if self.alive and each.mode is AssignmentMode.RUN and self.is_storing(uid, each.attempt)
            ),
            None,
        )

    def restart(self):
        """End the process and start it again without memory."""
        for task in (*self._tasks.values(), *self._storing.values()):
            task.cancel()
        for memory in (self._assignments, self._tasks, self._storing, self._running):
            memory.clear()
        self.incarnation += 1
        self._breakers = Breakers(asyncio.get_running_loop().time, self.world.random.random)

    def delete(self):
        """Delete the pod and end its process."""
        if self.alive:
            self.alive = False
            self.restart()
            self.world.api.delete("pods", NAMESPACE, self.name, grace=False)

    def report(self):
        """Return the response of ``GET /v1/assignments``."""
        return self._assignments.report(
            self.slots, incarnation=str(self.incarnation), draining=self.draining, outages=self._breakers.report(),
            store_problem="" if self._store_answers else "away",
        )  # fmt: skip

    def assign(self, assignment):
        """Handle ``PUT``. A newer assignment supersedes the present assignment.

        Return True if the assignment is accepted.
        """
        uid, known = assignment.episode_uid, self._held.get(assignment.episode_uid)
        if not self._assignments.is_newer(assignment):
            return (known.attempt, known.epoch) == (assignment.attempt, assignment.epoch)
        runs = [each for each in self._held.values() if self._takes_slot(each) and each is not known]
        if self.draining or (assignment.mode is AssignmentMode.RUN and len(runs) >= self.slots):
            return False
        self.world.record_assignment(assignment, self.uid)
        storing = known is None or self.is_storing(uid, known.attempt)
        before = self._tasks.pop(uid, None) or self._storing.get(uid)
        if before is not None and not (storing and assignment.mode is AssignmentMode.RECOVER):
            before.cancel()
        self._held[uid] = assignment
        self._running.pop(uid, None)
        self._set(assignment, AssignmentState.PREPARING)
        self._tasks[uid] = self.world.spawn(self._run(assignment, before))
        return True

    def withdraw(self, uid):
        """Handle ``DELETE``. A result that is being stored is still stored."""
        assignment, task = self._held.get(uid), self._tasks.pop(uid, None)
        if task is not None and assignment is not None and self.is_storing(uid, assignment.attempt):
            self._storing[uid] = task
            task.add_done_callback(lambda _: self._storing.pop(uid, None))
        elif task is not None:
            task.cancel()
        self._assignments.drop(uid)

    def _takes_slot(self, assignment):
        state = self._states.get(assignment.episode_uid)
        return assignment.mode is AssignmentMode.RUN and (state is None or state.state not in _OVER)

    def _set(self, assignment, state, **more):
        begun = self._running.get(assignment.episode_uid)
        seconds = 0 if begun is None else int(asyncio.get_running_loop().time() - begun)
        self._assignments.set(assignment, state, active_seconds=seconds, **more)

    async def _run(self, assignment, before):
        if before is not None:
            await asyncio.wait((before,))
        key = assignment.episode_uid, assignment.attempt
        try:
            await self._reach_store()
            if assignment.mode is AssignmentMode.RECOVER:
                found = self.world.give_up(self, key)
                if found is None:
                    self._failed(assignment, "the store does not contain a result of this attempt")
                    return
            elif (found := self.world.store.get(key)) is not None:
                await self._release(assignment)
            else:
                found = await self._play(assignment)
            self._set(assignment, AssignmentState.FINISHED, outcome=found, steps=found.steps)
        except ModelUnavailable as error:
            self.world.refused_by_breakers += str(error) != AWAY
            failed = AttemptOutcome(resolved=False, reason=EndReason.MODEL_ERROR, message=str(error))
            self._set(assignment, AssignmentState.FAILED, outcome=failed, outage=True)
        except Gone:
            self._failed(assignment, "the sidecar does not answer")
        except SandboxDied:
            self._failed(assignment, "the sandbox is gone")
        except SetupFailed:
            self._failed(assignment, "the repository cannot be set up", EndReason.SETUP_FAILED)
        except (Superseded, GivenUp):
            if self._held.get(assignment.episode_uid) is assignment:
                self._assignments.drop(assignment.episode_uid)

    async def _play(self, assignment):
        drives = assignment.mode is AssignmentMode.RUN
        if drives:
            with self._breakers.guard(MODEL, assignment):
                result = await self._drive(assignment)
        else:
            result = await self._serve_driver(assignment)
        reached = result.steps
        self._set(assignment, AssignmentState.STORING, steps=reached)
        await self._reach_store(
            lambda: self._set(assignment, AssignmentState.STORE_UNAVAILABLE, message="away", steps=reached)
        )
        self.world.store.create((assignment.episode_uid, assignment.attempt), result)
        self.world.stored(self, assignment)
        await self._release(assignment)
        return result

    async def _drive(self, assignment):
        epoch, key = assignment.epoch, (assignment.episode_uid, assignment.attempt)
        past = await self._past(assignment)
        poisoned = len(assignment.poisoned_steps)
        if past and self._store_answers:
            self.world.store.record(key, past)
        remaining = assignment.remaining_seconds
        begun, result = await self._call(
            assignment, lambda sidecar: sidecar.prepare(epoch, past, poisoned, remaining=remaining)
        )
        if assignment.episode_uid in self.world.broken:
            raise SetupFailed("the repository cannot be set up")
        self._running[assignment.episode_uid] = asyncio.get_running_loop().time()
        for number in range(begun, STEPS + 1):
            if result is not None:
                break
            self._set(assignment, AssignmentState.RUNNING, steps=number - 1)
            await self._ask_model()
            await self._call(assignment, lambda sidecar, number=number: sidecar.step(epoch, number))
            ended = False
            while not ended:
                await asyncio.sleep(self.world.random.uniform(0.05, 4.0))
                ended, result = await self._call(assignment, lambda sidecar: sidecar.observe(epoch))
            self._set(assignment, AssignmentState.RUNNING, steps=number)
            if self._store_answers:
                self.world.store.record(key, number)
            await asyncio.sleep(self.world.random.uniform(0.5, 6.0))
        self._set(assignment, AssignmentState.CLOSING, steps=STEPS)
        result = result or await self._call(assignment, lambda sidecar: sidecar.close(epoch))
        await asyncio.sleep(self.world.random.uniform(0.05, 2.0))
        return result

    async def _ask_model(self):
        if asyncio.get_running_loop().time() < self.world.model_away_until:
            await asyncio.sleep(self.world.random.uniform(20.0, 60.0))
            raise ModelUnavailable(AWAY)
        self._breakers.answered(MODEL)

    async def _past(self, assignment):
        """Return the number of steps to replay or to leave out."""
        if not assignment.replay_attempt:
            return 0
        await self._reach_store()
        steps = self.world.store.steps.get((assignment.episode_uid, assignment.replay_attempt), 0)
        past = make_past(_RECORDED[: steps + 1] if steps else (), None, assignment.poisoned_steps)
        return len(past.steps) - 1 if past is not None else 0

    async def _serve_driver(self, assignment):
        epoch, idle = assignment.epoch, assignment.driver_idle_seconds
        _, result = await self._call(
            assignment,
            lambda sidecar: sidecar.prepare(epoch, 0, 0, remaining=assignment.remaining_seconds, driver_idle=idle),
        )
        self._set(assignment, AssignmentState.RUNNING)
        while result is None:
            await asyncio.sleep(self.world.random.uniform(1.0, 4.0))
            result = await self._call(assignment, lambda sidecar: sidecar.peek(epoch))
        return result

    async def _release(self, assignment):
        await self._call(assignment, lambda sidecar: sidecar.release(assignment.epoch), ended=True)

    @property
    def _store_answers(self):
        return self.world.store.answers and asyncio.get_running_loop().time() >= self.without_store_until

    async def _reach_store(self, unavailable=lambda: None):
        await asyncio.sleep(self.world.random.uniform(0.05, 2.0))
        while not self._store_answers:
            unavailable()
            await asyncio.sleep(self.world.random.uniform(5.0, 15.0))

    def _failed(self, assignment, message, reason=EndReason.SANDBOX_LOST):
        outcome = AttemptOutcome(resolved=False, reason=reason, message=message)
        self._set(assignment, AssignmentState.FAILED, outcome=outcome)

    async def _call(self, assignment, ask, *, ended=False):
        loop = asyncio.get_running_loop()

        def call(sidecar):
            if (sidecar.uid, sidecar.attempt) != (assignment.episode_uid, assignment.attempt):
                self.world.problems.append(f"{self.name} calls the sidecar of {sidecar.uid} for {assignment.episode}")
                raise Gone
            return ask(sidecar)

        return await reach(
            self.world, assignment.sidecar_url, call, reachable=lambda: loop.time() >= self.cut_until, ended=ended
        )


class Driver:
    """The external driver of an episode without an agent. It reads the Secret and drives the sidecar. It may crash."""

    def __init__(self, world, name):
        self.crashed = False
        self._world = world
        self._name = name

    async def run(self):
        """Drive each attempt to its end."""
        url = ""
        while True:
            await asyncio.sleep(self._world.random.uniform(0.5, 3.0))
            found = self._url()
            if found not in ("", url):
                url = found
                with contextlib.suppress(Gone, SandboxDied):
                    await self._drive(url)

    async def _drive(self, url):
        random = self._world.random
        for number in range(1, STEPS + 1):
            if self.crashed:
                return
            await reach(self._world, url, lambda sidecar, number=number: sidecar.step(None, number))
            await asyncio.sleep(random.uniform(0.05, 4.0))
            _, result = await reach(self._world, url, lambda sidecar: sidecar.observe(None))
            if result is not None:
                return
            await asyncio.sleep(random.uniform(0.5, 6.0))
        if not self.crashed:
            await reach(self._world, url, lambda sidecar: sidecar.close(None))

    def _url(self):
        secrets = [
            each
            for each in self._world.api.items("secrets")
            if each["metadata"].get("labels", {}).get(EPISODE_LABEL) == self._name
        ]
        return base64.b64decode(secrets[-1]["data"]["url"]).decode() if secrets else ""
