"""Policies of the scripted models. The name of the model in the request selects the policy.

``debugger`` solves a task of mini_nightmare with pdb, following the walkthrough that is shipped with the task.
``rewriter`` adds comments to the faulty file and gives up. ``erratic-N`` makes random calls and mistakes with the
seed N. ``scripted`` makes the calls that the task's instructions list. A policy derives the task and its progress from
the messages, so that it continues an interrupted episode.
"""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.openai_answers import Answer, Call

BENCHMARK = Path(str(files("dgym.benchmarks.mini_nightmare")))
ATTEMPTS = 6

_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_TEXT_CALL = re.compile(r"<call>(\{.*?\})</call>", re.DOTALL)


@dataclass(frozen=True)
class Task:
    """A task and the calls that solve it."""

    name: str
    instructions: str
    walkthrough: tuple[Call, ...]

    @property
    def guilty_file(self) -> str:
        for call in self.walkthrough:
            if call.tool == "rewrite" and isinstance(call.arguments, dict):
                return str(call.arguments["path"])
        raise LookupError(f"the walkthrough of {self.name} rewrites nothing")


@dataclass(frozen=True)
class Request:
    """Input of a policy. ``answered`` is the number of answers that the session has received."""

    body: dict[str, Any]
    answered: int

    @property
    def tools(self) -> set[str]:
        return {tool["function"]["name"] for tool in self.body.get("tools") or []}

    def offers(self, tool: str) -> bool:
        """True if the tool may be called. Without native tools, the messages describe the tools."""
        return tool in self.tools if self.tools else f"\n- {tool} " in self.text or f"\n- {tool}:" in self.text

    @property
    def text(self) -> str:
        return "\n".join(text_of(message.get("content")) for message in self.body["messages"])

    @property
    def calls(self) -> list[Call]:
        """All calls in the messages, oldest first."""
        found: list[Call] = []
        for message in self.body["messages"]:
            if message["role"] != "assistant":
                continue
            native = (call["function"] for call in message.get("tool_calls") or [])
            found += [_call(function["name"], function["arguments"]) for function in native]
            for text in _TEXT_CALL.findall(str(message.get("content") or "")):
                decoded = json.loads(text)
                found.append(Call(decoded["tool"], decoded["arguments"]))
        return found


def text_of(content: Any) -> str:
    """The text of a message, whose content is a string or a list of parts."""
    return "".join(part["text"] for part in content) if isinstance(content, list) else str(content or "")


Policy = Callable[[Request], Answer]


def find_policy(model: str) -> Policy | None:
    """The policy for a model's name. It also answers dgym's check of a model, whose only tool is ``ready``."""
    policy = _policy(model)
    return None if policy is None else lambda request: READY if request.tools == {"ready"} else policy(request)


def _policy(model: str) -> Policy | None:
    if model in _POLICIES:
        return _POLICIES[model]
    name, _, seed = model.partition("-")
    if name == "erratic" and seed.isdigit():
        return lambda request: erratic(request, int(seed))
    return None


def debugger(request: Request) -> Answer:
    """Make the calls of the walkthrough in order, without calls of tools that are not offered."""
    task = task_of(request.text)
    if task is None:
        return Answer(text="I do not know this task.")
    actions = [call for call in task.walkthrough if request.offers(call.tool)]
    return play(actions, request, "the cause lies further up")


def rewriter(request: Request) -> Answer:
    """Add comments at the top of the faulty file, run the tests after each, and submit."""
    task = task_of(request.text)
    if task is None:
        return Answer(text="I do not know this task.")
    actions = [Call("view", {"path": task.guilty_file})]
    for attempt in range(1, ATTEMPTS + 1):
        comment = {"path": task.guilty_file, "start": 1, "end": 0, "new_code": f"# attempt {attempt}\n"}
        actions += [Call("rewrite", comment), Call("eval")]
    actions.append(Call("submit", {"message": "I could not find it."}))
    return play([call for call in actions if request.offers(call.tool)], request, "this may do it")


def scripted(request: Request) -> Answer:
    """Make the calls between ``<script>`` and ``</script>``, in JSON. ``think`` is a delay of the answer in seconds."""
    found = _SCRIPT.search(request.text)
    if found is None:
        return Answer(text="I see no script.")
    script = json.loads(found[1])
    actions = [Call(one["tool"], one["arguments"]) for one in script]
    position = position_in(actions, request.calls, request.answered)
    seconds = script[position].get("think", 0.0) if position < len(script) else 0.0
    return replace(play(actions, request, "it is in the script"), seconds=seconds)


