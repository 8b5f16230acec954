"""Tests of the conversation: only compaction changes sent messages, and every call has an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.agents._chat import HEAD, Conversation, shorten_to_tokens
from dgym.agents.model_agent import idle_message
from dgym.llm import Message, ModelCall, Reply

START = [Message(role="system", content="be brief " * 20), Message(role="user", content="the task " * 20)]
WINDOW = 20_000


def additive(messages):
    return sum(4 + len(message.content) // 4 for message in messages)


def not_additive(messages):
    """Return a count that is not the sum over the messages, as with real tokenizers."""
    return len("".join(message.content for message in messages)) // 3 + 7 * len(messages) ** 2 // 10


turns = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 20_000), st.integers(0, 3)), max_size=12)


def converse(turns, count=additive, in_text=False):
    conversation = Conversation(START, count)
    for number, (size, observed, calls) in enumerate(turns):
        made = tuple(ModelCall(id=f"{number}-{index}", tool="view", arguments={}) for index in range(calls))
        reply = Reply(text="s" * size, calls=made, in_text=in_text)
        conversation.add_reply(reply)
        for index in range(max(1, calls)):
            conversation.add_observation(reply, index, f"{number}.{index} " + "o" * observed, window=WINDOW)
    return conversation


@pytest.mark.parametrize("count", [additive, not_additive])
@given(turns=turns, limit=st.integers(100, 20_000))
def test_compaction_keeps_head_replies_and_the_answers_of_calls(count, turns, limit):
    conversation = converse(turns, count)
    before = list(conversation.messages)
    changed = conversation.compact(limit)
    after = conversation.messages
    assert changed == (before != after)
    assert after[:HEAD] == START
    assert [(one.role, one.calls, one.call_id) for one in after] == [
        (one.role, one.calls, one.call_id) for one in before
    ]
    assert all(one == two for one, two in zip(before, after, strict=True) if one.role == "assistant")
    assert all("\n" not in two.content for one, two in zip(before[:-1], after, strict=False) if one != two)


@given(turns=turns, limit=st.integers(100, 20_000))
def test_compaction_makes_room_or_leaves_nothing_to_remove(turns, limit):
    conversation = converse(turns)
    total = additive(conversation.messages)
    conversation.compact(limit)
    if additive(conversation.messages) > limit:
        assert all(len(one.content) < 400 for one in conversation.messages[HEAD:] if one.role != "assistant")
    elif total > limit and len(turns) > 1 and max(observed for _, observed, _ in turns[:-1]) < 400:
        assert additive(conversation.messages) <= total


def test_the_oldest_observations_go_first_and_a_third_of_the_window_at_once():
    conversation = converse([(10, 4_000, 1)] * 10)
    limit = additive(conversation.messages) - 1
    assert conversation.compact(limit)
    removed = [message.content.startswith("[An old observation of 4,") for message in conversation.messages]
    assert removed == [False] * HEAD + [index % 2 == 1 and index < HEAD + 2 * 4 for index in range(HEAD, HEAD + 20)]
    assert additive(conversation.messages) <= limit * 2 // 3
    assert not conversation.compact(limit * 2 // 3)


def test_an_observation_takes_a_quarter_of_the_window_at_most():
    conversation = converse([(10, 1_000_000, 1)])
    assert additive(conversation.messages[-1:]) <= WINDOW // 4
    assert "characters left out" in conversation.messages[-1].content


def test_a_call_in_text_is_answered_by_a_message_of_the_user():
    first_reply = Reply(
        text="",
        content="<call>view a.py</call>",
        calls=(ModelCall(id="1", tool="view", raw="view a.py"),),
        in_text=True,
    )
    conversation = Conversation(START, additive)
    conversation.add_reply(first_reply)
    conversation.add_observation(first_reply, 0, "1 x", window=WINDOW)
    assert conversation.messages[HEAD:] == [
        Message(role="assistant", content="<call>view a.py</call>"),
        Message(role="user", content="Result of view:\n1 x"),
    ]


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (Reply(refusal="No.", finish_reason="length"), "refused"),
        (Reply(text="Let me", finish_reason="length"), "cut off"),
        (Reply(reasoning="Hm."), "only reasoning"),
        (Reply(), "was empty"),
        (Reply(text="The loop is wrong."), "it called no tool"),
    ],
)
def test_a_reply_without_a_call_is_answered_by_its_cause(reply, cause):
    message = idle_message(reply, ["view", "submit"])
    assert cause in message
    assert "Call submit" in message
    assert "submit" not in idle_message(reply, ["view"])


@given(text=st.text(max_size=5_000), tokens=st.integers(0, 800))
def test_shortened_text_keeps_both_ends_and_reports_the_removed_characters(text, tokens):
    def count(part):
        return len(part) // 4

    short = shorten_to_tokens(text, tokens, count)
    if tokens == 0:
        assert short == ""
    elif count(text) <= tokens:
        assert short == text
    elif short != text:
        assert text.startswith(short[:100])
        assert text.endswith(short[-100:])
        assert "characters left out" in short
        assert len(short) < len(text)
