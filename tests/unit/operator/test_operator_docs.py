from pathlib import Path

from click.testing import CliRunner

from dgym_operator.__main__ import main

PAGE = Path(__file__).parents[3] / "docs" / "operator.md"
ROOT = PAGE.parents[1]


def test_the_page_shows_every_setting_as_the_program_does():
    shown = CliRunner().invoke(main, ["settings"])
    assert shown.exit_code == 0
    assert shown.output in PAGE.read_text()


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
