"""A user's program with all types annotated. ``mypy --strict`` accepts it with the installed package."""

import asyncio
from pathlib import Path
from typing import assert_type

import dgym
from dgym import (
    AsyncRepoEnv,
    DebugTask,
    Episode,
    EpisodeSet,
    RepoEnv,
    SandboxPool,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    load,
)
from dgym.env import InfoDict, ObservationDict


class WordCount(Tool):
    """Count the words of a file."""

    mutates = False

    async def use(self, context: ToolContext, path: str) -> ToolResult:
        text = assert_type(await context.read_text(path), str)
        if not text:
            raise ToolError(f"`{path}` is empty.")
        return ToolResult(text=f"{len(text.split())} words", focus_file=path)


def first_task(path: Path) -> DebugTask:
    resources = assert_type(load(path), list[DebugTask | Episode | EpisodeSet | SandboxPool])
    return next(resource for resource in resources if isinstance(resource, DebugTask))


def solve(task: DebugTask) -> float:
    with RepoEnv(task, tools=["view", WordCount()], sandbox="none", max_steps=3) as env:
        observation, info = env.reset(options={"eval": True})
        assert_type(observation, ObservationDict)
        assert_type(info, InfoDict)
        assert_type(info["score"], int | None)
        print(observation["text"], [tool["name"] for tool in info["tools"]])
        answer = assert_type(env.step("view calc.py"), tuple[ObservationDict, float, bool, bool, InfoDict])
        result = env.result
        return answer[1] if result is None else assert_type(result.score, int)


async def look(task: DebugTask) -> str:
    try:
        async with AsyncRepoEnv(task, deadline_seconds=None) as env:
            await env.reset()
            return assert_type(await env.patch(), str)
    except dgym.DgymError as error:
        return str(error)


if __name__ == "__main__":
    task = first_task(Path("task.yaml"))
    print(solve(task), asyncio.run(look(task)))
