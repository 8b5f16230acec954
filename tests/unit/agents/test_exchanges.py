import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dgym.agents._chat import Exchange, Transcript, ranges
from dgym.llm import Message, ModelCall, Reply, TokenUsage


@given(st.lists(st.integers(0, 50), max_size=40))
def test_ranges_contain_the_same_numbers(numbers):
    shown = ranges(numbers)
    assert [number for first, last in shown for number in range(first, last + 1)] == numbers
    assert all(right[0] != left[1] + 1 for left, right in itertools.pairwise(shown))


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


def test_an_exchange_is_written_in_camel_case_without_empty_fields():
    call = ModelCall(id="1", tool="pdb", raw="{", error="cut off")
    reply = Reply(
        text="", calls=(call,), usage=TokenUsage(input_tokens=3, price="0.1"), seconds_model=0.5, seconds_queue=0.25
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


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=8), st.data())
def test_messages_replaced_by_a_compaction_are_recorded(texts, data):
    transcript = Transcript()
    first = transcript.record([Message(role="user", content=text) for text in texts], Reply())
    changed = [f"no {text}" if data.draw(st.booleans()) else text for text in texts]
    second = transcript.record([Message(role="user", content=text) for text in changed], Reply())
    replaced = {old for old, now in zip(texts, changed, strict=True) if old != now}
    numbers = [number for low, high in second.removed for number in range(low, high + 1)]
    assert {first.messages[number].content for number in numbers} == replaced


def test_a_later_worker_puts_the_last_request_together_again():
    transcript, messages = Transcript(), [Message(role="user", content="a")]
    call = ModelCall(id="1", tool="view", arguments={"start": 100000.0}, raw='{"start": 1e5}')
    exchanges = [transcript.record(messages, Reply(calls=(call,)), [{"name": "view"}])]
    messages.append(Message(role="assistant", content="", calls=(call,), extra={"reasoning_content": "Hm."}))
    exchanges.append(transcript.record(messages, Reply(text="b"), [{"name": "view"}, {"name": "pdb"}]))
    written = msgspec.json.decode(msgspec.json.encode(exchanges), type=list[Exchange])
    later = Transcript()
    later.restore(written)
    assert later.request(written[1]) == messages
    assert later.tools == ("view", "pdb")
    assert later.record(messages, Reply(), [{"name": "view"}, {"name": "pdb"}]).messages == ()
