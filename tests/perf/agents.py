"""Overhead of dgym in a step of an agent that asks a model, measured with a fake model and a fake environment."""

import asyncio
import random
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dgym.agents import AgentContext, Chat, Exchange, StopEpisode
from dgym.agents.model_agent import Loop, Settings
from dgym.llm import ModelCall, Reply, TokenUsage
from dgym.llm._limits import TokenCounter
from dgym.results import DirectoryStore, Record, TrajectoryHeader, read_trajectory
from dgym.wire import EndReason, Observation, Step, ToolCall
from tests.perf.measure import Figure, figure

EPISODES = 200
STEPS = 20
LONG = 110
ASSIGNED = 500
THINKING_SECONDS = (1.0, 3.0)
"""Range of a slow model's reply time in seconds."""
_SAMPLE_SECONDS = 0.005
_ATTEMPT = "local/calc/digest/1"
_TEXT = "\n".join(f"{number:4}  value_{number} = compute(value_{number - 1})" for number in range(60))
_TOOLS = [
    {"name": name, "description": f"What {name} does.", "parameters": {"type": "object", "properties": {}}}
    for name in ("pdb", "view", "rewrite", "eval", "listdir", "grep", "submit")
]


class PacedModel:
    """Answers with a call of pdb, at once or after a random time in the range ``thinking``."""

    name = "instant"
    context_limit: int | None = 128_000
    reply_limit: int | None = None
    tool_calling = "native"
    interactive = False

    def __init__(self, thinking: tuple[float, float] = (0.0, 0.0)) -> None:
        self._counter = TokenCounter()
        self._thinking = thinking
        self._random = random.Random(0)

    async def complete(self, messages: Any, tools: Any, **_: Any) -> Reply:
        await asyncio.sleep(self._random.uniform(*self._thinking))
        call = ModelCall(id=f"call-{len(messages)}", tool="pdb", arguments={"command": "p value"})
        return Reply(text="I look at the value.", calls=(call,), usage=TokenUsage(input_tokens=9_000, output_tokens=20))

    def count_tokens(self, messages: Any, tools: Any = ()) -> int:
        return self._counter.count(messages, tools)

    def release(self, session: str) -> None:
        pass

    async def close(self) -> None:
        pass


