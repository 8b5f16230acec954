"""The agent that gets pdb only after some rewrites: does it help when guessing has failed?"""

from typing import Annotated, Any

import msgspec

from dgym.agents.model_agent import ModelAgent
from dgym.agents.settings import Settings


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
