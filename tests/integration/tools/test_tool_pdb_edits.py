"""Tests of breakpoints under random edits, in each state of the program and with each tool that edits."""

import random
import shlex

import pytest

from dgym.tools import ToolSettings

MAIN = "import calc\nprint('over')\n"
SETTINGS = ToolSettings(entrypoint="python main.py")


class Edits:
    """A file of distinct lines of code, its random edits, and the expected places of its breakpoints."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.count = 0
        self.lines = [self.new_line() for _ in range(8)]
        self.marked = {}  # the number of each breakpoint, and the text of its line

    def new_line(self):
        self.count += 1
        return f"value{self.count} = {self.count}"

    @property
    def text(self):
        return "".join(line + "\n" for line in self.lines)

    def places(self):
        return [(number, self.lines.index(text) + 1) for number, text in sorted(self.marked.items())]

    def edit(self):
        """Replace some lines. Return the range (an insertion if end < start) and the new lines."""
        start = self.random.randint(1, len(self.lines))
        end = min(start + self.random.choice([-1, -1, 0, 1]), len(self.lines))
        if start == 1 and end == len(self.lines):
            end -= 1
        new = [self.new_line() for _ in range(self.random.choice([0, 1, 1, 3] if end >= start else [1, 2, 5]))]
        before = dict(self.places())
        self.lines[start - 1 : end] = new
        dropped = [number for number, text in self.marked.items() if text not in self.lines]
        for number in dropped:
            del self.marked[number]
        return start, end, new, [(number, before[number]) for number in dropped]


async def edit_with(tool, bench, edits):
    start, end, new, dropped = edits.edit()
    if tool == "rewrite":
        arguments = {"path": "calc.py", "start": start, "end": end, "new_code": "\n".join(new)}
        observation = await bench.call("rewrite", **arguments)
    else:
        observation = await bench.call("bash", command=f"printf %s {shlex.quote(edits.text)} > calc.py")
    assert observation.ok, observation.text
    for number, line in dropped:
        assert f"Breakpoint {number} at calc.py:{line} was dropped" in observation.text
    assert observation.text.count("was dropped") == len(dropped)


async def reach(state, bench):
    """Bring the program into the state ``state``."""
    if state == "stopped":
        await bench.use("pdb run")
        while not ((await bench.use("pdb c")).frame or bench.context.breakpoints == ()):
            pass
    elif state == "ended":
        await bench.use("pdb run")
        while (await bench.use("pdb c")).frame:
            pass
    elif state == "left":
        await bench.use("pdb q")
    elif state == "restarted":
        await bench.use("pdb run")


@pytest.mark.parametrize("tool", ["rewrite", "bash"])
@pytest.mark.parametrize("state", ["waiting", "stopped", "ended", "left", "restarted"])
async def test_breakpoints_stay_on_their_lines(make_bench, state, tool):
    edits = Edits(f"{state} {tool}")
    bench = await make_bench({"main.py": MAIN, "calc.py": edits.text}, settings=SETTINGS)
    number = 0
    for _ in range(3):
        for text in edits.random.sample(sorted(set(edits.lines) - set(edits.marked.values())), 2):
            number += 1
            edits.marked[number] = text
            answer = await bench.text(f"pdb b calc.py:{edits.lines.index(text) + 1}")
            assert answer.startswith(f"Breakpoint {number} at calc.py:{edits.lines.index(text) + 1}\n")
        await reach(state, bench)
        for _ in range(2):
            await edit_with(tool, bench, edits)
            observation = await bench.use("pdb b")
            assert "dropped" not in observation.text
            assert [(point.number, point.line) for point in observation.breakpoints] == edits.places()
    stops = []
    while (observation := await bench.use("pdb c")).frame:
        (current,) = [line for line in observation.text.splitlines() if line.startswith("->")]
        assert current.endswith(f" {edits.lines[observation.frame.line - 1]}")
        stops.append(observation.frame.line)
    assert stops == sorted(line for _, line in edits.places())
    assert "was never hit" not in observation.text
