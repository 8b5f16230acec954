"""The agent that debugs with pdb."""

from dgym.agents.model_agent import ModelAgent


class DebugAgent(ModelAgent):
    """Looks around, watches the program in pdb, rewrites and evaluates."""

    name = "debug_agent"
