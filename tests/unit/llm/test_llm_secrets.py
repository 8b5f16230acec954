import copy
import json
import pickle

import msgspec
import pytest

from dgym.llm import Secret
from dgym.llm._config import mask, parse_settings

KEY = "sk-proj-0123456789abcdef"


@pytest.mark.attack("secrets")
@pytest.mark.parametrize(
    "show",
    [str, repr, "{}".format, "{!r}".format, "{:>40}".format, "%s".__mod__, "%r".__mod__, lambda it: str([it, {1: it}])],
)
def test_a_secret_is_not_printed(show):
    assert "0123456789" not in show(Secret(KEY))


@pytest.mark.attack("secrets")
@pytest.mark.parametrize("dump", [pickle.dumps, copy.deepcopy, json.dumps, msgspec.json.encode])
def test_a_secret_does_not_leave_by_serializers(dump):
    with pytest.raises(TypeError):
        dump(Secret(KEY))


def test_secrets_are_compared_by_value():
    assert Secret(KEY) == Secret(KEY)
    assert len({Secret(KEY), Secret(KEY), Secret("other")}) == 2
    assert Secret(KEY) != KEY


@pytest.mark.attack("secrets")
def test_settings_show_no_key_and_no_header():
    settings = parse_settings({"model": "m", "api_key": KEY, "headers": {"X-Key": "header-value-1"}}, {})
    assert KEY not in repr(settings)
    assert "header-value-1" not in repr(settings)
    assert [secret.reveal() for secret in settings.secrets] == [KEY, "header-value-1"]


@pytest.mark.attack("secrets")
@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: *****."),
        ("key sk-abc***********xyz is wrong", "key ***** is wrong"),
        ("Authorization: Bearer eyJhbGciOi.JIUzI1.NiJ9", "Authorization: Bearer *****"),
        ("token hf_abcdefghijk", "token *****"),
        ("my own word: tr0ub4dor", "my own word: *****"),
        ("the task is risky", "the task is risky"),
    ],
)
def test_text_of_others_is_masked(text, clean):
    assert mask(text, [Secret("tr0ub4dor"), Secret("is")]) == clean
