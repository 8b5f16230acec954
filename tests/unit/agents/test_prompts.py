import pytest

from dgym.agents.prompt import InlineTemplate, Prompt
from dgym.errors import ManifestError

TOOLS = ("pdb", "view", "rewrite", "eval", "submit")


def info(*names, **more):
    tools = [{"name": name, "description": name, "parameters": {}} for name in names]
    return {
        "instructions": {"task": "Sums are wrong.", **{name: f"how to {name}" for name in TOOLS}},
        "tools": tools,
        "evaluation": "1 failed",
        "breakpoints": [],
        "notices": [],
        **more,
    }


def head(known, views=None, *, system=None, task=None, base=None, **more):
    prompt = Prompt(system, task, base=base, count=lambda said: len(said[0].content) // 4)
    return prompt.head(known, views or {}, eval_on_rewrite=True, window=4_000, **more)


def test_everything_known_is_in_the_prompt():
    point = {"number": 2, "file": "a.py", "line": 3, "condition": "x > 1", "ignore_count": 1, "enabled": False}
    known = info(*TOOLS, breakpoints=[{**point, "temporary": True, "hits": 1}], notices=["mind the gap"])
    system, task = head(known, {"tree": "a.py\nb.py", "file": "a.py, lines 1 to 2 of 2"})
    assert (system.role, task.role) == ("system", "user")
    assert all(f"how to {name}" in system.content for name in TOOLS)
    shown = ("Sums are wrong.", "a.py\nb.py", "2: a.py:3, if x > 1, ignored 1 time, once, disabled, hit 1 time\n")
    for text in (*shown, "1 failed", "lines 1 to 2 of 2", "mind the gap"):
        assert text in task.content


def test_without_pdb_nothing_speaks_of_it():
    system, task = head(info("view", "rewrite", "eval", "submit"))
    assert "pdb" not in system.content + task.content
    assert "reakpoint" not in system.content + task.content


def test_each_section_keeps_to_its_share():
    known = info(*TOOLS, evaluation="e" * 100_000)
    _, task = head(known, {"tree": "t" * 100_000, "file": "f" * 100_000})
    assert task.content.count("characters left out") == 3
    assert len(task.content) < 4_000 * 4
    _, least = head(known, {"tree": "t" * 100_000, "file": "f" * 100_000}, scale=0.0)
    assert "Sums are wrong." in least.content
    assert "eee" not in least.content


def test_a_template_of_the_users_replaces_ours_and_may_use_it(tmp_path):
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
