"""A model of an episode's sidecar.

It follows the protocol of the real sidecar: epochs, one execution of each step, a clock, one outcome with a signature,
and a termination message that is written before it is needed.
"""

import asyncio
import base64

from dgym.wire import EndReason
from dgym.wire.http import token_digest
from dgym.wire.outcome import MOST_POISONED, TerminationMessage, encode_termination
from dgym_operator.pod_identity import bind_token, pool_identity
from tests.simulation import reports
from tests.simulation.virtual import VirtualClock

NAMESPACE = "team"
ENDLESS_STEP = 2
WITH_THE_POD_SECONDS = 2.0
"""A sandbox that died less than this time before SIGTERM of the sidecar counts as ended with its pod."""

KNOWN_AFTER = 2
"""After this number of requests the sidecar always returns the cause of the sandbox's end."""


class SandboxDied(Exception):
    """The sandbox has ended. The sidecar returns this error."""


class Superseded(Exception):
    """The sidecar has received a higher epoch."""


class Sidecar:
    """The sidecar of one attempt, with its recorded steps, clock and outcome.

    The operator binds the sidecar of a pooled pod to an attempt.
    """

    def __init__(self, world, pod, uid="", attempt=0):
        self.world = world
        self.pod = pod
        self.uid = uid
        self.attempt = attempt
        self.epoch = 0
        self.steps = 0
        self.result = None
        self.hung_until = 0.0
        """Until this time the sidecar does not answer."""
        self.ended = asyncio.Event()
        self.ending = None
        """State of the ended container. None while it runs."""
        self.running = None
        """Number of the step that is being executed."""
        self.poisoned = None
        """Number of the step during which the sandbox died."""
        self.sandbox = reports.RUNNING
        """State of the sandbox's container."""
        self._alive = True
        self._prepared = False
        self._cancelled = False
        self._called = 0.0
        self._died = 0.0
        self._shutdown_requested = False
        self._asked = 0
        self._elapsed = 0.0
        self._since = None
        self._remaining = None

    @property
    def reachable(self):
        """True if the sidecar answers."""
        return self._alive and _time() >= self.hung_until

    @property
    def is_bound(self):
        """True if the sidecar serves an attempt."""
        return self.attempt > 0

    # Calls of agents and drivers

    def prepare(self, epoch, past, poisoned, *, remaining, driver_idle=None):
        """Replay ``past`` steps unless that was done. Return the number of the next step, and the outcome or None.

        With two poisoned steps the sidecar computes the outcome after the replay.
        """
        self._call(epoch)
        if not self._prepared:
            self._check_sandbox()
            self._prepared, self.steps, self._remaining = True, past, remaining
            if driver_idle is not None:
                self.world.spawn(self._watch_driver(driver_idle))
            else:
                self._run()
            if poisoned >= MOST_POISONED:
                self.close(epoch, EndReason.SANDBOX_KILLED)
        return self.running or self.steps + 1, self.result

    def step(self, epoch, number):
        """Start a step unless it was started before."""
        self._call(epoch)
        self._run()
        if number > self.steps and self.result is None:
            self._check_sandbox()
            self.steps = self.running = number
            self.world.executed[self.uid, self.attempt, number] += 1
            if number in self.world.deadly.get(self.uid, ()):
                self.world.spawn(self._die_under(number))
            stuck = self.world.endless.get(self.uid, False)
            if number == 1 and self._remaining is not None and not stuck:
                self.world.spawn(self._watch_deadline())

    async def _watch_deadline(self):
        """End the episode when its deadline has passed."""
        while self._alive and "running" in self.sandbox and self.result is None:
            left = self._remaining - self.elapsed
            if left <= 0.0:
                self.close(None, EndReason.DEADLINE_EXCEEDED)
            await asyncio.sleep(max(left, 1.0))

    async def _die_under(self, number):
        await asyncio.sleep(self.world.random.uniform(0.0, 0.04))
        if self.running == number and self._alive:
            self.kill_sandbox(self.world.random.choice(("OOMKilled", "Error")))

    async def _watch_driver(self, seconds):
        """End the episode of a driver that has crashed."""
        self._called = _time()
        while (left := self._called + seconds - _time()) > 0:
            await asyncio.sleep(left)
        if self.result is None and self._alive and "running" in self.sandbox:
            self.close(None, EndReason.DRIVER_IDLE)

    def observe(self, epoch):
        """Return whether the step has ended, and the outcome or None."""
        self._call(epoch)
        self._run()
        if self.result is None:
            self._check_sandbox()
            if self.running == ENDLESS_STEP and self.uid in self.world.endless:
                return False, None
        self.running = None
        return True, self.result

    def peek(self, epoch):
        """Return the outcome or None. Used by an agent pod that does not drive the episode."""
        self._fence(epoch)
        if self.result is None:
            self._check_sandbox()
        return self.result

    def close(self, epoch, reason=EndReason.RESOLVED):
        """Return the outcome. The first call computes it."""
        self._fence(epoch)
        if self.result is None:
            self._check_sandbox()
            self.pause()
            if reason is EndReason.RESOLVED and self.uid in self.world.unsolved:
                reason = EndReason.UNRESOLVED
            self.result = self._signed(reason)
            self.world.outcomes[self.uid].append((self.attempt, reason))
        return self.result

    def release(self, epoch):
        """End the sidecar after the outcome was stored. The outcome is the termination message."""
        self._fence(epoch)
        assert self.result is not None
        self._end(0)

    def _check_sandbox(self):
        if "terminated" in self.sandbox:
            raise SandboxDied

    def _call(self, epoch):
        self._fence(epoch)
        self._called = _time()

    def _fence(self, epoch):
        """Refuse a call with a superseded epoch. An external driver has no epoch."""
        if epoch is None:
            return
        if epoch < self.epoch:
            raise Superseded
        self.epoch = epoch

    # Calls of the operator

    def bind(self, wanted):
        """Bind the sidecar to an attempt. Return the status of the response."""
        attempt = wanted["episodeUid"], wanted["attempt"]
        if self.is_bound and (self.uid, self.attempt) != attempt:
            self.world.problems.append(f"the sidecar of {self.pod} was bound to {self.uid}, and is to be to {attempt}")
            return 409
        self.uid, self.attempt = attempt
        return 200

    def terminated(self):
        """Return the cause of the end of the sandbox's container. The first responses may have ``known`` false."""
        known = self.result is not None or self._asked >= KNOWN_AFTER or self.world.random.random() < 0.8
        self._asked += 1
        poisoned = self.poisoned if known else None
        return {"expected": self.result is not None, "poisonedStep": poisoned, "known": known}

    def state(self):
        """Return the clocks."""
        left = None if self._remaining is None else max(0.0, self._remaining - self.elapsed)
        over = self.result is not None
        return {
            "elapsedSeconds": self.elapsed, "remainingSeconds": left, "running": self._since is not None,
            "steps": self.steps, "ending": over or self._cancelled, "ended": over,
        }  # fmt: skip

    def cancel(self):
        """Cancel the episode and score it. Return True when the outcome exists."""
        if not self._cancelled and self.result is None and "running" in self.sandbox:
            self._cancelled = True
            self.world.spawn(self._score_cancelled())
        return self.result is not None or "terminated" in self.sandbox

    async def _score_cancelled(self):
        await asyncio.sleep(self.world.random.choice((0.0, 1.0, 20.0)))
        if self._alive and self.result is None and "running" in self.sandbox:
            self.close(None, EndReason.CANCELLED)

    def pause(self):
        """Stop the deadline clock until the next call of a driver."""
        self._elapsed, self._since = self.elapsed, None

    @property
    def elapsed(self):
        """Seconds that the deadline clock has run."""
        return self._elapsed + (_time() - self._since if self._since is not None else 0.0)

    def _run(self):
        if self._since is None and self.result is None:
            self._since = _time()

    # End of the containers

    def kill_sandbox(self, reason, *, exit_code=137):
        """End the sandbox's container as if the sandbox ended by itself."""
        if "running" in self.sandbox and self.result is None:
            self._record_poisoned()
            self._lose_sandbox({"exitCode": exit_code, "reason": reason})
            if self.is_bound:
                self.world.sandbox_died[self.uid, self.attempt] = _time()
            self.world.kubelet.report_running(self)

    def _lose_sandbox(self, state):
        if "running" in self.sandbox:
            self.sandbox = {"terminated": {**state, "finishedAt": now_text()}}
            self.poisoned, self.running, self._died = self.running, None, _time()

    def _record_poisoned(self):
        if self.running is not None and self.result is None:
            self.world.poisoned.add((self.uid, self.attempt, self.running))

    def terminate_sandbox(self):
        """Send SIGTERM to the sandbox because its pod is deleted."""
        self._lose_sandbox({"exitCode": 0, "reason": "Completed"})

    def terminate(self):
        """Send SIGTERM to the sidecar. A sandbox that died shortly before counts as ended with its pod."""
        if self._alive and not self._shutdown_requested:
            self._shutdown_requested = True
            if self.poisoned is not None and _time() - self._died < WITH_THE_POD_SECONDS:
                self.running, self.poisoned = self.poisoned, None
        self._end(0)

    def kill(self):
        """Send SIGKILL to the sidecar."""
        self._record_poisoned()
        self._end(137, reason="Error")

    def die_with_its_node(self, *, observed):
        """End all containers because the node reboots.

        With ``observed`` false, the kubelet reports the state ``Unknown``.
        """
        state = {"exitCode": 137, "reason": "Error"} if observed else {"exitCode": 255, "reason": "Unknown"}
        if "running" in self.sandbox:
            self.sandbox = {"terminated": {**state, "finishedAt": now_text()}}
        self._end(exit_code=state["exitCode"], reason=state["reason"])

    def vanish(self):
        """Lose the node. The sidecar never answers again."""
        self._alive = False

    def _end(self, exit_code, reason="Completed"):
        if self.ending is None:
            message, finished = self._termination_message(), now_text()
            self.ending = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": finished}
            self.pause()
            if self.is_bound:
                self.world.clocks[self.uid, self.attempt] = self.elapsed
        self._alive = False
        self.ended.set()

    def _termination_message(self):
        """Return the termination message: the outcome, or the progress of the attempt."""
        if not self.is_bound:
            return ""
        words = TerminationMessage(
            episode_uid=self.uid, attempt=self.attempt, outcome=self.result, elapsed_seconds=float(self.elapsed),
            step_in_flight=self.running if self.result is None else None, poisoned_step=self.poisoned,
            shutdown_requested=self._shutdown_requested,
        )  # fmt: skip
        return encode_termination(words).decode()

    @property
    def key(self):
        """Digest of the operator's token, which is in the pod's specification."""
        return reports.operate_key(self._secret, self.uid, self.attempt)

    @property
    def bind_key(self):
        """Digest of the token that binds the sidecar."""
        return token_digest(bind_token(self._secret, pool_identity(NAMESPACE, self.pod)))

    @property
    def _secret(self):
        return base64.b64decode(self.world.api.get("secrets", NAMESPACE, "dgym-key")["data"]["key"])

    def _signed(self, reason):
        score = int(reason is EndReason.RESOLVED)
        return reports.signed_outcome(
            self._secret, self.uid, self.attempt, reason, score=score, max_score=1, steps=self.steps
        )


def now_text():
    """Return the present time in the format of Kubernetes objects."""
    return reports.time_text(VirtualClock().now())


def _time():
    return asyncio.get_running_loop().time()
