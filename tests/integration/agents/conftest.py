"""Helpers that run episodes with a real session and a scripted model behind real HTTP."""

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dgym.agents import Exchange, sent_requests
from dgym.api import AgentSpec, DebugTask, EpisodeSpec
from dgym.env import Opening
from dgym.episodes import Event, Job, Narrated, RunOptions, run_episode
from dgym.llm import load_models
from dgym.llm._completions import render_messages
from dgym.results import StoredResult
from tests.fakes.openai_responses import check_request as check_responses_request
from tests.fakes.openai_schema import check_request
from tests.fakes.openai_server import FakeOpenAI
from tests.support.bare_python import bare_python

CALC = "def add(a, b):\n    total = a\n    total -= b\n    return total\n"
CHECK = "from calc import add\nassert add(2, 3) == 5, add(2, 3)\nprint('it adds')\n"


def make_task(**spec: Any) -> DebugTask:
    files = [{"path": "calc.py", "content": CALC}, {"path": "check.py", "content": CHECK}]
    fields = {
        "instructions": "add() is wrong.",
        "entrypoint": "python check.py",
        "source": {"files": files},
        "readOnlyPatterns": ["check.py"],
    }
    return msgspec.convert({"metadata": {"name": "calc"}, "spec": {**fields, **spec}}, DebugTask)


@dataclass
class Played:
    """The result, the folder, the requests and the events of one episode."""

    result: StoredResult
    folder: Path
    server: FakeOpenAI
    events: list[Event] = field(default_factory=list)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "trajectory.jsonl").read_bytes().splitlines()]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Every step except the reset."""
        return self.lines[2:]

    @property
    def exchanges(self) -> list[Exchange]:
        """All exchanges with the model that the trajectory records."""
        return msgspec.convert([each for step in self.steps for each in step.get("exchanges", ())], list[Exchange])

    @property
    def narrated(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Narrated))

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [received.body for received in self.server.received]


async def play_one(
    directory: Path, server, agent="debug_agent", *, task=None, settings=None, spec=None, name="one", **fields
) -> Played:
    """Run one episode of an agent with the model of ``server``, and check every request that it sends."""
    async with server:
        config = directory / f"{name}.json"
        model = {"model": "scripted", "endpoint": server.url, "api_key": "k", **(settings or {})}
        config.write_text(json.dumps({"m": model}))
        job = Job(
            namespace="local",
            episode=name,
            sample=0,
            task=task or make_task(),
            task_digest="t",
            agent=msgspec.convert({"name": agent, "model": "m", **fields}, AgentSpec),
            spec=msgspec.convert(spec or {}, EpisodeSpec),
            digest=f"digest-{name}",
            manifest="x.yaml",
            base=str(directory),
            options=RunOptions(
                opening=Opening(sandbox="none", python=bare_python()),
                results=str(directory / "results"),
                llm_config=str(config),
                verbose=True,
            ),
        )
        events: list[Event] = []
        result = await run_episode(job, events.append)
        played = Played(result, job.folder.attempts()[-1].path, server, events)
        for body in played.requests:
            if "input" in body:
                check_responses_request(body)
            else:
                check_request(body)
        if (settings or {}).get("api") != "responses":
            rendered = as_sent(played.exchanges, config)
            received = iter(json.dumps(body["messages"]) for body in played.requests)
            assert all(each in received for each in rendered), "the trajectory has a request that was not sent"
        return played


@pytest.fixture
def play(tmp_path):
    """``play_one`` with the temporary directory of the test."""
    return partial(play_one, tmp_path)


def as_sent(exchanges: list[Exchange], config: Path) -> list[str]:
    """Return the messages of each recorded request, in the form that the model's server receives."""
    requests = [request for request in sent_requests(exchanges) if request is not None]
    assert len(requests) == len(exchanges)
    settings = load_models(config).settings("m")
    return [json.dumps(render_messages(settings, request.messages, ())) for request in requests]


@pytest.fixture
def new_task():
    return make_task
