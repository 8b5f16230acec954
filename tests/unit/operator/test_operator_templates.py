"""Tests of the check of pod templates, which comes before all other work of the operator."""

import pytest
from click.testing import CliRunner

from dgym_operator.__main__ import main
from dgym_operator.render import check_templates
from dgym_operator.settings import Settings

SETTINGS = Settings(sandbox_image="", sidecar_image="sidecar")


def run(monkeypatch, directory, default="restricted"):
    monkeypatch.setenv("DGYM_OPERATOR_POD_TEMPLATES_DIRECTORY", str(directory))
    monkeypatch.setenv("DGYM_OPERATOR_DEFAULT_POD_TEMPLATE", default)
    return CliRunner().invoke(main, ["run", "--kubeconfig", str(directory / "none")])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("apiVersion: v1\n{% if %}", "gpu.yaml.j2, line 2"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {labels: {team: {{ labels.team }}}}", "'labels' is undefined"),
        ("apiVersion: v1\nkind: Service", "is not a Pod"),
        ("{% extends 'restrictd' %}", "did you mean 'restricted'"),
    ],
)
def test_a_template_that_gives_no_pod_ends_the_process_with_its_name(monkeypatch, tmp_path, text, error):
    (tmp_path / "gpu.yaml.j2").write_text(text)
    done = run(monkeypatch, tmp_path)
    assert done.exit_code == 2
    assert "gpu" in done.output
    assert error in done.output


def test_an_unknown_default_template_ends_the_process(monkeypatch, tmp_path):
    done = run(monkeypatch, tmp_path, default="restrictd")
    assert done.exit_code == 2
    assert "pod template 'restrictd' does not exist; did you mean 'restricted'?" in done.output


def test_the_shipped_templates_pass(tmp_path):
    (tmp_path / "own.yaml.j2").write_text("{% extends 'baseline' %}")
    check_templates(SETTINGS.model_copy(update={"pod_templates_directory": tmp_path, "default_pod_template": "own"}))
