import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dgym.agents.chat import Transcript, ranges
from dgym.agents.memory import NO_CALL, NOT_EXECUTED, Memory
from dgym.llm import Message, ModelCall, Reply, Usage
from dgym.wire import Observation, Step, ToolCall


@given(st.lists(st.integers(0, 50), max_size=40))
def test_ranges_tell_the_same_numbers(numbers):
    told = ranges(numbers)
    assert [number for first, last in told for number in range(first, last + 1)] == numbers
    assert all(right[0] != left[1] + 1 for left, right in itertools.pairwise(told))


@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=8), max_size=20))
def test_every_request_can_be_put_together_again_and_no_message_is_written_twice(requests):
    transcript, known = Transcript(), []
    for request in requests:
        exchange = transcript.record([Message(role="user", content=text) for text in request], Reply(text=""))
        known += [message.content for message in exchange.messages]
        assert [known[number] for first, last in exchange.sent for number in range(first, last + 1)] == request
    assert len(known) == len(set(known))


def test_a_conversation_grows_by_what_is_new():
    transcript, messages, sizes = Transcript(), [], []
    for number in range(100):
        messages.append(Message(role="user", content=f"{number:03}" * 100))
        sizes.append(len(msgspec.json.encode(transcript.record(messages, Reply(text="yes")))))
    assert sizes[99] - sizes[9] <= 2


def test_an_exchange_is_written_in_camel_case_without_what_is_not_there():
    call = ModelCall(id="1", tool="pdb", raw="{", error="cut off")
    reply = Reply(
        text="", calls=(call,), usage=Usage(input_tokens=3, price="0.1"), seconds_model=0.5, seconds_queue=0.25
    )
    exchange = Transcript().record([Message(role="tool", content="hi", call_id="0")], reply)
    assert msgspec.json.decode(msgspec.json.encode(exchange)) == {
        "sent": [[0, 0]],
        "messages": [{"role": "tool", "content": "hi", "callId": "0"}],
        "calls": [{"id": "1", "tool": "pdb", "raw": "{", "error": "cut off"}],
        "usage": {"inputTokens": 3, "price": "0.1"},
        "secondsModel": 0.5,
        "secondsQueue": 0.25,
    }


def test_memory_answers_every_call_and_forgets_the_oldest_step():
    memory = Memory(2)
    calls = tuple(ModelCall(id=str(number), tool="view", arguments={}) for number in range(3))
    memory.add(Reply(text="forgotten"), "gone")
    memory.add(Reply(text="three at once", calls=calls), "seen")
    memory.add(Reply(text=""), NO_CALL)
    three, none = memory.turns
    assert [message.content for message in three] == ["three at once", "seen", NOT_EXECUTED, NOT_EXECUTED]
    assert [message.call_id for message in three[1:]] == ["0", "1", "2"]
    assert [(message.role, message.content) for message in none] == [("assistant", "(no answer)"), ("user", NO_CALL)]


def test_memory_goes_on_from_a_history():
    memory = Memory(10)
    steps = [
        Step(seq=0, call=None, observation=Observation(text="reset")),
        Step(seq=1, call=ToolCall(tool="view", arguments={"path": "a.py"}), observation=Observation(text="a = 1")),
        Step(seq=2, call=ToolCall.mistake("no"), observation=Observation(text="no")),
    ]
    memory.restore(steps, {})
    view, mistake = memory.turns
    assert view[0].calls == (ModelCall(id="step-1", tool="view", arguments={"path": "a.py"}),)
    assert view[1] == Message(role="tool", content="a = 1", call_id="step-1")
    assert mistake[1] == Message(role="user", content="no")
