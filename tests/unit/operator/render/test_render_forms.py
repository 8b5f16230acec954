"""Tests of forms. A pod from a form must equal the pod from rendering."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgym.api import PodOverrides
from dgym.documents import read_yaml
from dgym_operator.render import Renderer, TemplateError

LOOKS = (
    "{% if episode.name == 'a' %}x{% endif %}",
    "{{ episode.name | upper }}",
    "{{ episode.name ~ '-x' }}",
    "{{ pod.name[:3] }}",
    "{{ pod.name | length }}",
    "{{ episode.uid is string }}",
    "{{ episode.uid is defined }}",
    "{{ task.image is none }}",
    "{{ task.image is sequence }}",
    "{{ task.image if task.image else 'none' }}",
    "{{ episode.name | int(7) }}",
    "{{ episode.name | float(7.5) }}",
    "{{ episode.name in ['a', 'b'] }}",
    "{{ [episode.name, pod.name] | sort }}",
    "{{ [episode.name, 'b'] | unique | list }}",
    "{{ [episode.name, 'b'] | max }}",
    "{{ {'k': episode.name}['k'] }}",
    "{{ {episode.name: 1} }}",
    "{{ pod.labels | length }}",
    "{{ pod.labels.values() | list }}",
    "{{ pod.labels | dictsort(by='value') }}",
    "{{ pod.labels['dgym.dev/episode'] | default('none') }}",
    "{{ episode.name | default('none', true) }}",
    "{{ episode.name.upper is defined }}",
    "{{ [episode.uid, sidecar.digests.drive] | join(',') }}",
    "{{ [episode.uid | json, sidecar.digests.drive | json] | join(',') | json }}",
    "{{ '%s!' % episode.name }}",
    "{{ '{}!'.format(episode.name) }}",
    "{{ range(3) | list + [episode.name] }}",
    "{{ [episode.name] * 2 }}",
    "{{ not episode.name }}",
    "{{ [episode, pod] | map(attribute='name') | map('upper') | list }}",
    "{{ [{'name': episode.name}] | groupby('name') | list }}",
    "{{ episode.path | literal }} # {{ episode.name }}",
    "{{ [episode.path | literal, task.image] }}",
    "{{ episode.nothing }}",
    "{% set name = episode.name %}{{ [name, name] }}",
    "{% macro shown(x) %}{{ x }}{% endmacro %}{{ shown(episode.name) }}",
    "{% for name, value in pod.labels.items() %}{{ loop.changed(value) }}{% endfor %}",
)
TEXTS = st.text("ab-.$\"'\\/é\n:#{ ", max_size=6) | st.sampled_from(["", "a", "b", "5", "null", "$(X)", "x" * 1001])
KEYS = st.sampled_from(["team", "dgym.dev/index", "dgym.dev/set", "dgym.dev/sample"])


@st.composite
def changes(draw):
    labels = st.dictionaries(KEYS, TEXTS, max_size=3)
    return {
        "name": draw(TEXTS),
        "namespace": draw(st.sampled_from(["team", "other"])),
        "episode": draw(TEXTS),
        "episode_uid": draw(TEXTS),
        "attempt": draw(st.integers(1, 2)),
        "labels": draw(labels),
        "overrides": PodOverrides(annotations=draw(labels)),
        "digests": {"prepare": draw(TEXTS), "drive": draw(TEXTS), "operate": "c"},
        "delivered": draw(st.booleans()),
        "task": {"image": draw(TEXTS.filter(bool) | st.none())},
    }


def outcome(renderer, template, context):
    try:
        return renderer.render(template, context)
    except TemplateError as error:
        return str(error)


class RendererWithoutForms(Renderer):
    def _fill(self, template, variables, paths):
        return None


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Two renderers, with and without forms. Each of their templates reads values in a different way."""
    directory = tmp_path_factory.mktemp("templates")
    for number, text in enumerate(LOOKS):
        more = f'{{% extends "restricted" %}}\n{{% block more %}}\n  more:\n    - {text}\n{{% endblock %}}\n'
        (directory / f"look-{number}.yaml.j2").write_text(more)
    return Renderer(directory=directory), RendererWithoutForms(directory=directory)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(template=st.sampled_from(["restricted", "baseline"]), given=st.lists(changes(), min_size=2, max_size=4))
def test_filling_and_rendering_agree(make_context, zoo, template, given):
    filled, rendered = zoo
    for each in given:
        context = make_context(**each)
        assert outcome(filled, template, context) == outcome(rendered, template, context)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(number=st.sampled_from(range(len(LOOKS))), given=st.lists(changes(), min_size=2, max_size=3))
def test_templates_with_conditions_on_values_are_rendered(make_context, zoo, number, given):
    filled, rendered = zoo
    for each in given:
        context = make_context(**each)
        assert outcome(filled, f"look-{number}", context) == outcome(rendered, f"look-{number}", context)


@pytest.mark.parametrize("number", range(len(LOOKS)), ids=LOOKS)
def test_each_template_with_a_condition_gives_the_same_output(make_context, zoo, number):
    filled, rendered = zoo
    for name in ("a", "b", "ab"):
        context = make_context(name=f"{name}-1", episode=name, episode_uid=f"uid-{name}")
        assert outcome(filled, f"look-{number}", context) == outcome(rendered, f"look-{number}", context)


@pytest.mark.parametrize("template", ["restricted", "baseline"])
def test_a_form_is_rendered_once(make_context, template, monkeypatch):
    parsed = []
    monkeypatch.setattr("dgym_operator.render._renderer.read_yaml", lambda text: parsed.append(text) or read_yaml(text))
    renderer = Renderer()
    pods = [
        renderer.render(
            template,
            make_context(
                name=f"episode-{number}-1",
                episode=f"episode-{number}",
                episode_uid=f"uid-{number}",
                task={"image": f"registry.example/image:{number}"},
            ),
        )
        for number in range(20)
    ]
    assert len(parsed) == 1
    assert len({msgspec.json.encode(pod) for pod in pods}) == 20


def test_a_template_that_changes_is_read_again(make_context, templates):
    text = '{% extends "restricted" %}\n{% block more %}\n  priorityClassName: NAME\n{% endblock %}\n'
    directory = templates("mine", text.replace("NAME", "low"))
    renderer = Renderer(directory=directory)
    assert renderer.render("mine", make_context())["spec"]["priorityClassName"] == "low"
    templates("mine", text.replace("NAME", "high"))
    assert renderer.render("mine", make_context())["spec"]["priorityClassName"] == "high"
