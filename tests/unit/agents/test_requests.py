"""Tests of requests that are rebuilt from recorded exchanges."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.agents import Exchange, sent_requests
from dgym.agents._chat import Transcript
from dgym.llm import Message, Reply


@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=8), max_size=20))
def test_a_request_has_the_messages_that_were_sent_and_marks_the_new_ones(sent):
    transcript = Transcript()
    recorded = [transcript.record([Message(role="user", content=text) for text in texts], Reply()) for texts in sent]
    read = list(sent_requests(msgspec.json.decode(msgspec.json.encode(recorded), type=list[Exchange])))
    before: list[str] = []
    for request, texts in zip(read, sent, strict=True):
        assert request is not None
        assert [message.content for message in request.messages] == texts
        assert {request.known[number].content for number in request.new} == set(texts) - set(before)
        before = texts


def test_tools_are_those_that_were_sent_last():
    transcript = Transcript()
    tools = [["view"], ["view"], ["view", "pdb"]]
    recorded = [
        transcript.record([Message(role="user", content="a")], Reply(), [{"name": name} for name in names])
        for names in tools
    ]
    assert [list(request.tools) for request in sent_requests(recorded) if request] == tools


HELLO = (Message(role="user", content="hello"),)


@pytest.mark.parametrize("sent", [((0, 1),), ((-1, 0),), ((1, 0), (5, 4)), ((0, 10**15),), ((0, 0),) * 20_000])
def test_an_invalid_request_is_none_and_the_next_request_is_read(sent):
    recorded = [Exchange(sent=((0, 0),), messages=HELLO), Exchange(sent=sent), Exchange(sent=((0, 0),))]
    first, second, third = sent_requests(recorded)
    assert first is not None
    assert second is None
    assert third is not None
    assert third.messages == list(HELLO)
    assert not third.new


def test_after_an_exchange_that_cannot_be_read_nothing_is_guessed():
    recorded = [Exchange(sent=((0, 0),), messages=HELLO), None, Exchange(sent=((0, 0),))]
    assert [request is None for request in sent_requests(recorded)] == [False, True, True]
