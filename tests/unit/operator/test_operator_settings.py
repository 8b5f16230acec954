import pytest
from pydantic import ValidationError

from dgym_operator.settings import PREFIX, Settings, settings_table


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("DGYM_OPERATOR_WATCH_NAMESPACES", "team-a, team-b,")
    monkeypatch.setenv("DGYM_OPERATOR_HEAD_START", "9")
    settings = Settings()
    assert settings.watch_namespaces == ("team-a", "team-b")
    assert settings.namespaces == ("team-a", "team-b")
    assert settings.head_start == 9


def test_no_namespaces_mean_all():
    assert Settings(watch_namespaces="").namespaces == (None,)


def test_settings_do_not_change():
    with pytest.raises(ValidationError):
        Settings().port = 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_renew_seconds": 15},
        {"lease_retry_seconds": 10},
        {"network_policy": "perhaps"},
        {"port": 70000},
        {"workers": 0},
    ],
)
def test_what_cannot_work_is_refused_at_the_start(wrong):
    with pytest.raises(ValidationError):
        Settings(**wrong)


def test_the_table_names_every_setting_with_its_default():
    table = settings_table()
    assert all(f"| `{PREFIX}{name.upper()}` |" in table for name in Settings.model_fields)
    assert "| `DGYM_OPERATOR_AGENT_PORT` | `8081` | Where agents listen. |" in table
