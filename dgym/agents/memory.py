"""The last steps of an episode, as messages of a conversation."""

from collections import deque
from collections.abc import Iterable, Mapping

from dgym.agents.trimming import Turn
from dgym.llm import Message, ModelCall, Reply
from dgym.wire import Step

NO_CALL = "No tool was called. Answer with one call of a tool; submit, where it is among the tools, ends the work."
NOT_EXECUTED = "Not executed: one call at a time, so that you see what it does before the next."
_NOTHING = "(no answer)"


class Memory:
    """Keeps the last ``size`` steps: what the model said and what it was answered."""

    def __init__(self, size: int) -> None:
        self._turns: deque[Turn] = deque(maxlen=size)

    @property
    def turns(self) -> list[Turn]:
        """The steps kept, oldest first."""
        return list(self._turns)

    def add(self, reply: Reply, observation: str) -> None:
        """Remember a step."""
        said = Message(role="assistant", content=reply.text or reply.refusal or _said_by(reply), calls=reply.calls)
        if not reply.calls:
            self._turns.append((said, Message(role="user", content=observation)))
            return
        answers = [observation, *(NOT_EXECUTED for _ in reply.calls[1:])]
        self._turns.append(
            (
                said,
                *(
                    Message(role="tool", content=answer, call_id=call.id)
                    for call, answer in zip(reply.calls, answers, strict=True)
                ),
            )
        )

    def restore(self, steps: Iterable[Step], said: Mapping[int, Reply], *, clear_at_change: bool = False) -> None:
        """Remember steps that an earlier worker took.

        ``said`` is what its model answered before each of them; of a step that is missing there only the call is known.
        """
        for step in steps:
            if step.call is None:
                continue
            if clear_at_change and step.observation.diff:
                self.clear()
            call = ModelCall(id=f"step-{step.seq}", tool=step.call.tool, arguments=step.call.arguments)
            known = Reply(text="", calls=(call,) if call.tool else ())
            self.add(said.get(step.seq, known), step.observation.text)

    def clear(self) -> None:
        """Forget everything."""
        self._turns.clear()


def _said_by(reply: Reply) -> str:
    """A message needs a call or words: not every server takes one that has neither."""
    return "" if reply.calls else _NOTHING
