import re

import pytest

from dgym.documents import read_value
from dgym.errors import ManifestError, ModelConfigError
from dgym.llm import load_models
from dgym.llm._config import parse_settings, read_entries, template, write_template

MINIMAL = {"model": "m"}


def settings(environment=None, **fields):
    return parse_settings({**MINIMAL, **fields}, environment or {})


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "llm.yaml"
        path.write_text(text)
        return path

    return write


def test_without_endpoint_a_model_is_at_openai():
    assert settings().urls == ("https://api.openai.com/v1",)
    assert settings(endpoint="http://one/v1").urls == ("http://one/v1",)
    assert settings(endpoints=["http://one/v1", "http://two/v1"]).urls == ("http://one/v1", "http://two/v1")


def test_references_to_the_environment_are_replaced_at_any_depth():
    found = settings(
        {"KEY": "k-123", "HOST": "node", "N": "5"},
        api_key="${KEY}",
        endpoint="http://${HOST}:${PORT:-8000}/v1",
        headers={"X-Key": "a${KEY}b"},
        generate_kwargs={"extra": [{"name": "${N}"}]},
    )
    assert found.api_key.reveal() == "k-123"
    assert found.urls == ("http://node:8000/v1",)
    assert found.headers["X-Key"].reveal() == "ak-123b"
    assert found.generate_kwargs == {"extra": [{"name": "5"}]}


@pytest.mark.parametrize("environment", [{}, {"KEY": ""}])
def test_a_variable_that_is_not_set_is_named(environment):
    with pytest.raises(ModelConfigError, match="KEY, which is not set or empty; export it"):
        settings(environment, api_key="${KEY}")


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("endpont", "did you mean endpoint?"),
        ("apikey", "did you mean api_key?"),
        ("context_length", "did you mean context_limit?"),
        ("zzz", "the settings are: model, endpoint,"),
    ],
)
def test_an_unknown_setting_names_the_nearest(key, hint):
    with pytest.raises(ModelConfigError, match=re.escape(hint)):
        settings(**{key: 1})


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"model": ""}, "model:"),
        ({"context_limit": "many"}, "context_limit: Expected `int | null`, got `str`"),
        ({"context_limit": 0}, "context_limit:"),
        ({"api_key": 12345678}, "api_key: Expected text; put quotes around it"),
        ({"headers": {"X-Key": 12345678}}, "headers"),
        ({"endpoint": "node:8000"}, "endpoint:"),
        ({"tool_calling": "json"}, "tool_calling: Invalid enum value 'json'"),
        ({"timeout_seconds": 0}, "timeout_seconds:"),
        ({"endpoint": "http://a", "endpoints": ["http://b"]}, "both endpoint and endpoints"),
        ({"api_key": "key-1", "scope": "s"}, "both api_key and scope"),
        ({"api_version": "1", "api_key": "key-1"}, "no endpoint"),
        ({"api_version": "1", "endpoint": "http://a"}, "neither api_key nor scope"),
        ({"cached_input_price": 1}, "no input_price"),
        ({"api": "completions"}, "api: Invalid enum value 'completions'"),
        ({"api": "responses", "cache_control": True}, "remove it, or api: responses"),
        ({"endpoint": "https://user:pass@host/v1"}, "a password in its endpoint"),
    ],
)
def test_wrong_settings_are_explained_without_their_values(fields, complaint):
    with pytest.raises(ModelConfigError) as caught:
        settings(**fields)
    assert complaint in str(caught.value)
    assert "12345678" not in str(caught.value)
    assert "pass@" not in str(caught.value)


