from __future__ import annotations

import json
import tracemalloc
from typing import Final

import msgspec
import pytest

from ledger.domain.errors import InputError
from ledger.domain.nodes import NodeFacts, Taint
from ledger.domain.request.normalise import decode_pod
from ledger.domain.request.requests import PodRequest
from scheduler.decide.bounded import NESTED_MAX
from scheduler.decide.engine import Engine
from scheduler.decide.extender import (
    LARGE_BYTES,
    MEMBER_BYTES_MAX,
    NODES_MAX,
    POD_VALUES_MAX,
    NodeDirectory,
    read_arguments,
)
from tests.support.clusters import GIB, engine, gpu_node, held, running

POD: Final = {
    "metadata": {"name": "q2", "namespace": "ml", "uid": "fdb7e126"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "resources": {
                    "limits": {"koordinator.sh/gpu": "60"},
                    "requests": {"cpu": "100m", "koordinator.sh/gpu": "60"},
                },
            }
        ],
        "schedulerName": "tenure",
    },
    "status": {"phase": "Pending", "qosClass": "Burstable"},
}
NODES: Final = (
    gpu_node("empty"),
    gpu_node("half", 1),
    gpu_node("bare", 0),
    gpu_node("tainted", taints=(Taint(key="gone", value="", effect="NoSchedule"),)),
    gpu_node("small", cpu_milli=50, memory_bytes=GIB),
    gpu_node('odd"name', 1),
)


def _cluster() -> Engine:
    cluster = engine(*NODES)
    cluster.adopt(1, running("r1", held(0, 50)))
    cluster.adopt(5, running("r5", held(0, 30)))
    return cluster


def _body(*names: str, pod: object = POD, nodes: object = None) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": nodes, "NodeNames": list(names)}).encode()


def _request(body: bytes) -> tuple[PodRequest, list[str]]:
    arguments = read_arguments(body)
    return decode_pod(arguments.pod), list(arguments.node_names)


def _directory(nodes: tuple[NodeFacts, ...] = NODES) -> NodeDirectory:
    return NodeDirectory([node.name for node in nodes])


def test_a_filter_names_the_nodes_that_pass_and_a_reason_for_each_of_the_others() -> None:
    """ExtenderFilterResult: what other Pods' end can't help is unresolvable, the rest is not."""
    request, names = _request(_body(*(node.name for node in NODES)))
    directory = _directory()
    asked = directory.ask(names)
    answer = json.loads(directory.filter_result(asked, _cluster().filter(request, asked.nodes)))
    assert answer == {
        "Error": "",
        "NodeNames": ["empty", 'odd"name'],
        "FailedNodes": {"half": "Insufficient gpu devices"},
        "FailedAndUnresolvableNodes": {
            "bare": "Insufficient gpu devices",
            "tainted": "node(s) had untolerated taint {gone: }",
            "small": "Insufficient cpu",
        },
    }


def test_only_the_nodes_asked_about_are_answered_in_the_order_asked() -> None:
    """kube-scheduler asks about the nodes that its own plugins left, from any start."""
    request, names = _request(_body('odd"name', "half", "empty"))
    directory = _directory()
    asked = directory.ask(names)
    answer = json.loads(directory.filter_result(asked, _cluster().filter(request, asked.nodes)))
    assert answer["NodeNames"] == ['odd"name', "empty"]
    assert set(answer["FailedNodes"]) == {"half"}
    assert answer["FailedAndUnresolvableNodes"] == {}


def test_a_node_that_nobody_inventoried_fails_by_name() -> None:
    """A name without inventory is no error for the others, and no Pod's end brings it."""
    request, names = _request(_body("empty", "new"))
    directory = _directory()
    asked = directory.ask(names)
    answer = json.loads(directory.filter_result(asked, _cluster().filter(request, asked.nodes)))
    assert answer["NodeNames"] == ["empty"]
    assert answer["FailedAndUnresolvableNodes"] == {"new": "NodeNotInInventory"}


def test_priorities_fall_from_the_best_node_and_no_two_are_alike() -> None:
    """HostPriorityList: the node that the decision would choose has the highest score."""
    request, names = _request(_body(*(node.name for node in NODES)))
    cluster, directory = _cluster(), _directory()
    asked = directory.ask(names)
    filtered = cluster.filter(request, asked.nodes)
    assert filtered.best is not None
    assert filtered.best.node_name == 'odd"name', "binpack: 30 % of it is held"
    assert json.loads(directory.priorities(asked, filtered)) == [
        {"Host": 'odd"name', "Score": 1000},
        {"Host": "empty", "Score": 999},
    ]


def test_only_the_best_thousand_nodes_are_scored_equals_in_the_order_asked() -> None:
    """A node that is not listed counts 0 with kube-scheduler."""
    nodes = tuple(gpu_node(f"n{number}") for number in range(1500))
    directory = _directory(nodes)
    request, names = _request(_body(*(node.name for node in reversed(nodes))))
    asked = directory.ask(names)
    filtered = engine(*nodes).filter(request, asked.nodes)
    scores = json.loads(directory.priorities(asked, filtered))
    assert [item["Host"] for item in scores] == [f"n{number}" for number in range(1499, 499, -1)]
    assert [item["Score"] for item in scores] == list(range(1000, 0, -1))


