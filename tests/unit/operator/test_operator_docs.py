from pathlib import Path

from click.testing import CliRunner

from dgym.episodes.agent_pod import AgentPodSettings
from dgym_operator.__main__ import main
from dgym_operator.settings import Settings, settings_table

ROOT = Path(__file__).parents[3]


def test_the_program_prints_every_setting_with_default_and_meaning():
    shown = CliRunner().invoke(main, ["settings"])
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert lines[:2] == ["| variable | default | meaning |", "|---|---|---|"]
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        f"| `DGYM_OPERATOR_{name.upper()}`" for name in Settings.model_fields
    ]
    assert "| `DGYM_OPERATOR_API_QPS` | `300` | Writes per second to the API server" in shown.output
    assert "| `DGYM_OPERATOR_SANDBOX_IMAGE` |  | Image of tasks without an image." in shown.output
    assert all(field.description for field in Settings.model_fields.values())


def test_the_settings_of_agent_pods_are_shown_alike():
    rows = settings_table(AgentPodSettings)
    assert "| `DGYM_AGENT_SLOTS` | `16` | episodes at the same time |" in rows
    assert rows.count("| `DGYM_AGENT_") == len(AgentPodSettings.model_fields)
    assert all(field.description for field in AgentPodSettings.model_fields.values())


def test_pods_are_printed_without_a_cluster(monkeypatch):
    monkeypatch.setenv("DGYM_OPERATOR_SIDECAR_IMAGE", "registry.example/sidecar:1")
    shown = CliRunner().invoke(main, ["render", str(ROOT / "examples" / "episode.yaml")])
    assert shown.exit_code == 0, shown.output
    assert "registry.example/sidecar:1" in shown.output


def test_a_wrong_manifest_is_named(tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("kind: Episod\n")
    shown = CliRunner().invoke(main, ["render", str(wrong)])
    assert shown.exit_code == 1
    assert "did you mean 'Episode'" in shown.output


def test_definitions_are_printed():
    shown = CliRunner().invoke(main, ["crds"])
    assert shown.output.count("kind: CustomResourceDefinition") == 4


def test_a_wrong_setting_is_named_with_its_value(monkeypatch):
    monkeypatch.setenv("DGYM_OPERATOR_PORT", "many")
    monkeypatch.setenv("DGYM_OPERATOR_NETWORK_POLICY", "maybe")
    shown = CliRunner().invoke(main, ["run"])
    assert shown.exit_code == 2
    assert "DGYM_OPERATOR_PORT is 'many': Input should be a valid integer" in shown.output
    assert (
        "DGYM_OPERATOR_NETWORK_POLICY is 'maybe': Input should be 'required', 'enabled' or 'disabled'" in shown.output
    )
