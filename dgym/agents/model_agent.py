"""What the agents that think have in common."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from dgym.agents.base import AgentContext, BaseAgent, Env, Tools
from dgym.agents.loop import Loop
from dgym.agents.settings import Settings, read_settings
from dgym.api import ToolSpec
from dgym.errors import ManifestError
from dgym.wire import EndReason

DEBUGGING_TOOLS = ("pdb", "view", "rewrite", "eval", "listdir", "grep", "submit")


class ModelAgent(BaseAgent):
    """Runs the loop. Subclasses choose tools and settings, and through ``tool_options`` what tools do by themselves."""

    default_tools: ClassVar[tuple[str, ...]] = DEBUGGING_TOOLS
    uses_model = True
    settings_type: ClassVar[type[Settings]] = Settings

    @classmethod
    def arrange_tools(cls, tools: Tools, parameters: Mapping[str, Any]) -> Tools:
        """The tools with this agent's options; options of the manifest's own go before them."""
        options = cls.tool_options(cls.settings(parameters))
        return tuple(_with_options(tool, options) for tool in tools)

    @classmethod
    def settings(cls, parameters: Mapping[str, Any]) -> Settings:
        """The parameters, checked."""
        return read_settings(cls.settings_type, parameters, agent=cls.name)

    @classmethod
    def tool_options(cls, settings: Settings) -> dict[str, dict[str, Any]]:
        """Options by the tool's name."""
        return {"eval": {"onRewrite": True}} if settings.eval_on_rewrite else {}

    async def run(self, env: Env, context: AgentContext) -> EndReason | None:
        """Debug."""
        if context.chat is None:
            raise ManifestError(f"agent {self.name} needs a model: set agent.model, as with -p agent.model=NAME")
        await Loop(env, context.chat, context, self.settings(context.parameters)).run()
        return None


def _with_options(tool: str | ToolSpec, options: Mapping[str, dict[str, Any]]) -> str | ToolSpec:
    spec = ToolSpec(name=tool) if isinstance(tool, str) else tool
    if spec.name not in options:
        return tool
    return msgspec.structs.replace(spec, options=options[spec.name] | spec.options)


class DebugAgent(ModelAgent):
    """Looks around, watches the program in pdb, rewrites and evaluates."""

    name = "debug_agent"


class LateDebuggerSettings(Settings, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """``rewrites_before_pdb``: how many rewrites must have succeeded before there is a pdb."""

    rewrites_before_pdb: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 5


class Debug5Agent(ModelAgent):
    """Works like the rewrite agent until its fifth rewrite, and like the debug agent from then on."""

    name = "debug_5_agent"
    settings_type = LateDebuggerSettings

    @classmethod
    def tool_options(cls, settings: Settings) -> dict[str, dict[str, Any]]:
        """``pdb`` is not there until enough rewrites were made: the session itself keeps it away."""
        assert isinstance(settings, LateDebuggerSettings)
        return {**super().tool_options(settings), "pdb": {"afterRewrites": settings.rewrites_before_pdb}}


class RewriteAgent(ModelAgent):
    """Reads, rewrites and evaluates; for it there is no pdb, whatever the manifest's tools say."""

    name = "rewrite_agent"
    default_tools = tuple(tool for tool in DEBUGGING_TOOLS if tool != "pdb")
    banned_tools = ("pdb",)
