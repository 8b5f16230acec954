import pytest

from dgym.agents._prompt import InlineTemplate, Prompt, advice
from dgym.errors import ManifestError

TOOLS = ("pdb", "view", "rewrite", "eval", "submit")


def info(*names, **more):
    tools = [{"name": name, "description": name, "parameters": {}} for name in names]
    return {
        "instructions": {"task": "Sums are wrong.", **{name: f"how to {name}" for name in TOOLS}},
        "tools": tools,
        "evaluation": "1 failed",
        "notices": [],
        **more,
    }


def head(known, tree="", *, system=None, task=None, base=None, **more):
    prompt = Prompt(system, task, base=base, count=lambda messages: len(messages[0].content) // 4)
    return prompt.head(known, known["tools"], tree, eval_on_rewrite=True, window=4_000, **more)


def test_everything_known_is_in_the_prompt():
    system, task = head(info(*TOOLS, notices=["mind the gap"]), "a.py\nb.py")
    assert (system.role, task.role) == ("system", "user")
    assert "watch the program with pdb" in system.content
    for text in ("Sums are wrong.", "a.py\nb.py", "1 failed", "mind the gap"):
        assert text in task.content


def test_tools_are_described_in_the_system_message_only_for_models_without_tool_calls():
    system, _ = head(info(*TOOLS))
    assert "how to view" not in system.content
    assert "<call>" not in system.content
    system, _ = head(info(*TOOLS), in_text=True)
    assert system.content.count("- view: view") == 1
    assert "<call>" in system.content


def test_without_pdb_the_prompts_do_not_mention_it():
    system, task = head(info("view", "rewrite", "eval", "submit"))
    assert "pdb" not in system.content + task.content
    assert "reakpoint" not in system.content + task.content


def test_the_prompts_differ_only_in_the_advice_on_pdb():
    (with_pdb, _), (without, _) = head(info(*TOOLS)), head(info(*TOOLS[1:]))
    assert without.content == with_pdb.content.replace(advice("pdb") + "\n", "")


def test_long_sections_are_shortened_to_their_share():
    _, task = head(info(*TOOLS, evaluation="e" * 100_000), "t" * 100_000)
    assert task.content.count("characters left out") == 2
    assert len(task.content) < 4_000 * 4


@pytest.mark.parametrize("name", ["file", "breakpoints"])
def test_a_template_with_a_name_that_is_gone_is_refused_with_the_successor(name):
    with pytest.raises(ManifestError, match=f"'{name}' is undefined; the observation"):
        head(info(*TOOLS), task=InlineTemplate(inline=f"{{{{ {name} }}}}"))


def test_a_template_of_the_user_can_include_the_default_template(tmp_path):
    (tmp_path / "mine.j2").write_text('Be quick.\n{% include "system.j2" %}')
    system, _ = head(info(*TOOLS), system="mine.j2", base=tmp_path)
    assert system.content.startswith("Be quick.\nYou are a debugging agent.")


def test_a_template_may_be_written_inline_and_use_ours():
    system, _ = head(info(*TOOLS), system=InlineTemplate(inline='Be quick.\n{% include "system.j2" %}'), base=None)
    assert system.content.startswith("Be quick.\nYou are a debugging agent.")
    with pytest.raises(ManifestError, match=r"taskPrompt\.inline:2 cannot be used"):
        head(info(*TOOLS), task=InlineTemplate(inline="a\n{% if %}"))


@pytest.mark.parametrize(
    ("template", "complaint"),
    [("{% if %}", "mine.j2:1 cannot be used"), ("{{ nothing }}", "mine.j2 cannot be used: 'nothing' is undefined")],
)
def test_a_broken_template_is_named(tmp_path, template, complaint):
    (tmp_path / "mine.j2").write_text(template)
    with pytest.raises(ManifestError, match=complaint):
        head(info(*TOOLS), task="mine.j2", base=tmp_path)


def test_a_missing_template_is_named(tmp_path):
    with pytest.raises(ManifestError, match=r"nowhere\.j2 cannot be used"):
        head(info(*TOOLS), task="nowhere.j2", base=tmp_path)
