"""Tests of the figures of `dgym report --plot`."""

import asyncio
import importlib
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

from dgym.cli.app import cli
from dgym.results import Record, StoredResult, TrajectoryHeader, episode_path
from dgym.results.report import read_run
from dgym.wire import EndReason, Observation, Step, ToolCall

HOSTILE = "arm $\\frac{x$ <script>\x1b[31m\u202e"


@pytest.fixture(scope="module")
def plots():
    """Import the module here, because it imports matplotlib and would slow down the collection of tests."""
    return importlib.import_module("dgym.cli.plots")


@pytest.fixture
def dgym(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli, ["report", "results", *arguments])


def play(root, arm, number, reason, *tools, **fields):
    record = Record.new(root / "results", episode_path("local", f"e-{number}", "d"))
    record.begin(TrajectoryHeader())
    record.write(Step(seq=0, call=None, observation=Observation(text="x", tool="reset")))
    for seq, tool in enumerate(tools, start=1):
        observation = Observation(text="y", tool=tool, duration_seconds=0.25)
        record.write(Step(seq=seq, call=ToolCall(tool=tool), observation=observation))
    values = {"episode": f"e-{number}", "task": f"t-{number}", "agent": "debug", "arm": arm, "steps": len(tools)}
    result = StoredResult(resolved=reason is EndReason.RESOLVED, reason=reason, **{**values, **fields})
    asyncio.run(record.finish(result))


@pytest.fixture
def results(tmp_path):
    play(tmp_path, HOSTILE, 1, EndReason.RESOLVED, "view", "pdb", "rewrite", input_tokens=1000, price="0.5")
    tools = ("view", "view", "view", "bash")
    play(tmp_path, HOSTILE, 2, EndReason.STEP_LIMIT_REACHED, *tools, input_tokens=9, price="0.1")
    play(tmp_path, "plain", 3, EndReason.RESOLVED, "pdb", input_tokens=500)
    play(tmp_path, "plain", 4, EndReason.SETUP_FAILED)
    return tmp_path


def test_one_file_a_figure_and_the_same_bytes_again(plots, dgym, results):
    done = dgym("--plot", "a.svg")
    assert done.exit_code == 0, done.output
    assert dgym("--plot", "b.svg").exit_code == 0
    for name in plots.FIGURES:
        first, second = ((results / f"{letter}-{name}.svg").read_bytes() for letter in "ab")
        assert first == second
        # The XML is well-formed for any name of an arm, and it does not contain a script.
        assert not [each for each in ET.fromstring(first).iter() if each.tag.endswith("script")]


@pytest.mark.parametrize("target", ["there", "there/", "new/deeper/"])
def test_a_directory_takes_every_figure_by_its_name(plots, dgym, results, target):
    (results / "there").mkdir()
    done = dgym("--plot", target)
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (results / target).iterdir()) == sorted(f"{name}.svg" for name in plots.FIGURES)
    assert dgym("--plot", target, "--figure", "steps").exit_code == 0


def test_a_single_figure_has_the_name_that_is_given(dgym, results):
    done = dgym("--plot", "rates.png", "--figure", "resolve-rate")
    assert done.exit_code == 0, done.output
    assert (results / "rates.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in results.glob("*.png")] == ["rates.png"]


def test_an_arm_is_measured_by_its_outcomes(plots, results):
    run = read_run([results / "results"])
    other, plain = plots.arms_of(run, 0.95, {})
    assert other.label == "arm $\\frac{x$ <script>\\x1b[31m\\u202e"
    assert other.rate[0] == 0.5
    assert plain.rate[0] == 1.0
    assert other.resolved_within == [(0, 0.0), (3, 0.5), (4, 0.5)]
    assert other.cost == pytest.approx(0.3)
    assert plain.cost is None
    assert plain.thousands_of_tokens == 0.25
    names = plots._common_tools([other, plain])
    assert names[0] == "view"
    assert names[-1] == "others"
    shares = plots._tool_shares(other, names)
    assert (shares["view"], shares["pdb"]) == ([1.0, 0.5, 0.5, 0.0], [0.0, 0.5, 0.0, 0.0])


def test_without_arms_agents_and_models_are_compared(plots, tmp_path):
    play(tmp_path, "", 1, EndReason.RESOLVED, "view", model="m")
    (arm,) = plots.arms_of(read_run([tmp_path / "results"]), 0.95, {})
    assert arm.label == "debug m"


def test_a_label_is_short(plots):
    assert len(plots._shown("x" * 500)) == 36


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--plot", "a.pdf"), "must end in .svg or .png"),
        (("--plot", "new"), "a directory, with a slash if it is new"),
        (("--plot", "results/local/e-1/d/1/result.json/"), "File exists"),
        (("--plot", "nowhere/a.svg"), "nowhere"),
        (("--figure", "steps"), "--figure requires --plot"),
        (("--plot", "a.svg", "--compare", "results"), "--plot draws one run"),
    ],
)
def test_a_wrong_option_is_reported_with_a_remedy(dgym, results, arguments, expected):
    done = dgym(*arguments)
    assert done.exit_code == 2
    assert expected in done.output


def test_without_the_extra_the_option_names_it(dgym, results, monkeypatch):
    monkeypatch.delitem(sys.modules, "dgym.cli.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = dgym("--plot", "a.svg")
    assert "pip install 'dgym[plot]'" in f"{done.output}{done.exception}"


def test_no_other_command_imports_matplotlib():
    program = "import sys, dgym.cli.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=90).returncode == 0
