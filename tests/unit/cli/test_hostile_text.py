"""Tests of untrusted text that is printed on a terminal, and of formulas in CSV files for a spreadsheet."""

import asyncio
import csv
import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import dgym.cli
from dgym.api import load
from dgym.cli.app import cli
from dgym.cli.output import add_row, console, echo, echo_json, table, text
from dgym.cli.run import ProgressPrinter
from dgym.results import Record, StoredResult, TrajectoryHeader, episode_path
from dgym.terminal import printable
from dgym.wire import EndReason

pytestmark = pytest.mark.attack("terminal")

HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202eevil\u2066\u200b"
SHOWN = r"\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202eevil\u2066\u200b"
TEXT = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(HOSTILE)))


def test_only_one_module_prints():
    found = {
        f"{path.name}: {call}"
        for path in Path(dgym.cli.__file__).parent.rglob("*.py")
        for call in re.findall(
            r"(?<![\w.])(?<!def )(?:click\.echo|print|Console|click\.secho|sys\.std\w+\.write)\(", path.read_text()
        )
    }
    assert found == {"__init__.py: sys.stderr.write(", "output.py: Console(", "output.py: click.echo("}


@given(TEXT, TEXT)
def test_all_output_is_printable(one, two):
    runner = CliRunner()
    with runner.isolation(color=True) as (out, err, *_):
        echo(one)
        echo(two, err=True)
        echo_json({"value": one})
        ProgressPrinter(total=1, verbose=True).print_line(two)
        screen = console()
        screen.print(text(one))
        drawn = table(("A", "B"), breaking=("A",))
        add_row(drawn, [one, two])
        screen.print(drawn)
        shown = (out.getvalue() + err.getvalue()).decode()
    assert printable(shown) == shown


@pytest.fixture
def dgym_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")

    def run(*arguments):
        done = CliRunner().invoke(cli, list(arguments), color=True)
        shown = done.stdout + done.stderr
        assert printable(shown) == shown
        return done

    return run


@pytest.fixture
def results(tmp_path):
    names = {"task": f"=cmd|{HOSTILE}", "agent": f"@agent\n{HOSTILE}", "model": "-2+3"}
    record = Record.new(tmp_path / "results", episode_path("local", "one", "d"))
    record.begin(TrajectoryHeader())
    result = StoredResult(resolved=True, reason=EndReason.RESOLVED, episode="one", duration_seconds=-1.5, **names)
    asyncio.run(record.finish(result))
    return names


def test_figures_of_foreign_results(dgym_in, results):
    assert SHOWN in dgym_in("report").stdout
    assert rf"@agent\n{SHOWN}" in dgym_in("report").stdout
    assert SHOWN in dgym_in("report", "--compare", "results").stdout


def test_json_output_is_printable_and_lossless(dgym_in, results):
    (episode,) = json.loads(dgym_in("report", "--output", "json").stdout)["episodes"]
    assert {name: episode[name] for name in results} == results


def test_csv_cells_are_not_interpreted_as_formulas(dgym_in, results):
    (line,) = csv.DictReader(io.StringIO(dgym_in("report", "--output", "csv").stdout))
    assert line["task"] == f"'=cmd|{SHOWN}"
    assert line["agent"] == f"'@agent\n{SHOWN}"
    assert line["model"] == "'-2+3"
    assert line["seconds"] == "-1.5"


def test_names_in_a_hostile_repository(dgym_in, tmp_path):
    root = tmp_path / f"repo{HOSTILE}"
    for name in (f"test_{HOSTILE}.py", f"{HOSTILE}\nNext: rm.pem", f"{HOSTILE}/node_modules/x"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (root / "requirements.txt").write_text(f"evil @ https://{HOSTILE}\n")
    done = dgym_in("init", root.name)
    assert done.exit_code == 0, done.output
    assert SHOWN in done.stdout
    assert SHOWN in done.stderr
    assert "\nNext: rm" not in done.output
    (manifest,) = tmp_path.glob("*.yaml")
    assert printable(manifest.read_text()) == manifest.read_text()
    assert load(manifest)[0].spec.task.source.local_path == str(root)
    assert dgym_in("init", root.name, "--output", "-").stdout.startswith("# One debugging episode.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", f"{HOSTILE}.yaml"],
        ["validate", "x.yaml"],
        ["run", "x.yaml", "--agent", HOSTILE],
        ["run", "x.yaml", "-p", f"{HOSTILE}=1"],
        ["run", "x.yaml", "--sandbox", HOSTILE],
        ["run", f"--{HOSTILE}"],
        ["replay", "x.yaml"],
        [f"--{HOSTILE}"],
        [HOSTILE],
    ],
)
def test_messages_quote_what_is_wrong(dgym_in, tmp_path, arguments):
    manifest = {"apiVersion": "dgym.dev/v1alpha1", "kind": HOSTILE, "metadata": {"name": HOSTILE}, "spec": {HOSTILE: 1}}
    (tmp_path / "x.yaml").write_text(json.dumps(manifest))
    done = dgym_in(*arguments)
    assert done.exit_code == 2
    assert "Error: " in done.stderr
