import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from dgym.console import PDB_COMMANDS, call_completer, history_path
from dgym.runner.debugger.parsing import COMMANDS, REFUSED

TOOLS = {
    "pdb": {"description": "Debug. With pdb.", "parameters": {"properties": {"command": {"type": "string"}}}},
    "view": {
        "description": "Show a file.",
        "parameters": {
            "properties": {"path": {"type": "string"}, "numbers": {"type": "boolean"}, "how": {"enum": ["all", "few"]}}
        },
    },
}


@pytest.fixture
def completed():
    completer = call_completer(TOOLS, {"src/calc.py", "tests/test_calc.py"})

    def complete(text):
        found = completer.get_completions(Document(text), CompleteEvent())
        return [text[: len(text) + one.start_position] + one.text for one in found]

    return complete


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("p", ["pdb "]),
        ("", ["pdb ", "view ", "help", "quit"]),
        ("help v", ["help view"]),
        ("pdb tb", ["pdb tbreak"]),
        ("view s", ["view src/calc.py"]),
        ("view src/calc.py t", ["view src/calc.py true", "view src/calc.py tests/test_calc.py"]),
        ("view src/calc.py true a", ["view src/calc.py true all"]),
        ("nothing ", []),
    ],
)
def test_completion_offers_tools_arguments_and_paths(completed, typed, offered):
    assert completed(typed) == offered


def test_every_command_of_the_completion_is_one_of_the_debugger():
    assert set(PDB_COMMANDS) <= COMMANDS - set(REFUSED)


def test_the_history_file_is_private_and_may_be_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = history_path()
    assert path is not None
    assert path.stat().st_mode & 0o077 == 0
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert history_path() is None
