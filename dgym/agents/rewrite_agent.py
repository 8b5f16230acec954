"""The agent without a debugger: what the others are compared with."""

from dgym.agents.model_agent import DEBUGGING_TOOLS, ModelAgent


class RewriteAgent(ModelAgent):
    """Reads, rewrites and evaluates; for it there is no pdb, whatever the manifest's tools say."""

    name = "rewrite_agent"
    default_tools = tuple(tool for tool in DEBUGGING_TOOLS if tool != "pdb")
    banned_tools = ("pdb",)
