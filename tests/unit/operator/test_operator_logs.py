import json
import logging
import sys

import pytest

from dgym.logs import JsonFormatter, TextFormatter, fields
from dgym.terminal import printable
from dgym_operator.settings import Settings


def record(message="assigned", **extra):
    made = logging.LogRecord("dgym_operator.x", logging.INFO, __file__, 1, message, (), None)
    made.__dict__.update(extra)
    return made


def test_a_line_is_json_with_the_fields_of_the_episode():
    line = JsonFormatter().format(record(**fields(namespace="team", episode="fix", attempt=2, agent=None, empty="")))
    logged = json.loads(line)
    assert logged["time"].endswith("+00:00")
    del logged["time"]
    assert logged == {
        "level": "INFO",
        "logger": "dgym_operator.x",
        "message": "assigned",
        "namespace": "team",
        "episode": "fix",
        "attempt": 2,
    }


def test_a_line_that_cannot_be_encoded_is_still_one_line():
    assert "\n" not in JsonFormatter().format(record("half a pair \ud800 and\na newline"))


def test_an_exception_is_part_of_its_log_line():
    try:
        raise ValueError("wrong")
    except ValueError:
        logged = json.loads(JsonFormatter().format(record(exc_info=sys.exc_info())))
    assert logged["exception"].endswith("ValueError: wrong")


def test_text_shows_the_fields_behind_the_message():
    assert TextFormatter().format(record(**fields(episode="fix", attempt=1))).endswith("assigned episode=fix attempt=1")


@pytest.fixture
def logging_as_before():
    root, own = logging.getLogger(), logging.getLogger("dgym_operator")
    before = root.level, list(root.handlers), own.level
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    own.setLevel(before[2])


def test_libraries_are_quiet_below_warnings(logging_as_before, capsys):
    Settings(log_level="DEBUG", log_format="json").start_logging()
    logging.getLogger("aiohttp").info("connection")
    logging.getLogger("dgym_operator.app").debug("decided")
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["decided"]


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_a_line_that_quotes_a_program_does_not_drive_a_terminal(formatter):
    hostile = "\x1b]52;c;ZXZpbA==\x07\x9b31m\u202eevil\u200b"
    line = formatter.format(record(f"the program said {hostile}", **fields(pod=hostile)))
    assert printable(line) == line
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["pod"] == hostile