def test_an_invalid_entry_does_not_affect_other_models(write):
    path = write("good: {model: m}\nbad: {modle: m}\nworse: 3\n")
    catalog = load_models(path)
    assert catalog.settings("good").model == "m"
    with pytest.raises(ModelConfigError, match="model 'bad' has no setting 'modle'; did you mean model"):
        catalog.open("bad")
    with pytest.raises(ModelConfigError, match="model 'worse' must be a mapping"):
        catalog.open("worse")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a\n- b\n", "must map names of models"),
        ("a: {model: m\nb: sk-secretsecret: [", r"line \d+: not valid YAML"),
        ("no: {model: m}\n", "reads the name False as a value that is not text"),
        ("5: {model: m}\n", "reads the name 5 "),
        ("a: {model: m}\na: {model: n}\n", "line 2: a: is given twice, first in line 1"),
        ("a: {model: m, model: n}\n", "line 1: a.model: is given twice"),
        ("a: {model: m}\n---\nb: {model: n}\n", "contains several documents"),
        ("a: {model: m\n  api_key: sk-secretsecret}\n", "not valid YAML"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole_is_refused_without_quoting_it(write, text, complaint):
    path = write(text)
    with pytest.raises(ModelConfigError, match=complaint) as caught:
        load_models(path)
    assert "secretsecret" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_wrong_configuration_is_the_users_to_repair():
    assert issubclass(ModelConfigError, ManifestError)


def test_a_named_file_must_exist_the_default_one_need_not(tmp_path, monkeypatch):
    monkeypatch.delenv("LLM_CONFIG_FILE_PATH", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ModelConfigError, match="dgym init-llm-config"):
        load_models(tmp_path / "no.yaml")
    catalog = load_models()
    assert catalog.names == ("human",)
    with pytest.raises(ModelConfigError, match=r"unknown model 'x': .*does not exist; `dgym init-llm-config`"):
        catalog.open("x")


def test_in_a_cluster_messages_name_the_charts_value_and_no_path(write, tmp_path):
    path = write("mine: {model: m, temperature: hot}\n")
    catalog = load_models(path, origin="the chart's value agents.llmConfig")
    for name in ("mine", "x"):
        with pytest.raises(ModelConfigError, match=r"the chart's value agents\.llmConfig") as caught:
            catalog.open(name)
        assert str(tmp_path) not in str(caught.value)
    path.write_text("")
    with pytest.raises(ModelConfigError, match=r"agents\.llmConfig does not name a model; set it"):
        load_models(path, origin="the chart's value agents.llmConfig").open("x")


def test_the_environment_variable_points_elsewhere(write, monkeypatch):
    monkeypatch.setenv("LLM_CONFIG_FILE_PATH", str(write("mine: {model: m}\n")))
    assert load_models().names == ("mine", "human")


def test_an_unknown_model_names_the_nearest_or_all(write):
    catalog = load_models(write("qwen-32b: {model: m}\n"))
    with pytest.raises(ModelConfigError, match="did you mean 'qwen-32b'"):
        catalog.open("qwen-32")
    with pytest.raises(ModelConfigError, match="the configured models are: qwen-32b, human"):
        catalog.open("zzz")


def test_a_model_is_opened_once(write):
    catalog = load_models(write("a: {model: m}\n"))
    assert catalog.open("a") is catalog.open("a")
    assert not catalog.is_interactive("a")
    assert catalog.is_interactive("human")


def test_a_person_needs_a_terminal(write):
    with pytest.raises(ModelConfigError, match="needs a terminal"):
        load_models(write("")).open("human")


@pytest.mark.parametrize(
    ("prices", "tokens", "price"),
    [
        ({}, (1000, 1000, 0), None),
        ({"input_price": 2, "output_price": 8}, (1_000_000, 500_000, 0), "6"),
        ({"input_price": "0.15", "output_price": 0.6}, (1, 1, 0), "0.00000075"),
        ({"input_price": 2, "cached_input_price": 0.5, "output_price": 8}, (1_000_000, 0, 400_000), "1.4"),
        ({"input_price": 2}, (1_000_000, 1_000_000, 400_000), "2"),
        ({"input_price": 0, "output_price": 0}, (5, 5, 0), "0"),
    ],
)
def test_prices_are_exact_decimal_numbers(prices, tokens, price):
    assert settings(**prices).price(*tokens) == price


def test_the_template_is_valid_as_it_is_and_with_everything_enabled(tmp_path):
    path = tmp_path / "llm.yaml"
    write_template(path, overwrite=False)
    entry = read_entries(path, {"OPENAI_API_KEY": "sk-1234567"})["gpt-4.1"]
    assert entry.settings.api_key.reveal() == "sk-1234567"

    enabled = read_value(re.sub(r"(?m)^(\s*)#(?=\S)", r"\1", template()))
    assert len(enabled) == 5
    enabled["qwen"].pop("endpoint")
    every = {name: parse_settings(entry, _Anything()) for name, entry in enabled.items()}
    assert every["azure-login"].is_azure
    assert not every["qwen"].is_azure


def test_the_template_shows_every_setting():
    from dgym.llm import ModelSettings

    shown = set(re.findall(r"(?m)^\s*#?(\w+):", template()))
    assert set(ModelSettings.__struct_fields__) <= shown


def test_the_template_is_private_and_overwrites_only_on_request(tmp_path):
    path = tmp_path / "deep" / "llm.yaml"
    assert write_template(path, overwrite=False)
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("mine: {model: m}\n")
    assert not write_template(path, overwrite=False)
    assert path.read_text().startswith("mine")
    assert write_template(path, overwrite=True)
    assert path.read_text() == template()


class _Anything(dict):
    def get(self, key, default=None):
        return "anything"
