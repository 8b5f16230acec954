import pytest

from dgym.agents import load_agent
from dgym.agents.model_agent import Settings, read_settings
from dgym.api import ToolSpec
from dgym.errors import ManifestError


def test_names_may_be_written_in_both_ways():
    assert read_settings(Settings, {"memory_size": 3, "evalOnReset": False}, agent="x") == Settings(
        memory_size=3, eval_on_reset=False
    )


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"memorySise": 3}, "no parameter 'memorySise'; did you mean memorySize"),
        ({"zzz": 3}, "known are: memorySize"),
        ({"memorySize": -1}, r"agent.parameters.memorySize of agent debug_agent: Expected `int` >= 0"),
        ({"evalOnReset": "yes"}, "agent.parameters.evalOnReset"),
        ({"rewritesBeforePdb": 2}, "no parameter 'rewritesBeforePdb'"),
    ],
)
def test_wrong_parameters_are_named(parameters, complaint):
    with pytest.raises(ManifestError, match=complaint):
        load_agent("debug_agent").arrange_tools(("pdb",), parameters)


def test_tools_get_the_agents_options_and_keep_the_manifests():
    agent = load_agent("debug_5_agent")
    own = ToolSpec(name="eval", options={"onRewrite": False})
    tools = agent.arrange_tools(("pdb", own, "view"), {"rewrites_before_pdb": 2})
    assert tools == (ToolSpec(name="pdb", options={"afterRewrites": 2}), own, "view")
    assert agent.arrange_tools(("eval",), {"evalOnRewrite": False}) == ("eval",)


def test_the_rewrite_agent_has_no_pdb_whatever_is_asked():
    agent = load_agent("rewrite_agent")
    assert "pdb" not in agent.default_tools
    assert "pdb" in agent.banned_tools
