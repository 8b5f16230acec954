import pytest

from dgym.agents import HumanModel
from dgym.errors import HumanQuit
from dgym.llm import Message

TOOLS = [
    {"name": "view", "description": "Show.", "parameters": {"properties": {"path": {}}, "required": ["path"]}},
    {"name": "rewrite", "description": "Write.", "parameters": {}},
]
TASK = Message(role="user", content="There is a bug.")


class Desk:
    """Fake terminal, where a person types ``lines``."""

    def __init__(self, *lines):
        self.lines = list(lines)
        self.shown = []

    async def read(self, prompt):
        return self.lines.pop(0) if self.lines else None

    def show(self, text, style=""):
        self.shown.append(text)


@pytest.fixture
def seat():
    def seat(*lines):
        desk = Desk(*lines)
        return HumanModel(lambda tools: desk), desk

    return seat


async def ask(model, *messages):
    return await model.complete(messages or (TASK,), TOOLS, session="e1")


async def test_a_line_that_begins_with_a_tool_is_a_call(seat):
    model, _ = seat("", "  view a.py  ", '{"tool": "view", "arguments": {"path": "a.py"}}')
    for expected in ("view a.py", '{"tool": "view", "arguments": {"path": "a.py"}}'):
        reply = await ask(model)
        assert [call.action for call in reply.calls] == [expected]
        assert not reply.usage.exact
        assert reply.usage.input_tokens > 0


async def test_other_text_is_an_answer_without_a_call(seat):
    model, _ = seat("I think it is the loop.")
    reply = await ask(model)
    assert (reply.text, reply.calls) == ("I think it is the loop.", ())


async def test_code_may_have_several_lines(seat):
    model, _ = seat("rewrite a.py <c>x = 1", "y = 2</c>")
    assert (await ask(model)).calls[0].action == "rewrite a.py <c>x = 1\ny = 2</c>"


async def test_only_what_is_new_is_shown(seat):
    model, desk = seat("view a.py", "view b.py")
    reply = await ask(model)
    assert "There is a bug." in desk.shown
    desk.shown.clear()
    message = Message(role="assistant", content="", calls=reply.calls)
    await ask(model, TASK, message, Message(role="tool", content="1 x = 1", call_id=reply.calls[0].id))
    assert "1 x = 1" in desk.shown
    assert "There is a bug." not in desk.shown


async def test_help_lists_the_tools(seat):
    model, desk = seat("help", "view a.py")
    await ask(model)
    assert "- view path: Show." in desk.shown[-1]


@pytest.mark.parametrize("lines", [("quit",), ("exit",), (), ("rewrite a.py <c>x",)])
async def test_a_person_can_quit(seat, lines):
    model, _ = seat(*lines)
    with pytest.raises(HumanQuit):
        await ask(model)


async def test_a_person_is_interactive_and_needs_no_closing(seat):
    model, _ = seat()
    assert model.interactive
    model.release("e1")
    await model.close()
