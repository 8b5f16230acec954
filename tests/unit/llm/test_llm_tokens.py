import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.errors import ModelConfigError
from dgym.llm import Message, ModelCall
from dgym.llm._limits import TokenCounter, estimate_text, load_tokenizer

TOOL = {"name": "view", "description": "Show a file.", "parameters": {"type": "object"}}


def messages_of(text):
    return [Message(role="user", content=text)]


def test_everything_that_is_sent_counts():
    counter = TokenCounter()
    call = ModelCall(id="1", tool="view", arguments={"path": "a" * 100}, raw="a" * 100)
    alone = counter.count(messages_of("hello"))
    assert counter.count(messages_of("hello " * 100)) > alone + 100
    assert counter.count(messages_of("hello"), [TOOL]) > alone + 10
    assert counter.count([*messages_of("hello"), Message(role="assistant", content="", calls=(call,))]) > alone + 20


@given(st.text(), st.text())
def test_more_text_is_never_fewer_tokens(one, two):
    assert estimate_text(one + two) >= max(estimate_text(one), estimate_text(two))


def test_estimates_learn_from_what_the_model_reports():
    counter = TokenCounter()
    text = messages_of("x = 1\n" * 500)
    raw = counter.count(text)
    counter.calibrate(text, (), raw * 2)
    assert counter.count(text) == raw * 2
    counter.calibrate(text, (), raw * 2)
    assert counter.count(text) == raw * 2
    counter.calibrate(text, (), raw)
    assert raw < counter.count(text) < raw * 2


@given(st.integers(0, 10**9))
def test_no_report_makes_counts_absurd(reported):
    counter = TokenCounter()
    raw = counter.count(messages_of("hello world"))
    counter.calibrate(messages_of("hello world"), (), reported)
    assert raw / 5 <= counter.count(messages_of("hello world")) <= raw * 5


def test_a_reply_without_text_has_no_tokens():
    assert TokenCounter().count_reply("") == 0
    assert TokenCounter().count_reply("some words of an answer") > 2


@pytest.fixture
def tokenizer_file(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "total": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_tokenizer_counts_exactly(tokenizer_file):
    count = load_tokenizer(str(tokenizer_file), None)
    assert count("total += b") == 3
    assert TokenCounter(count).count_reply("one two three") == 3


def test_a_broken_tokenizer_is_the_users_to_repair(tokenizer_file):
    tokenizer_file.write_text("{}")
    with pytest.raises(ModelConfigError, match=r"cannot be loaded: .*; check the name, HF_TOKEN"):
        load_tokenizer(str(tokenizer_file), None)
