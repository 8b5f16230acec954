"""Whatever the lengths, what is sent keeps its head, its newest step, and every call together with its answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.agents.memory import fit, shorten, shorten_to_tokens
from dgym.llm import Message, ModelCall

HEAD = [Message(role="system", content="be brief " * 20), Message(role="user", content="the task " * 20)]


def additive(messages):
    return sum(4 + len(message.content) // 4 for message in messages)


def not_additive(messages):
    """Real tokenizers count a whole differently from its parts."""
    return len("".join(message.content for message in messages)) // 3 + 7 * len(messages) ** 2 // 10


def turn(number, said, answered, extra):
    calls = tuple(ModelCall(id=f"{number}-{index}", tool="view", arguments={}) for index in range(1 + extra))
    return (
        Message(role="assistant", content="s" * said, calls=calls),
        *(Message(role="tool", content="a" * answered, call_id=call.id) for call in calls),
    )


turns = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 20_000), st.integers(0, 2)), max_size=12).map(
    lambda sizes: [turn(number, *size) for number, size in enumerate(sizes)]
)


@pytest.mark.parametrize("count", [additive, not_additive])
@given(turns=turns, limit=st.integers(100, 20_000))
def test_head_and_newest_turn_stay_and_no_call_loses_its_answer(count, turns, limit):
    messages = fit(HEAD, turns, limit, count)
    assert messages[:2] == HEAD
    rest = messages[2:]
    kept = [message for message in rest if message.role == "assistant"]
    assert kept == [said for said, *_ in turns][len(turns) - len(kept) :]
    assert bool(kept) == bool(turns)
    called = [call.id for message in rest for call in message.calls]
    assert called == [message.call_id for message in rest if message.role == "tool"]


@given(turns=turns, limit=st.integers(100, 20_000))
def test_what_fits_is_left_alone_and_what_can_fit_does(turns, limit):
    whole = [*HEAD, *(message for turn in turns for message in turn)]
    messages = fit(HEAD, turns, limit, additive)
    if additive(whole) <= limit:
        assert messages == whole
    newest = [shortest(message) for message in turns[-1]] if turns else []
    if additive([*HEAD, *newest]) <= limit:
        assert additive(messages) <= limit


def shortest(message):
    content = message.content if message.role == "assistant" else shorten(message.content, 0)
    return Message(role=message.role, content=content)


def test_old_answers_are_cut_before_any_turn_is_lost():
    turns = [turn(number, 10, 8_000, 0) for number in range(4)]
    messages = fit(HEAD, turns, 4_000, additive)
    assert len(messages) == len(HEAD) + 8
    assert "characters left out" in messages[3].content
    assert messages[-1] == turns[-1][-1]


def test_without_a_limit_nothing_is_cut():
    turns = [turn(0, 10, 1_000_000, 0)]
    assert fit(HEAD, turns, None, additive) == [*HEAD, *turns[0]]


@given(text=st.text(max_size=5_000), tokens=st.integers(0, 800))
def test_shortened_text_keeps_both_ends_and_says_what_is_missing(text, tokens):
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
