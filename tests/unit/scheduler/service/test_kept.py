"""What is kept of the API's objects is what they say."""

from __future__ import annotations

import pytest

from certs.ports import Object
from scheduler.service.kept import NodeBook, PodBook
from scheduler.service.wakeups import Wakeups


def topology(version: str = "1", **said: object) -> Object:
    """Return a NodeResourceTopology that says these words."""
    return {"metadata": {"name": "a", "uid": "t", "resourceVersion": version}, "words": said}


@pytest.mark.parametrize(
    "said",
    [
        {"text": '{"quoted": "ü"}', "none": None, "flag": True, "list": [1, -1, 0.5, {}]},
        {"bounds": [2**64 - 1, -(2**63)]},
        {"beyond": [2**64, -(2**63) - 1, 10**40]},
        {str(number): number for number in range(100_000)},
    ],
    ids=["usual", "numbers of 64 bits", "larger numbers", "large"],
)
def test_an_object_is_kept_as_it_is(said: dict[str, object]) -> None:
    """Whatever JSON says in it, beside another that says something else."""
    book = NodeBook(Wakeups())
    book.topologies.put("t", topology())
    book.topologies.put("u", {"metadata": {"name": "b", "uid": "u"}, "words": said})
    body = book.topologies.body("b")
    assert body is not None
    assert body["words"] == said
    assert book.topologies.body("a") == {"metadata": {"name": "a", "uid": "t"}, "words": {}}


def test_a_node_has_changed_where_what_is_kept_is_other() -> None:
    """A heartbeat, which says nothing else, changes nothing."""
    book = NodeBook(Wakeups())
    for item, changed in (
        (topology(), ["a"]),
        (topology("2"), []),
        (topology("3", more=2**64), ["a"]),
        (topology("4", more=2**64), []),
    ):
        book.topologies.put("t", item)
        assert book.take_changed() == changed, item


@pytest.mark.parametrize("key", ["hami.io/vgpu-node", "volcano.sh/vgpu-node"])
def test_a_pod_that_another_system_placed_waits_until_it_is_bound(key: str) -> None:
    """It may have a claim of ours, and its gate is lifted by what is kept of it here."""
    book = PodBook(frozenset(), Wakeups())
    metadata = {"uid": "u", "name": "p", "namespace": "ml", "annotations": {key: "n1"}}
    book.put("u", {"metadata": metadata, "spec": {}})
    assert book.seen["u"].node == "n1"
    assert book.pending("u") == {"metadata": metadata, "spec": {}}
    book.put("u", {"metadata": metadata, "spec": {"nodeName": "n1"}})
    assert book.pending("u") is None
