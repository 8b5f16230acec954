"""Test of a person in the place of a model, at a pseudo-terminal."""

import sys

import pexpect

CODE = """
import asyncio
from dgym.agents import HumanModel
from dgym.errors import HumanQuit
from dgym.llm import Message, load_models

TOOLS = [
    {"name": "view", "description": "Show.", "parameters": {"properties": {"path": {}}, "required": ["path"]}},
    {"name": "rewrite", "description": "Write.", "parameters": {"properties": {}}},
]

async def main():
    model = load_models("llm.yaml", human=HumanModel).open("human")
    messages = [Message(role="system", content="Be careful."), Message(role="user", content="There is a bug.")]
    while True:
        try:
            reply = await model.complete(messages, TOOLS, session="e")
        except HumanQuit:
            print("left", flush=True)
            return
        print("reply:", [call.action for call in reply.calls], repr(reply.text), flush=True)
        messages.append(Message(role="assistant", content=reply.text, calls=reply.calls))
        messages += [Message(role="tool", content="1 x = 1", call_id=call.id) for call in reply.calls]

asyncio.run(main())
"""


def test_a_person_answers(tmp_path):
    (tmp_path / "llm.yaml").touch()
    child = pexpect.spawn(
        sys.executable, ["-c", CODE], cwd=str(tmp_path), encoding="utf-8", timeout=90, dimensions=(50, 150)
    )
    try:
        child.expect_exact("Be careful.")
        child.expect_exact("There is a bug.")
        child.expect_exact("model>")
        child.sendline("view a.py")
        child.expect_exact("reply: ['view a.py'] ''")
        child.expect_exact("1 x = 1")
        child.expect_exact("model>")
        child.sendline("it is the loop")
        child.expect_exact("reply: [] 'it is the loop'")
        child.expect_exact("model>")
        child.sendline("rewrite a.py <c>x = 1")
        child.expect_exact(".....>")
        child.sendline("y = 2</c>")
        child.expect_exact(r"reply: ['rewrite a.py <c>x = 1\ny = 2</c>'] ''")
        child.expect_exact("model>")
        child.sendeof()
        child.expect_exact("left")
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)
