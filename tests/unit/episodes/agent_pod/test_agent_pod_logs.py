"""Tests of the log lines of an agent pod: all lines, also of libraries, have the keys of all components."""

import json
import logging

import pytest

from dgym.episodes.agent_pod._telemetry import EpisodeLog, configure_logging, logging_into


@pytest.fixture
def logging_as_before():
    root, package = logging.getLogger(), logging.getLogger("dgym")
    before = root.level, list(root.handlers), package.level, list(package.handlers)
    yield
    logging.captureWarnings(False)
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    package.setLevel(before[2])
    package.handlers[:] = before[3]


def test_lines_of_an_agent_have_the_keys_of_all_components(logging_as_before, capsys):
    configure_logging(level="INFO", pod="agents-0")
    with logging_into(EpisodeLog(namespace="team", episode="fix", attempt=2)):
        logging.getLogger("dgym.episodes.episode").info("assigned")
        logging.getLogger("some.library").warning("slow")
    assigned, slow = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert list(assigned)[:4] == ["time", "level", "logger", "message"]
    about = {"agent_pod": "agents-0", "namespace": "team", "episode": "fix", "attempt": 2}
    for line in (assigned, slow):
        assert {name: line[name] for name in about} == about
