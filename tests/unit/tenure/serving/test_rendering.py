"""The files of `deploy/`: what they are given, and how values and objects are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any

import pytest
import yaml
from jinja2 import Environment, FileSystemLoader, TemplateNotFound, UndefinedError, meta, nodes

from tenure.serving import manifests
from tenure.serving.rendering import dump, folder, render
from tests.support.manifests import printed, printed_agent, printed_scheduler
from webhook.decide.settings import DEFAULT_ADMISSION
from webhook.manifests.hooks import expressions

NETWORK_POLICY = frozenset({"part", "port", "number", "callers"})
WRITTEN: Mapping[str, tuple[Callable[..., None], frozenset[str]]] = {
    "webhook": (
        manifests.webhook,
        frozenset({"path", "vocabulary", "never_sent", *expressions(DEFAULT_ADMISSION)}),
    ),
    "webhook-rights": (manifests.rbac, frozenset()),
    "scheduler": (manifests.scheduler, NETWORK_POLICY),
    "dra": (manifests.dra, frozenset()),
    "agent": (manifests.agent, NETWORK_POLICY | {"mode", "name", "control_plane"}),
    "cpus": (
        manifests.cpus,
        NETWORK_POLICY | {"name", "control_plane", "read_only", "kubepods_name"},
    ),
    "crds": (manifests.crds, frozenset()),
}
"""Each file that is printed, with its command and the values that are no option of it."""


def values_of(environment: Environment, name: str) -> Iterator[str]:
    """Yield the values that a file names, and the files in it."""
    source = (folder() / name).read_text()
    tree = environment.parse(source)
    yield from meta.find_undeclared_variables(tree)
    for one in tree.find_all(nodes.Include):
        assert isinstance(one.template, nodes.Const)
        yield from values_of(environment, one.template.value)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_value_is_an_option_of_the_command(name: str) -> None:
    """So whoever reads a file knows where its values come from."""
    command, more = WRITTEN[name]
    environment = Environment(loader=FileSystemLoader(folder()), autoescape=False)
    named = {*values_of(environment, f"{name}.yaml")}
    assert named <= {*signature(command).parameters, *more}


def test_a_file_has_what_a_chart_can_have_and_nothing_else() -> None:
    """docs/adr/0040: values, conditions, lists and other files; no call, no sum, no macro."""
    environment = Environment(autoescape=False)
    found = [
        one
        for path in folder().iterdir()
        for one in environment.parse(path.read_text()).find_all(nodes.Node)
    ]
    kinds = {type(one).__name__ for one in found}
    assert kinds - {"TemplateData", "Output", "Name", "Const"} == {
        *("If", "Not", "And", "Or", "Compare", "Operand", "For", "Filter", "Include", "Assign"),
    }
    assert {one.name for one in found if isinstance(one, nodes.Filter)} == {"join"}


def test_every_file_is_printed() -> None:
    """By itself, or as a part of one that is."""
    environment = Environment(autoescape=False)
    included = {
        one.template.value
        for path in folder().iterdir()
        for one in environment.parse(path.read_text()).find_all(nodes.Include)
        if isinstance(one.template, nodes.Const)
    }
    assert {path.name for path in folder().iterdir()} == {
        *included,
        *(f"{name}.yaml" for name in WRITTEN),
    }


@pytest.mark.parametrize(
    "text",
    [
        *("123", "1e3", "true", "no", "null", "~", "0x1f", "2026-01-01", ""),
        *("a: b", "a #b", "- a", "{a}", "[a", "*a", "&a", "!a", "%a", "@a", "a'b\"c", " a", "a "),
        *("a\nb", "a\nb\n", "a\n\n", "\n", "a\tb", "é", "word " * 40, "w" * 200, "a  b " * 30),
    ],
    ids=repr,
)
def test_a_value_arrives_whatever_it_is(text: str) -> None:
    """A namespace may be called 123, and no value adds a key of its own."""
    made = printed("rbac", f"--secret={text}", f"--namespace={text}")
    assert [one["metadata"]["namespace"] for one in made if one["kind"] == "Role"] == [text]
    [names] = [
        rule["resourceNames"]
        for one in made
        for rule in one.get("rules", ())
        if rule["resources"] == ["secrets"] and "resourceNames" in rule
    ]
    assert names == [text]
    [agent] = (one for one in printed_agent(f"--namespace={text}") if one["kind"] == "DaemonSet")
    args = agent["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[1] == f"https://tenure-api.{text}.svc"


def test_a_file_that_lacks_a_value_is_an_error() -> None:
    """It is not printed with a hole."""
    with pytest.raises(UndefinedError):
        render("webhook-rights", {"name": "a"})
    with pytest.raises(TemplateNotFound):
        render("nothing", {})


def test_objects_are_written_as_people_write_them() -> None:
    """No part is a reference to another one, short lists take a line, and long text a block."""
    shared, words = {"a": "b"}, " ".join(["word"] * 40)
    text = dump([{"one": shared, "two": shared, "list": ["x", "y"], "long": words, "none": ""}])
    assert text.startswith("---\none:\n  a: b\ntwo:\n  a: b\nlist: [x, y]\nlong: >-\n  word")
    assert text.endswith('\nnone: ""\n')
    assert max(map(len, text.splitlines())) <= 100
    assert yaml.safe_load(text)["long"] == words


EVERYTHING = (
    *("--image", "i", "--api", "--driver", "a.b", "--config-map", "c", "--gate-client-ca", "s"),
    *("--untold-devices", "record", "--evict-partial-gangs", "--preemption", "dry-run"),
)


@pytest.mark.parametrize(
    "things",
    [
        pytest.param(printed_scheduler(*EVERYTHING), id="scheduler"),
        pytest.param(printed_agent("--gpushare", "--claims"), id="agent"),
        pytest.param(printed_agent("--env"), id="agent in mode env"),
        pytest.param(printed("rbac"), id="rbac"),
        pytest.param(printed("webhook"), id="webhook"),
        pytest.param(printed("policies"), id="policies"),
    ],
)
def test_all_that_is_tenures_is_found_by_one_label(things: list[dict[str, Any]]) -> None:
    """And no selector has it: what selectors have can't be changed."""
    for one in things:
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "tenure"
        assert labels["app.kubernetes.io/name"]
        if "template" in one.get("spec", {}):
            assert one["spec"]["selector"]["matchLabels"].keys() == {"app.kubernetes.io/name"}
            template = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= template.items()
