import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from dgym_operator.__main__ import main
from dgym_operator.chart_values import NamespacePolicies
from dgym_operator.settings import PREFIX, Settings, settings_table


def test_settings_are_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("DGYM_OPERATOR_WATCH_NAMESPACES", "team-a, team-b,")
    monkeypatch.setenv("DGYM_OPERATOR_HEAD_START", "9")
    settings = Settings()
    assert settings.watch_namespaces == ("team-a", "team-b")
    assert settings.namespaces == ("team-a", "team-b")
    assert settings.head_start == 9


def test_an_empty_list_of_namespaces_means_all():
    assert Settings(watch_namespaces="").namespaces == (None,)


def test_settings_do_not_change():
    with pytest.raises(ValidationError):
        Settings().port = 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"network_policy": "perhaps"},
        {"port": 70000},
        {"head_start": -1},
    ],
)
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        Settings(**wrong)


def test_the_table_names_every_setting_with_its_default():
    table = settings_table()
    assert all(f"| `{PREFIX}{name.upper()}` |" in table for name in Settings.model_fields)
    assert "| `DGYM_OPERATOR_AGENT_PORT` | `8081` | Port of the agent pods. |" in table


def test_an_override_inherits_what_it_leaves_out(monkeypatch):
    overrides = '{"a": {"weight": 3}, "b": {"maxActive": null}, "c": null}'
    text = f'{{"defaults": {{"weight": 2, "maxActive": 5}}, "overrides": {overrides}}}'
    monkeypatch.setenv("DGYM_OPERATOR_NAMESPACE_POLICIES", text)
    policies = Settings().namespace_policies
    assert [(policies.of(name).weight, policies.of(name).max_active) for name in "abcd"] == [
        (3, 5),
        (2, None),
        (2, 5),
        (2, 5),
    ]
    assert policies.place("a", "weight") == "namespaces.overrides.a.weight"
    assert policies.place("d", "weight") == "namespaces.defaults.weight"
    assert Settings(namespace_policies="").namespace_policies == NamespacePolicies()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"overrides": {"research": {"weight": 0}}}',
            "namespaces.overrides.research.weight: Expected `int` >= 1, got 0; give a whole number from 1 to 1000",
        ),
        ('{"defaults": {"maxActive": "many"}}', "namespaces.defaults.maxActive: Expected `int | null`, got `str`"),
        ('{"defaults": {"maxActive": 1.5}}', "got 1.5; give a whole number, or remove the field for no limit"),
        (
            '{"overrides": {"research": {"maxactive": 5}}}',
            "namespaces.overrides.research: Object contains unknown field `maxactive`; its fields are weight, ",
        ),
        (
            '{"defaults": {"allowed": {"images": "registry.example/*"}}}',
            "namespaces.defaults.allowed.images: Expected `array | null`, got `str`, got 'registry.example/*'; give",
        ),
        (
            '{"defaults": {"allowed": {"image": []}}}',
            "namespaces.defaults.allowed: Object contains unknown field `image`; its fields are annotations, labels,",
        ),
        (
            '{"overrides": {"research": {"limits": {"maxSteps": -1}}}}',
            "namespaces.overrides.research.limits.maxSteps: Expected `int` >= 0, got -1; give a whole number",
        ),
        (
            '{"defaults": {"limits": 5}}',
            "namespaces.defaults.limits: Expected `object`, got `int`; its fields are priority",
        ),
        ('{"override": {}}', "it has the fields defaults and overrides"),
        ("weight: 1", "not JSON"),
    ],
)
def test_wrong_policies_are_refused_by_field_value_and_remedy(monkeypatch, text, message):
    monkeypatch.setenv("DGYM_OPERATOR_NAMESPACE_POLICIES", text)
    done = CliRunner().invoke(main, ["render", __file__])
    assert done.exit_code == 2
    assert message in done.stderr, done.stderr
