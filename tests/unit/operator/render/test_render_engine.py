"""Tests of templates of administrators: their search, reload and bounds, and the messages for wrong templates."""

import os

import pytest

from dgym_operator.render import Renderer, TemplateError

SMALL = """
apiVersion: v1
kind: Pod
metadata: {labels: {mine: yes-it-is}}
spec:
  containers:
    - {name: sandbox, image: {{ task.image }}}
    - {name: verifier, image: {{ task.image }}}
    - {name: sidecar, image: {{ sidecar.image }}}
"""


@pytest.fixture
def refused(templates, make_context):
    """Returns the error message for a template with this text."""

    def render(text):
        with pytest.raises(TemplateError) as caught:
            Renderer(directory=templates("mine", text)).render("mine", make_context())
        return str(caught.value)

    return render


def test_a_template_of_the_directory_is_used(templates, make_context):
    pod = Renderer(directory=templates("mine", SMALL)).render("mine", make_context())
    assert pod["metadata"]["labels"]["mine"] == "yes-it-is"
    assert pod["spec"]["containers"][0]["image"] == "sandbox-python:1"


def test_a_template_of_the_directory_takes_precedence_over_a_shipped_template(templates, make_context):
    renderer = Renderer(directory=templates("restricted", SMALL))
    assert "mine" in renderer.render("restricted", make_context())["metadata"]["labels"]
    assert "mine" not in Renderer().render("restricted", make_context())["metadata"]["labels"]
    assert renderer.templates == ["baseline", "restricted"]


def test_required_fields_are_added_to_every_pod(templates, make_context):
    pod = Renderer(directory=templates("mine", SMALL)).render("mine", make_context())
    assert (pod["metadata"]["name"], pod["metadata"]["namespace"]) == ("fix-ledger-1", "team")
    assert pod["metadata"]["labels"]["dgym.dev/episode"] == "fix-ledger"
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "sandbox"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["activeDeadlineSeconds"] == 7200


def test_a_template_may_extend_a_shipped_one(templates, make_context, container):
    text = """
    {% extends "baseline" %}
    {% block more %}
      priorityClassName: low
      schedulerName: {{ "batch-" ~ episode.name }}
    {% endblock %}
    {% block placement %}
    {{ super() }}
      topologySpreadConstraints: []
    {% endblock %}
    """
    text = "\n".join(line.removeprefix("    ") for line in text.splitlines())
    pod = Renderer(directory=templates("mine", text)).render("mine", make_context())
    assert pod["spec"]["priorityClassName"] == "low"
    assert pod["spec"]["schedulerName"] == "batch-fix-ledger"
    assert len(pod["spec"]["tolerations"]) == 2
    assert "runAsUser" not in container(pod, "sandbox")["securityContext"]


def test_a_changed_template_is_read_again(templates, make_context):
    directory = templates("mine", SMALL)
    renderer = Renderer(directory=directory)
    renderer.render("mine", make_context())
    templates("mine", SMALL.replace("yes-it-is", "changed"))
    assert renderer.render("mine", make_context())["metadata"]["labels"]["mine"] == "changed"
    (directory / "mine.yaml.j2").unlink()
    with pytest.raises(TemplateError, match="pod template 'mine' does not exist"):
        renderer.render("mine", make_context())


def test_a_template_that_is_added_later_takes_precedence(templates, make_context):
    directory = templates("other", SMALL)
    renderer = Renderer(directory=directory)
    renderer.render("restricted", make_context())
    templates("restricted", SMALL)
    assert "mine" in renderer.render("restricted", make_context())["metadata"]["labels"]


def test_a_config_map_is_swapped_under_the_same_path(tmp_path, make_context):
    """The kubelet renames a link to a directory.

    The path stays the same, the time and size may be equal, the file is new.
    """
    for name, value in (("first", "one"), ("second", "two")):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "mine.yaml.j2"
        file.write_text(SMALL.replace("yes-it-is", value))
        os.utime(file, (1_000_000, 1_000_000))
    (tmp_path / "data").symlink_to("first")
    renderer = Renderer(directory=tmp_path / "data")
    assert renderer.render("mine", make_context())["metadata"]["labels"]["mine"] == "one"
    (tmp_path / "new").symlink_to("second")
    (tmp_path / "new").rename(tmp_path / "data")
    assert renderer.render("mine", make_context())["metadata"]["labels"]["mine"] == "two"


def test_the_nearest_name_is_named(make_context):
    with pytest.raises(TemplateError, match="'restrictd' does not exist; did you mean 'restricted'"):
        Renderer().render("restrictd", make_context())
    with pytest.raises(TemplateError, match="the templates are baseline, restricted"):
        Renderer().render("zzz", make_context())


