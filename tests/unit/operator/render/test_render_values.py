"""Tests of values: any text of a user is data."""

import re

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dgym.api import PodOverrides, Toleration
from dgym_operator.render._environment import literal, quoted

pytestmark = pytest.mark.attack("text-in-pods")

HOSTILE = [
    '"',
    "'",
    "\\",
    '", "x": "',
    "a\nhostNetwork: true",
    "a\r\n  privileged: true",
    "{{ 7 * 7 }}",
    "{% for x in range(9) %}",
    "{# hidden #}",
    "}}",
    "!!python/object/apply:os.system [id]",
    "&a *a",
    "- - -",
    "--- \n...",
    "# comment",
    "\0",
    "\x7f",
    "\x85 \u2028 \u2029 \ufeff \ufffe",
    "\x1b[31m",
    "\N{GRINNING FACE}",
    "null",
    "true",
    "1e3",
    "12:30",
    "2024-01-01",
    "0x10",
    "",
    " ",
    "\\u0022",
    "\\ud83d\\ude00",
    "$(PATH) $$(PATH) $",
]
texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=200))


def shape(value):
    """Return the structure of a value: its keys, lengths and types."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def expand(text, environment):
    """Expand ``$(NAME)`` as the kubelet does: unknown names stay, and a double dollar becomes a single dollar."""

    def replace(match):
        if match[0] == "$$":
            return "$"
        return environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)


@pytest.mark.parametrize("value", HOSTILE)
def test_quoted_text_is_read_back_by_yaml(value):
    written = str(quoted(value))
    assert written.isascii()
    assert written.isprintable()
    assert yaml.load(written, yaml.CSafeLoader) == value
    assert yaml.safe_load(f"a: {{b: [{written}], c: 1}}") == {"a": {"b": [value], "c": 1}}


@given(st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=3)))
def test_quoted_values_are_read_back_by_yaml(value):
    assert yaml.load(f"key: {quoted(value)}", yaml.CSafeLoader) == {"key": value}


@given(texts)
def test_kubernetes_expands_nothing_of_a_literal(text):
    environment = {"PATH": "/bin", "TMPDIR": "/tmp", "": "empty"}
    assert expand(literal(text), environment) == text


@given(image=texts, interpreter=texts, directory=texts, text=texts)
@example(image='x", "y": "', interpreter="$(TMPDIR)", directory="a\nb", text="{{ pod }}")
def test_texts_of_a_task_never_change_the_structure_of_the_pod(
    renderer, make_context, container, image, interpreter, directory, text
):
    def render(image, interpreter, directory, text):
        overrides = PodOverrides(
            node_selector={"pool": text},
            labels={"team": text},
            annotations={"note": text},
            runtime_class_name=text or "x",
            tolerations=(Toleration(key=text or "x", operator="Exists"),),
        )
        task = {"image": image or "x", "interpreter": interpreter, "working_directory": f"/w/{directory}"}
        return renderer.render("restricted", make_context(task=task, overrides=overrides, delivered=False))

    directory = directory.replace(":", "_").replace("/", "_").strip(".")
    pod = render(image, interpreter, directory, text)
    assert shape(pod) == shape(render("image", "python3", "directory", "text"))
    sandbox, copy = container(pod, "sandbox"), container(pod, "copy")
    assert sandbox["image"] == (image or "x")
    assert expand(sandbox["command"][0], {"TMPDIR": "/tmp"}) == interpreter
    path = f"/w/{directory}" if directory else "/w"
    assert sandbox["volumeMounts"][-1]["mountPath"] == path
    assert expand(copy["command"][7], {}) == path
    assert {each["name"]: expand(each["value"], {}) for each in sandbox["env"]}["GIT_CONFIG_VALUE_0"] == path
    assert pod["metadata"]["annotations"]["note"] == text
    assert pod["metadata"]["labels"]["team"] == text
    assert pod["spec"]["nodeSelector"] == {"pool": text}


@given(name=texts, uid=texts)
def test_names_do_not_change_the_structure_of_the_pod(renderer, make_context, container, name, uid):
    context = make_context(episode=name, episode_uid=uid, namespace=name, labels={"dgym.dev/set": name})
    pod = renderer.render("baseline", context)
    environment = {each["name"]: expand(each["value"], {}) for each in container(pod, "sidecar")["env"]}
    assert environment["DGYM_SIDECAR_EPISODE"] == f"{name}/{name}"
    assert environment["DGYM_SIDECAR_EPISODE_UID"] == uid
    assert pod["metadata"]["namespace"] == name
    msgspec.json.encode(pod)