def play(actions: Sequence[Call], request: Request, hope: str) -> Answer:
    """The action that follows the last action in the messages."""
    position = position_in(actions, request.calls, request.answered)
    if position >= len(actions):
        return Answer(text="I have nothing more to try.", reasoning="Everything is done.")
    call = actions[position]
    return Answer(
        text=f"I call {call.tool} next.",
        reasoning=f"Step {position + 1} of {len(actions)}: {call.tool} tells more; {hope}.",
        calls=(call,),
    )


def position_in(actions: Sequence[Call], history: Sequence[Call], hint: int) -> int:
    """Number of finished actions: the position that best matches the end of ``history``, nearest to ``hint``."""
    known = [call for call in history if call in actions]
    if not known:
        return hint if history else 0

    def fit(end: int) -> int:
        length = 0
        while length < min(end, len(known)) and known[-1 - length] == actions[end - 1 - length]:
            length += 1
        return length

    return max(range(1, len(actions) + 1), key=lambda end: (fit(end), -abs(end - hint)))


def erratic(request: Request, seed: int) -> Answer:
    """Make a random call or mistake. The choice depends only on the seeds and the number of answers."""
    chance = random.Random(f"{seed}/{request.body.get('seed')}/{request.answered}")
    choice = chance.choice(_MISTAKES) if chance.random() < 0.5 else None
    if choice is not None:
        return choice
    calls = [Call("listdir"), Call("eval"), Call("view", {"path": "no/such/file.py"}), Call("pdb", {"command": "w"})]
    task = task_of(request.text)
    if task is not None:
        calls += [Call("view", {"path": task.guilty_file}), *task.walkthrough[:-1]]
    offered = [call for call in calls if request.offers(call.tool)]
    return Answer(text="Perhaps this.", calls=(chance.choice(offered),)) if offered else NO_CALL


_POLICIES: dict[str, Policy] = {"debugger": debugger, "rewriter": rewriter, "scripted": scripted}

READY = Answer(calls=(Call("ready"),))
MALFORMED = Answer(text="One moment.", calls=(Call("view", '{"path": "a.py",, }'),), mistake=True)
TRUNCATED = Answer(
    calls=(Call("rewrite", '{"path": "a.py", "new_code": "def f('),), finish_reason="length", mistake=True
)
NO_CALL = Answer(text="I think the bug is in the loop.", mistake=True)
TWO_CALLS = Answer(calls=(Call("listdir"), Call("eval")), mistake=True)
UNKNOWN_TOOL = Answer(calls=(Call("search_web", {"query": "bug"}),), mistake=True)
WRONG_ARGUMENTS = Answer(calls=(Call("view", {"file": 3}),), mistake=True)
REFUSAL = Answer(refusal="I cannot help with that.", mistake=True)

_MISTAKES = (MALFORMED, TRUNCATED, NO_CALL, TWO_CALLS, UNKNOWN_TOOL, WRONG_ARGUMENTS, REFUSAL)


def task_of(text: str) -> Task | None:
    """The task whose instructions are in the messages."""
    words = " ".join(text.split())
    return next((task for task in all_tasks() if task.instructions in words), None)


@cache
def all_tasks() -> tuple[Task, ...]:
    return tuple(_read_task(file) for file in sorted(BENCHMARK.glob("*/task.yaml")))


def _read_task(file: Path) -> Task:
    manifest = yaml.safe_load(file.read_text(encoding="utf-8"))
    lines = (file.parent / "walkthrough.jsonl").read_text(encoding="utf-8").splitlines()
    decoded = [json.loads(line) for line in lines if line.strip()]
    return Task(
        name=manifest["metadata"]["name"],
        instructions=" ".join(manifest["spec"]["instructions"].split()),
        walkthrough=tuple(Call(one["tool"], one.get("arguments") or {}) for one in decoded),
    )


def _call(tool: str, arguments: str) -> Call:
    try:
        decoded = json.loads(arguments)
    except ValueError:
        return Call(tool, arguments)
    return Call(tool, decoded)
