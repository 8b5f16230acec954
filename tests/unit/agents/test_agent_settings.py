import msgspec
import pytest

from dgym.agents import load_agent
from dgym.agents.model_agent import _VALID, LateDebuggerSettings, Settings, read_settings
from dgym.api import ToolSpec
from dgym.errors import ManifestError


def test_names_may_be_written_in_both_ways():
    assert read_settings(Settings, {"tree_depth": 3, "evalOnReset": False}, agent="x") == Settings(
        tree_depth=3, eval_on_reset=False
    )


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"treeDeph": 3}, "no parameter 'treeDeph'; did you mean treeDepth"),
        ({"zzz": 3}, "the parameters are: compaction"),
        ({"treeDepth": -1}, r"treeDepth of agent debug_agent is '-1'; it must be an integer from 0 to 20"),
        (
            {"evalOnReset": "yes"},
            "agent.parameters.evalOnReset of agent debug_agent is 'yes'; it must be true or false",
        ),
        ({"compaction": "cut"}, "agent.parameters.compaction of agent debug_agent is 'cut'; it must be elide or stop"),
        ({"systemPrompt": {"text": "x"}}, r"systemPrompt of agent debug_agent is .*; it must be a path, or \{inline"),
        ({"memory_size": 3}, "no parameter 'memorySize'"),
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


def test_the_rewrite_agent_cannot_have_pdb():
    agent = load_agent("rewrite_agent")
    assert "pdb" not in agent.default_tools
    assert "pdb" in agent.banned_tools


def test_the_bash_agent_has_a_shell_and_nothing_else():
    agent = load_agent("bash_agent")
    assert agent.default_tools == ("bash", "submit")
    assert {"pdb", "rewrite", "view", "eval"} <= set(agent.banned_tools)


def test_every_parameter_has_a_remedy():
    known = {field.encode_name for kind in (Settings, LateDebuggerSettings) for field in msgspec.structs.fields(kind)}
    assert set(_VALID) == known