def test_no_node_at_all_is_an_answer_too() -> None:
    """An empty question has an empty answer."""
    request, names = _request(_body())
    directory = _directory()
    asked = directory.ask(names)
    filtered = _cluster().filter(request, asked.nodes)
    assert json.loads(directory.filter_result(asked, filtered)) == {
        "Error": "",
        "NodeNames": [],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
    }
    assert json.loads(directory.priorities(asked, filtered)) == []


def test_a_pod_that_breaks_rules_fails_on_every_node_for_good() -> None:
    """Only that Pod is unschedulable: the error field stays empty, for it would stop the cycle."""
    directory = _directory()
    asked = directory.ask(["empty", "new"])
    answer = json.loads(directory.refusal(asked, 'spec.containers[0]: "no"'))
    assert answer == {
        "Error": "",
        "NodeNames": [],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": dict.fromkeys(["empty", "new"], 'spec.containers[0]: "no"'),
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        (b'{"Pod": {}, "Nodes": null, "NodeNames": null}', "NodeNames"),
        (
            b'{"Pod": {}, "Nodes": {"items": [{"metadata": {"name": 1}}]}}',
            "Nodes.items[0].metadata.name",
        ),
        (b'{"Pod": {}, "NodeNames": "n"}', "NodeNames"),
        (b'{"Pod": null, "NodeNames": []}', "Pod"),
    ],
)
def test_a_question_that_can_not_be_read_is_refused_with_its_field(body: bytes, field: str) -> None:
    """Neither names nor whole nodes, or something else in their place."""
    with pytest.raises(InputError) as caught:
        read_arguments(body)
    assert caught.value.field == field


LONGEST: Final = [f"{number:0253}" for number in range(5_000)]
"""Names of the largest cluster that Kubernetes supports, each as long as one can be."""


