"""Tests of the code in docs/writing-a-tool.md."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "writing-a-tool.md"


@pytest.fixture
def tools(monkeypatch, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "my_tools.py").write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "my_tools", raising=False)
    return ["rewrite", "my_tools:WordCount", "my_tools:Lint"]


async def test_the_tools_of_the_page_work(make_bench, tools):
    bench = await make_bench({"calc.py": "x = 1\n", "a.txt": "one two\n"}, tools=tools)
    assert await bench.text("word_count a.txt") == "2 words in a.txt"
    assert await bench.text({"tool": "word_count", "arguments": {"path": "calc.py"}}) == "3 words in calc.py"
    assert await bench.text("lint calc.py") == "No errors."
    assert "`a.txt` is not a Python file." in await bench.text("lint a.txt")
    assert "`timeout_seconds` is out of range: it must be an integer from 1" in await bench.text("lint calc.py 0")
    assert "does not exist" in await bench.text("word_count b.txt")


async def test_the_event_of_the_page_reports_a_broken_rewrite(make_bench, tools):
    bench = await make_bench({"calc.py": "x = 1\n"}, tools=tools)
    assert "syntax error" not in await bench.text("rewrite calc.py 1 <c>x = 2</c>")
    assert "The file has a syntax error now:" in await bench.text("rewrite calc.py 1 <c>x = = 2</c>")
