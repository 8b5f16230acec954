import pytest

from dgym.agents import agent_names, load_agent
from dgym.errors import PluginError


def test_the_shipped_agents_load():
    shipped = {"debug_5_agent", "debug_agent", "human", "replay", "rewrite_agent", "solution"}
    assert shipped <= set(agent_names())
    for name in sorted(shipped):
        assert load_agent(name).name == name


def test_a_dotted_path_loads_from_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "agents_of_mine.py").write_text(
        "from dgym.agents import BaseAgent\n"
        "class Mine(BaseAgent):\n    name = 'mine'\n    async def run(self, env, context):\n        return None\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_agent("agents_of_mine:Mine").name == "mine"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("replya", "did you mean 'replay'"),
        ("zzz", "installed: .*human, replay, rewrite_agent, solution"),
        ("no_such_module:Agent", "no_such_module"),
        ("dgym.agents:Nothing", "Nothing"),
        ("dgym.wire:ToolCall", "derive it from dgym.agents.BaseAgent"),
        ("dgym.agents:BaseAgent", "it has no method run"),
        ("dgym.agents:agent_names", "not an agent"),
    ],
)
def test_an_agent_that_cannot_be_loaded_is_reported(name, complaint):
    with pytest.raises(PluginError, match=complaint):
        load_agent(name)