@pytest.mark.parametrize("name", ["", "../templates/restricted", "/etc/passwd", ".hidden", "a\0b"])
def test_a_path_is_not_accepted_as_a_template_name(templates, make_context, name):
    with pytest.raises(TemplateError, match=r"pod template '.*' does not exist"):
        Renderer(directory=templates("mine", SMALL)).render(name, make_context())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: {{ task.imag }}\n", "line 2: 'dict object' has no attribute 'imag'"),
        ("a: 1\nb: {{ nothing }}\n", "line 2: 'nothing' is undefined"),
        ("a: 1\n{% if %}\n", "line 2: Expected an expression"),
        ("a: {{ 'x' | format }}", "line 1: No filter named 'format'"),
        ("a: {{ 'x' | safe }}", "line 1: No filter named 'safe'"),
        ("a: {{ 1 / 0 }}", "line 1: ZeroDivisionError"),
        ("a: {{ ''.__class__.__mro__ }}", "line 1: access to attribute '__class__'"),
        ("{% extends 'missing' %}", "pod template 'missing' (extended by 'mine') does not exist"),
        ("a: {{ range(10 ** 9) }}", "line 1: a range has at most 1000"),
        ("a: {{ 'x' * 10 ** 8 }}", "line 1: repeating produces more than"),
        ("a: {{ 10 ** 10 ** 10 }}", "line 1: powers are taken"),
        ("{% macro f() %}{{ f() }}{% endmacro %}\n{{ f() }}", "RecursionError"),
        ("a: {b: 1\n", "'mine': not valid YAML"),
        ("a: 1\na: 2\n", "is given twice, first in line 1"),
        ('metadata:\n  name: "{{ pod.name }}"\n', 'rendered line 2: name: ""fix-ledger-1""'),
        ("a: 1\n---\nb: 1\n", "produces 2 documents"),
        ("", "produces 0 documents"),
        ("[1, 2]", "not a mapping"),
        ("apiVersion: v1\nkind: Service\n", "is not a Pod"),
        ("apiVersion: v1\nkind: Pod\nspec: []\n", "spec: is []"),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: sandbox}]}\n", "has no verifier and no sidecar"),
        (SMALL + "  restartPolicy: Always\n", "spec.restartPolicy: is 'Always'"),
        (SMALL + "  shareProcessNamespace: true\n", "the sandbox could end the verifier"),
        (SMALL + "  x: !!binary aGk=\n", "spec.x: b'hi' is not a value of JSON"),
        (SMALL + "  x: .nan\n", "spec.x: nan is not a value of JSON"),
        (SMALL + "  x: {1: 2}\n", "the key 1 is not text"),
        (SMALL + "  x: !!python/object/apply:os.getpid []\n", "not valid YAML"),
    ],
)
def test_a_wrong_template_is_named_with_its_line(refused, text, expected):
    message = refused(text)
    assert "mine" in message
    assert expected in message


def test_the_file_is_named(refused, tmp_path):
    assert f"{tmp_path}/templates/mine.yaml.j2, line 1" in refused("{{ x }}")


def test_a_template_that_is_not_text_is_named(templates, make_context):
    directory = templates("mine", "")
    (directory / "mine.yaml.j2").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(TemplateError, match=r"mine.yaml.j2 cannot be read"):
        Renderer(directory=directory).render("mine", make_context())


def test_output_is_bounded(refused):
    text = "{% for a in range(1000) %}{% for b in range(1000) %}{{ 'x' * 100 }}{% endfor %}{% endfor %}"
    assert "more than 1,048,576 characters" in refused(text)


def test_aliases_do_not_multiply_without_end(refused):
    lines = ["a0: &a0 [1, 2]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
    assert "line 10: a9: &a9 [*a8, *a8, *a8]" in refused("\n".join(lines))
    assert "b: repeats another value by an alias; write it out" in refused("a: &a [1, 2]\nb: *a")


def test_text_that_looks_like_an_alias_is_kept(templates, make_context):
    context = make_context(task={"image": "&a *a"})
    pod = Renderer(directory=templates("mine", SMALL)).render("mine", context)
    assert pod["spec"]["containers"][0]["image"] == "&a *a"


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_nesting_is_bounded(refused, opening):
    assert "nested more than 100 levels deep" in refused(opening * 50_000)


def test_values_are_bounded(refused):
    assert "more than 20,000 values" in refused("a: [" + "1, " * 20_000 + "1]")


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in range(1000) %}{% for b in range(1000) %}{{ range(9) and '' }}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set a = f(n - 1) %}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
    ids=["loops", "macros"],
)
def test_time_is_bounded(templates, make_context, text):
    moments = iter(range(10_000))
    renderer = Renderer(directory=templates("mine", text), clock=lambda: next(moments) / 100)
    with pytest.raises(TemplateError, match="takes longer than 2 s"):
        renderer.render("mine", make_context())


def test_a_template_cannot_change_what_the_next_one_sees(templates, make_context):
    text = SMALL + "  x: {{ pod.labels.update({'a': 'b'}) }}\n"
    context = make_context()
    with pytest.raises(TemplateError, match=r"mine.yaml.j2, line"):
        Renderer(directory=templates("mine", text)).render("mine", context)
