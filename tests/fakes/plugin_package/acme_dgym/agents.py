"""The agent ``flip``."""

from dgym.agents import AgentContext, BaseAgent, Env
from dgym.wire import EndReason


class Flip(BaseAgent):
    """Turns one minus into a plus after the other, until the tests pass."""

    name = "flip"
    default_tools = ("outline", "view", "eval", "rewrite")
    banned_tools = ("bash",)

    async def run(self, env: Env, context: AgentContext) -> EndReason | None:
        """Reset, look, flip and evaluate, until everything passes; what is left in the workspace is scored."""
        path = str(context.parameters.get("path", "calc.py"))
        await env.reset(seed=context.seed)
        outline, *_ = await env.step({"tool": "outline", "arguments": {"path": path}})
        context.log(f"{path} has {len(outline['text'].splitlines())} definitions")
        plain = {"path": path, "include_line_numbers": False}
        source, *_ = await env.step({"tool": "view", "arguments": plain})
        for number, line in enumerate(source["text"].splitlines()[1:], start=1):
            if "-" not in line:
                continue
            if await _ends(env, path, number, line.replace("-", "+", 1)) or await _ends(env, path, number, line):
                break
        return None


async def _ends(env: Env, path: str, number: int, code: str) -> bool:
    """Put ``code`` into a line and evaluate; whether the episode is over then, or nothing is left to repair."""
    edit = {"path": path, "start": number, "end": number, "new_code": code}
    _, _, terminated, truncated, _ = await env.step({"tool": "rewrite", "arguments": edit})
    if terminated or truncated:
        return True
    _, _, terminated, truncated, info = await env.step({"tool": "eval", "arguments": {}})
    return terminated or truncated or info["score"] == info["max_score"]