def whole_nodes(count: int, size: int) -> list[bytes]:
    """Return nodes of so many bytes, with as many values as images have on real ones."""
    images = b'{"names":["%s","%s"],"sizeBytes":1}' % (b"x" * 120, b"y" * 120)
    found = []
    for number in range(count):
        head = b'{"metadata":{"name":"node-%04d"},"status":{"images":[' % number
        room = size - len(head) - len(b"]}}")
        found.append(head + b",".join([images] * (room // (len(images) + 1))) + b"]}}")
    return found


def test_the_longest_names_of_the_largest_cluster_are_read() -> None:
    """They are more than 512 KiB."""
    body = _body(*LONGEST)
    assert len(body) > LARGE_BYTES
    arguments = read_arguments(body)
    assert (arguments.pod, arguments.node_names) == (POD, LONGEST)
    assert arguments.nodes is None


@pytest.mark.parametrize("keys", [("pod", "nodes", "nodenames"), ("POD", "nOdes", "NODENAMES")])
def test_keys_of_a_large_question_come_in_any_letter_case(keys: tuple[str, str, str]) -> None:
    """As those of a small one."""
    pod, nodes, names = (key.encode() for key in keys)
    whole = b",".join(whole_nodes(50, LARGE_BYTES // 49))
    head = b'{"%s":%s,' % (pod, json.dumps(POD).encode())
    by_nodes = read_arguments(head + b'"%s":{"items":[%s]},"%s":null}' % (nodes, whole, names))
    by_names = read_arguments(head + b'"%s":%s}' % (names, json.dumps(LONGEST).encode()))
    assert by_nodes.pod == by_names.pod == POD
    assert len(by_nodes.node_names) == 50
    assert by_names.node_names == LONGEST


def test_whole_nodes_of_the_largest_cluster_are_read() -> None:
    """64 MiB of them, as much as a body has, are given back as they came."""
    whole = whole_nodes(5_000, (64 << 20) // 5_000 - 1)
    body = b'{"Pod":%s,"Nodes":{"items":[%s]}}' % (json.dumps(POD).encode(), b",".join(whole))
    assert (63 << 20) < len(body) <= (64 << 20)
    arguments = read_arguments(body)
    assert arguments.node_names[4_999] == "node-4999"
    assert arguments.nodes is not None
    answer = _directory().refusal(_directory().ask(list(arguments.node_names)[:3]), "x")
    assert json.loads(answer)["FailedAndUnresolvableNodes"].keys() == {
        "node-0000",
        "node-0001",
        "node-0002",
    }
    assert msgspec.json.encode(arguments.nodes["node-4999"]) == whole[4_999]


BROKEN: Final = {
    "many names": (_body(*["n"] * (NODES_MAX + 1)), "NodeNames: too many nodes"),
    "many long names": (_body(*LONGEST * 4), "NodeNames: too many values"),
    "many bytes of names": (_body(*LONGEST * 7), "NodeNames: too large"),
    "a large Pod": (_body("n", pod={"x": "y" * MEMBER_BYTES_MAX}), "Pod: too large"),
    "many nodes": (
        b'{"Pod":{},"Nodes":{"items":[%s]}}' % b",".join(whole_nodes(NODES_MAX + 1, 60)),
        "NodeNames: too many nodes",
    ),
    "numbers for nodes": (
        b'{"Pod":{},"Nodes":{"items":[%s0]}}' % (b"0," * (1 << 20)),
        r"Nodes.items: Expected `object`, got `int` - at `\$\[0\]`",
    ),
    "numbers for names": (
        b'{"Pod":{},"NodeNames":[%s0]}' % (b"0," * (1 << 19)),
        "NodeNames: too many values",
    ),
    "lists in a Pod": (
        b'{"Pod":{"x":[%s[]]},"NodeNames":[]}' % (b"[]," * NESTED_MAX * 2),
        "Pod: too many values",
    ),
    "numbers in a Pod": (
        b'{"Pod":{"x":[%s0]},"NodeNames":[]}' % (b"0," * POD_VALUES_MAX * 2),
        "Pod: too many values",
    ),
    "no nodes": (
        b'{"Pod":{},"x":"%s"}' % (b"y" * LARGE_BYTES),
        "Nodes: Expected `object`",
    ),
    "half of it": (b'{"Pod":{},"NodeNames":["%s"' % (b"y" * LARGE_BYTES), "body: Input data"),
}


@pytest.mark.parametrize(("body", "words"), BROKEN.values(), ids=BROKEN)
def test_a_question_has_bounds(body: bytes, words: str) -> None:
    """Of each member by itself."""
    with pytest.raises(InputError, match=words):
        read_arguments(body)


@pytest.mark.parametrize("part", ["1,", '"},{"', "\\[,", '\\",\\'])
def test_texts_of_a_pod_may_be_of_anything(part: str) -> None:
    """A variable of numbers and a file of JSON are one value each."""
    pod = {"x": part * 270_000, "y": [part, 1, {"z": part}]}
    assert read_arguments(_body("n", pod=pod)).pod == pod


def test_members_that_nobody_reads_take_no_memory() -> None:
    """Nor do those of its list of nodes, as many as a body has."""
    many = b",".join(b'"%x":0' % number for number in range(1 << 18))
    body = b'{"Pod":{},"Nodes":{"items":[],%s},%s}' % (many, many)
    tracemalloc.start()
    try:
        arguments = read_arguments(body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert arguments.node_names == []
    assert most < 2 * len(body)


def test_a_node_name_that_is_no_text_is_refused() -> None:
    """A number in the list of names is an error of the caller, not an unknown node."""
    with pytest.raises(InputError):
        _directory().ask([["n"]])  # type: ignore[list-item]


def test_whole_nodes_are_asked_about_by_their_names_and_given_back_whole() -> None:
    """Without nodeCacheCapable kube-scheduler takes the nodes that pass from `Nodes` alone."""
    whole = [{"metadata": {"name": node.name}, "spec": {"podCIDR": node.name}} for node in NODES]
    arguments = read_arguments(json.dumps({"Pod": POD, "Nodes": {"items": whole}}).encode())
    directory = _directory()
    asked = directory.ask(arguments.node_names)
    filtered = _cluster().filter(decode_pod(arguments.pod), asked.nodes)
    answer = json.loads(directory.filter_result(asked, filtered, arguments.nodes))
    assert answer["NodeNames"] == ["empty", 'odd"name']
    assert answer["Nodes"] == {"items": [whole[0], whole[5]]}


def test_keys_come_in_any_letter_case() -> None:
    """Go matches keys so; the Pod inside is ordinary JSON of Kubernetes."""
    arguments = read_arguments(json.dumps({"pod": POD, "nodenames": ["empty"]}).encode())
    assert arguments.pod == POD
    assert arguments.node_names == ["empty"]


def test_nodes_come_go_and_close_under_the_directory() -> None:
    """A name is asked about while it has a node that is open; a closed one says why."""
    directory, cluster = NodeDirectory(), engine(*NODES)
    for number, node in enumerate(NODES):
        directory.put(number, node.name)
    directory.close("empty", "NodeUnreadable")
    directory.drop('odd"name')
    asked = directory.ask(["empty", "half", 'odd"name'])
    filtered = cluster.filter(decode_pod(POD), asked.nodes)
    answer = json.loads(directory.filter_result(asked, filtered))
    assert answer["NodeNames"] == ["half"]
    assert answer["FailedAndUnresolvableNodes"] == {
        "empty": "NodeUnreadable",
        'odd"name': "NodeNotInInventory",
    }
    directory.put(0, "empty")
    assert directory.ask(["empty"]).unknown == ()
    assert (directory.number("empty"), directory.number('odd"name')) == (0, None)