class InstantEnv:
    """Answers every call at once with two kilobytes."""

    def __init__(self, steps: int, observer: Callable[[Step], None]) -> None:
        self._observer = observer
        self._steps: list[Step] = []
        self._limit = steps
        self._info = {
            "instructions": {"task": "Find the bug.", **{tool["name"]: str(tool["description"]) for tool in _TOOLS}},
            "tools": _TOOLS,
            "evaluation": _TEXT,
            "breakpoints": [],
            "focus_file": "calc.py",
            "notices": [],
        }

    async def reset(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self._steps = [Step(seq=0, call=None, observation=Observation(text=_TEXT))]
        self._observer(self._steps[0])
        return {"text": _TEXT}, self._info

    async def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        seq = len(self._steps)
        observation = Observation(text=f"{seq}\n{_TEXT}", tool="pdb")
        self._steps.append(Step(seq=seq, call=ToolCall(**action), observation=observation))
        self._observer(self._steps[-1])
        return {"text": observation.text}, 0.0, False, seq >= self._limit, self._info

    async def peek(self, action: Any) -> dict[str, Any]:
        return {"text": _TEXT, "ok": True}

    async def patch(self) -> str:
        return ""

    def trajectory(self) -> list[Step]:
        return self._steps

    async def apply_solution(self) -> Observation:
        raise StopEpisode(EndReason.CANCELLED)


def agent_figures(scratch: Path) -> list[Figure]:
    """Time per step in one and in many episodes, memory of an episode, lag of the loop, growth of a trajectory."""
    return [*_alone(scratch), *_together(scratch), *_assigned(scratch)]


def _alone(scratch: Path) -> list[Figure]:
    durations = []
    for number in range(12):
        started = time.perf_counter()
        asyncio.run(_play(scratch / f"alone-{number}", STEPS))
        durations.append((time.perf_counter() - started) * 1000 / STEPS)
    path = scratch / "long"
    asyncio.run(_play(path, LONG))
    written = path / _ATTEMPT / "trajectory.jsonl"
    assert len(read_trajectory(written).steps) == LONG + 1
    sizes = [len(line) for line in written.read_bytes().split(b"\n")[1:]]
    early, late = (sum(sizes[at - 2 : at + 3]) / 5 for at in (10, 100))
    return [
        figure("worker's share of a step that asks a model", durations[2:], aim=3.0),
        Figure(name="trajectory bytes at step 10", unit="bytes", median=early),
        Figure(name="trajectory bytes at step 100", unit="bytes", median=late, baseline=early, baseline_name="step 10"),
    ]


def _together(scratch: Path) -> list[Figure]:
    before = _resident_bytes()
    started = time.perf_counter()
    asyncio.run(_play_many(scratch))
    seconds = time.perf_counter() - started
    grown = max(0, _resident_bytes() - before)
    return [
        Figure(
            name=f"steps with {EPISODES} episodes in one process", unit="steps/s", median=EPISODES * STEPS / seconds
        ),
        Figure(name="memory of one of them at the peak", unit="MB", median=grown / EPISODES / 1e6),
    ]


def _assigned(scratch: Path) -> list[Figure]:
    """Many episodes with slow models, as in an agent pod with all slots in use."""
    before = _resident_bytes()
    started, used = time.perf_counter(), time.process_time()
    lags = asyncio.run(_play_assigned(scratch))
    used, seconds = time.process_time() - used, time.perf_counter() - started
    many = f"with {ASSIGNED} episodes whose models take {THINKING_SECONDS[0]:g} to {THINKING_SECONDS[1]:g} s"
    return [
        Figure(name=f"lag of the loop, 99th percentile, {many}", unit="ms", median=_percentile(lags, 99), aim=20.0),
        Figure(name=f"steps {many}", unit="steps/s", median=ASSIGNED * STEPS / seconds),
        Figure(name=f"share of a core {many}", unit="%", median=100 * used / seconds),
        Figure(name=f"memory {many}", unit="MB", median=max(0, _resident_bytes() - before) / 1e6, samples=ASSIGNED),
    ]


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


async def _play_assigned(scratch: Path) -> list[float]:
    """Lag of the event loop in milliseconds, at each sample."""
    lags: list[float] = []
    async with asyncio.TaskGroup() as group:
        sampling = group.create_task(_sample_lag(lags))
        model = PacedModel(THINKING_SECONDS)
        await asyncio.gather(*(_play(scratch / f"assigned-{number}", STEPS, model) for number in range(ASSIGNED)))
        sampling.cancel()
    return lags


async def _sample_lag(lags: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _SAMPLE_SECONDS
        await asyncio.sleep(_SAMPLE_SECONDS)
        lags.append((loop.time() - due) * 1000)


async def _play_many(scratch: Path) -> None:
    await asyncio.gather(*(_play(scratch / f"many-{number}", STEPS) for number in range(EPISODES)))


async def _play(path: Path, steps: int, model: PacedModel | None = None) -> None:
    record = Record(DirectoryStore(path, local=True), _ATTEMPT)
    record.begin(TrajectoryHeader())
    exchanges: list[Exchange] = []

    def observe(step: Step) -> None:
        record.write(step, exchanges)
        exchanges.clear()

    env = InstantEnv(steps, observe)
    chat = Chat(model or PacedModel(), session=path.name, listener=exchanges.append)
    await Loop(env, chat, AgentContext(task_name="calc", tools=("eval",), chat=chat), Settings()).run()


def _resident_bytes() -> int:
    """Peak resident memory so far. It never decreases."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
