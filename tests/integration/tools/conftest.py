"""Fixtures: a workspace in a real sandbox, and tools that use it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from dgym.sandbox import Sandbox, SandboxSpec
from dgym.sandbox.local import LocalProvider, bubblewrap_works
from dgym.session._execution import Execution, execute, read_action
from dgym.tools import Tool, ToolContext, ToolSettings, available_tools, load_tools
from dgym.wire import Observation
from dgym.workspace import Policy, policy_files


class Bench:
    """A workspace with tools. ``use`` executes an action of an agent."""

    def __init__(self, sandbox: Sandbox, context: ToolContext, tools: list[Tool]) -> None:
        self.sandbox = sandbox
        self.context = context
        self.tools = {tool.name: tool for tool in tools}

    async def use(self, action: str | Mapping[str, Any]) -> Observation:
        return (await self.execute(action)).observation

    async def execute(self, action: str | Mapping[str, Any]) -> Execution:
        return await execute(self.tools, self.context, *read_action(action, self.tools))

    async def call(self, tool: str, **arguments: Any) -> Observation:
        return await self.use({"tool": tool, "arguments": arguments})

    async def text(self, action: str | Mapping[str, Any]) -> str:
        return (await self.use(action)).text


MakeBench = Callable[..., Awaitable[Bench]]


BOTH_KINDS = ("bubblewrap", pytest.param("none", marks=pytest.mark.thorough))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with the fixture ``both_kinds`` in each kind of sandbox, and the others in the best available kind."""
    if "sandbox" in metafunc.fixturenames and "both_kinds" in metafunc.fixturenames:
        metafunc.parametrize("sandbox", BOTH_KINDS, indirect=True)


@pytest.fixture
def both_kinds() -> None:
    """Requested by tests that run in each kind of sandbox."""


@pytest.fixture
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    kind = getattr(request, "param", "bubblewrap" if bubblewrap_works() else "none")
    if kind == "bubblewrap" and not bubblewrap_works():
        pytest.skip("bubblewrap does not work here")
    opened = await LocalProvider(SandboxSpec(), kind=kind).sandbox()
    try:
        yield opened
    finally:
        await opened.stop()


@pytest.fixture
def make_bench(sandbox: Sandbox) -> MakeBench:
    async def make(
        files: Mapping[str, str | bytes],
        *,
        tools: list[Any] | None = None,
        settings: ToolSettings | None = None,
    ) -> Bench:
        texts = {}
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            await sandbox.write_file(path, data)
            texts[path] = data.decode("utf-8", "replace")
        policy = Policy.parse({path: texts[path] for path in policy_files(texts)})
        context = ToolContext(sandbox, policy, settings or ToolSettings())
        return Bench(sandbox, context, load_tools(available_tools() if tools is None else tools))

    return make
