"""The agent ``flip``."""

from dgym.agents import AgentContext, BaseAgent, Env
from dgym.wire import EndReason


class Flip(BaseAgent):
    """Turns one minus into a plus after the other, until the tests pass."""

    name = "flip"
    default_tools = ("outline", "view", "eval", "rewrite", "submit")
    banned_tools = ("bash",)

    async def run(self, env: Env, context: AgentContext) -> EndReason | None:
        """Reset, look, flip, evaluate; submit when everything passes."""
        path = str(context.parameters.get("path", "calc.py"))
        await env.reset(seed=context.seed)
        outline, *_ = await env.step({"tool": "outline", "arguments": {"path": path}})
        context.log(f"{path} has {len(outline['text'].splitlines())} definitions")
        plain = {"path": path, "include_line_numbers_and_breakpoints": False}
        source, *_ = await env.step({"tool": "view", "arguments": plain})
        for number, line in enumerate(source["text"].splitlines()[1:], start=1):
            if "-" in line and await _try(env, path, number, line.replace("-", "+", 1), line):
                break
        await env.step({"tool": "submit", "arguments": {}})
        return None


async def _try(env: Env, path: str, number: int, new: str, old: str) -> bool:
    """Whether the tests pass with the line replaced; it is put back if they do not."""
    edit = {"path": path, "start": number, "end": number}
    await env.step({"tool": "rewrite", "arguments": edit | {"new_code": new}})
    observation, *_ = await env.step({"tool": "eval", "arguments": {}})
    score = observation["score"]
    if score is not None and score["score"] == score["max_score"]:
        return True
    await env.step({"tool": "rewrite", "arguments": edit | {"new_code": old}})
    return False
