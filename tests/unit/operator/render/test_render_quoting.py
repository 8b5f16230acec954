"""Tests of quoting: texts of an Episode or a task stay values in the pod, in any template."""

import pytest

from dgym_operator.render import Renderer, TemplateError

ATTACK = 'x", hostNetwork: "true\nhostPID: true # <&>'
POD = """
{% macro f() %}"NAME"{% endmacro %}
{% macro around() %}{{ caller() }}{% endmacro %}
apiVersion: v1
kind: Pod
metadata: {}
spec:
  containers: [{name: sandbox}, {name: verifier}, {name: sidecar}]
  value: VALUE
"""


@pytest.fixture
def value_of(templates, make_context):
    """Returns the value of an expression in a template. The image contains an injection attempt."""

    def render(text):
        directory = templates("mine", POD.replace("VALUE", text))
        spec = Renderer(directory=directory).render("mine", make_context(task={"image": ATTACK}))["spec"]
        assert set(spec) <= {
            "containers", "value", "restartPolicy", "automountServiceAccountToken", "enableServiceLinks",
            "activeDeadlineSeconds",
        }  # fmt: skip
        return spec["value"]

    return render


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ task.image }}", ATTACK),
        ("{{ 'a <b> & c' }}", "a <b> & c"),
        ("{{ 'a' ~ task.image }}", f"a{ATTACK}"),
        ("{{ task.image | json }}", ATTACK),
        ("{{ task.image | json | string }}", ATTACK),
        ("{{ f() }}", "NAME"),
        ("{% call around() %}{{ task.image }}{% endcall %}", ATTACK),
        ("[{{ [task.image, 'b'] | map('json') | join(', ') }}]", [ATTACK, "b"]),
        ("{{ [task.image, 'b'] | join(', ') }}", f"{ATTACK}, b"),
        ("{{ f() ~ task.image }}", f'"NAME"{ATTACK}'),
        ("{{ f() + task.image }}", f'"NAME"{ATTACK}'),
        ("{{ f() | replace('NAME', task.image) }}", f'"{ATTACK}"'),
        ("{{ [f(), f()] | join(task.image) }}", f'"NAME"{ATTACK}"NAME"'),
        ("{{ [f(), task.image] | join(', ') }}", f'"NAME", {ATTACK}'),
        ("{{ f() | upper }}", '"NAME"'),
        ("{{ f()[0] }}", '"'),
    ],
)
def test_quoted_values_are_read_back_unchanged(value_of, text, value):
    assert value_of(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ f().format(task.image) }}", "line 9: access to attribute 'format' of 'Quoted' object is unsafe"),
        ("{{ ('{}' | json).format(task.image) }}", "access to attribute 'format'"),
        ("{{ f()['format'](task.image) }}", "access to attribute 'format'"),
        ("{{ f().format_map({'a': task.image}) }}", "access to attribute 'format_map'"),
        ("{{ f() | attr('join') }}", "access to attribute 'join'"),
        ("{% filter replace('A', task.image) %}A{% endfilter %}", "line 9: {% filter %} blocks are not quoted; use a"),
        ("{% set a %}A{% endset %}{{ a }}", "line 9: {% set %} blocks are not quoted; use a macro"),
        ("{% autoescape true %}{{ task.image }}{% endautoescape %}", "line 9: {% autoescape %} does not quote"),
        ("{% call '{}'.format(task.image) %}{% endcall %}", "line 9: {% call %} takes a macro"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_quoted_is_refused(value_of, text, message):
    with pytest.raises(TemplateError) as caught:
        value_of(text)
    assert message in str(caught.value)
