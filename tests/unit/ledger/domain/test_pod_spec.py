from __future__ import annotations

import datetime as dt
import uuid

import pytest

from ledger.domain.bounds import bounds_of
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import default_uid, time_us
from ledger.domain.kube.pod_spec import (
    ENDED,
    PENDING,
    RUNNING,
    decode_quota,
    pod_total,
    read_pod,
)
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.quantity import parse_quantity
from ledger.domain.request.requests import MatchExpression, Toleration
from tests.support.objects import Object, container, gpu_pod, pod, sidecar

TERM = (
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
)


def affinity(*terms: Object) -> Object:
    """Return a required node affinity with these terms."""
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def test_namespace_and_uid_have_defaults() -> None:
    """cli.md, Defaults: namespace `default`, UID a UUIDv5 of kind, namespace and name."""
    body = pod(name="train-0")
    del body["metadata"]["namespace"]

    spec = read_pod(body)

    assert spec.namespace == "default"
    assert spec.uid == str(uuid.uuid5(uuid.NAMESPACE_URL, "tenure:Pod/default/train-0"))


def test_an_object_without_a_namespace_has_an_empty_one_in_its_uid() -> None:
    """The text keeps its three parts, so that no Pod and Node ever share a UID."""
    expected = str(uuid.uuid5(uuid.NAMESPACE_URL, "tenure:Node//n-17"))

    assert default_uid("Node", "", "n-17") == expected


def test_a_text_of_null_is_empty() -> None:
    """In a workload's template, which the API server reads as it does a Pod."""
    body = pod(labels={"a": None})
    assert read_pod(body).labels == {"a": ""}


def test_requests_are_filled_from_limits() -> None:
    """cli.md, Defaults: a missing request is the limit, for every resource."""
    limits = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": 1}

    spec = read_pod(gpu_pod(limits))

    assert spec.containers[0].requests == {key: parse_quantity(str(v)) for key, v in limits.items()}
    assert (spec.cpu_milli, spec.memory_bytes) == (2000, 4 * 2**30)


@pytest.mark.parametrize(
    ("resource", "filled"),
    [
        ("nvidia.com/gpu", True),
        ("koordinator.sh/gpu", True),
        ("kubernetes.io/gpu", True),
        ("example.com/fast-nic", True),
        ("cpu", False),
        ("kubernetes.io/batch-cpu", False),
    ],
)
def test_limits_of_extended_resources_are_filled_from_requests(
    resource: str, *, filled: bool
) -> None:
    """Only extended resources and devices of both domains: a cpu request sets no limit."""
    spec = read_pod(pod(container(requests={resource: "1"})))

    assert bool(spec.containers[0].limits) is filled


def test_resource_names_become_the_released_ones_and_errors_keep_the_written_ones() -> None:
    """The proposal's domain and its typos are read; a field path shows what the user wrote."""
    spec = read_pod(pod(container(requests={"kubernetes.io/gpu-mem": "8Gi"})))

    only = spec.containers[0]
    assert only.units("koordinator.sh/gpu-memory") == 8 * 2**30
    assert only.field("koordinator.sh/gpu-memory") == (
        "spec.containers[0].resources.requests[kubernetes.io/gpu-mem]"
    )


def test_of_two_spellings_the_released_one_counts() -> None:
    """Koordinator contract 1.1, alias rule."""
    amounts = {"kubernetes.io/gpu-core": "50", "koordinator.sh/gpu-core": "60"}

    only = read_pod(pod(container(requests=amounts))).containers[0]

    assert only.units("koordinator.sh/gpu-core") == 60
    assert "kubernetes.io/gpu-core" not in only.requests


TOTALS = {
    "app containers add up": ([("app", 2), ("app", 3)], 5),
    "one init container at a time": ([("init", 4), ("init", 3), ("app", 1)], 4),
    "an init container below the apps changes nothing": ([("init", 2), ("app", 5)], 5),
    "a sidecar adds to the apps": ([("sidecar", 1), ("app", 5)], 6),
    "a sidecar adds to init containers after it": ([("sidecar", 2), ("init", 6), ("app", 1)], 8),
    "a sidecar does not add to init containers before it": (
        [("init", 6), ("sidecar", 2), ("app", 1)],
        6,
    ),
    "two sidecars around an init container": (
        [("sidecar", 1), ("init", 5), ("sidecar", 3), ("app", 2)],
        6,
    ),
}


@pytest.mark.parametrize(("parts", "expected"), TOTALS.values(), ids=TOTALS)
def test_a_pod_asks_for_its_largest_moment(parts: list[tuple[str, int]], expected: int) -> None:
    """Design section 3: max(apps + sidecars, each init container + the sidecars before it)."""
    assert pod_total((kind, {"cpu": amount}) for kind, amount in parts) == {"cpu": expected}


def test_resources_are_added_up_by_themselves() -> None:
    """The init container's cpu and the app's memory may both be the largest."""
    parts = [("init", {"cpu": 8, "memory": 1}), ("app", {"cpu": 2, "memory": 9})]

    assert pod_total(parts) == {"cpu": 8, "memory": 9}


def test_overhead_is_added_to_the_whole_pod() -> None:
    """Design section 3; each amount is rounded up, as the API server stores it."""
    body = pod(
        container("a", requests={"cpu": "0.5m", "memory": "1Gi"}),
        container("b", requests={"cpu": "0.5m"}),
        overhead={"cpu": "250m", "memory": "64Mi"},
    )

    spec = read_pod(body)

    assert spec.cpu_milli == 252
    assert spec.memory_bytes == 2**30 + 64 * 2**20


def test_pod_level_resources_take_the_place_of_the_sum() -> None:
    """Kubernetes' pod-level resources: what `spec.resources` says, plus overhead."""
    body = pod(
        container(requests={"cpu": "1", "memory": "1Gi"}),
        resources={"requests": {"cpu": "3"}},
        overhead={"cpu": "1"},
    )

    spec = read_pod(body)

    assert (spec.cpu_milli, spec.memory_bytes) == (4000, 2**30)


def test_pod_level_limits_count_only_where_no_container_asks() -> None:
    """A missing pod-level request is what the containers ask, else the pod-level limit."""
    limits = {"cpu": "8", "memory": "2Gi"}

    spec = read_pod(pod(container(requests={"cpu": "1"}), resources={"limits": limits}))

    assert (spec.cpu_milli, spec.memory_bytes) == (1000, 2 * 2**30)


def test_containers_come_in_starting_order_with_their_places() -> None:
    """Places are those of design section 3: `<i>` and `init-<i>`."""
    spec = read_pod(pod(container("a"), container("b"), init=[container("i"), sidecar("s")]))

    assert [(c.name, c.index, c.kind) for c in spec.containers] == [
        ("i", "init-0", "init"),
        ("s", "init-1", "sidecar"),
        ("a", "0", "app"),
        ("b", "1", "app"),
    ]


def test_original_requests_are_kept_as_written() -> None:
    """The texts of the requests, and of limits that stand alone."""
    only = read_pod(
        pod(container(requests={"cpu": "1500m"}, limits={"cpu": 2, "nvidia.com/gpu": "0"}))
    ).containers[0]

    assert only.original == {"cpu": "1500m", "nvidia.com/gpu": "0"}


STAGES = {
    "no node, no status": ({}, PENDING),
    "no node, pending": ({"phase": "Pending"}, PENDING),
    "on a node, not started": ({"nodeName": "n1", "phase": "Pending"}, RUNNING),
    "on a node, running": ({"nodeName": "n1", "phase": "Running"}, RUNNING),
    "on a node, nobody knows": ({"nodeName": "n1", "phase": "Unknown"}, RUNNING),
    "succeeded": ({"nodeName": "n1", "phase": "Succeeded"}, ENDED),
    "failed": ({"nodeName": "n1", "phase": "Failed"}, ENDED),
    "failed before it had a node": ({"phase": "Failed"}, ENDED),
}


@pytest.mark.parametrize(("body", "stage"), STAGES.values(), ids=STAGES)
def test_node_and_phase_say_whether_a_pod_runs(body: Object, stage: str) -> None:
    """cli.md, Running Pods."""
    assert read_pod(pod(**body)).stage == stage


def test_a_pod_that_is_being_deleted_still_holds() -> None:
    """cli.md, Running Pods: a deletionTimestamp changes nothing."""
    body = pod(nodeName="n1", phase="Running")
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert read_pod(body).stage == RUNNING


def test_the_owner_is_the_controller() -> None:
    """The first controller reference; a ReplicaSet stays one, its Deployment would be a guess."""
    body = pod()
    body["metadata"]["ownerReferences"] = [
        {"kind": "Node", "name": "n1"},
        {"kind": "ReplicaSet", "name": "web-5d9", "controller": True},
        {"kind": "Job", "name": "other", "controller": True},
    ]

    assert read_pod(body).owner == "replicaset/web-5d9"
    assert read_pod(pod()).owner == ""


TIMES = {
    "utc": ("2026-01-01T00:00:00Z", 1767225600000000),
    "offset and microseconds": ("2026-01-01T01:00:00.000007+01:00", 1767225600000007),
    "no offset is utc": ("2026-01-01T00:00:00", 1767225600000000),
    "what YAML makes of it": (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 1767225600000000),
    "the epoch": ("1970-01-01T00:00:00Z", 0),
    "absent": (None, 0),
}


@pytest.mark.parametrize(("value", "expected"), TIMES.values(), ids=TIMES)
def test_times_are_exact_microseconds(value: object, expected: int) -> None:
    """No float in between."""
    assert time_us(value, "t") == expected


@pytest.mark.parametrize("value", ["1969-12-31T23:59:59Z", "2256-01-01T00:00:00Z", "9999-12-31"])
def test_a_time_that_no_object_has_is_refused(value: str) -> None:
    """Nothing in a cluster is older than 1970, and what is recorded stays an exact integer."""
    with pytest.raises(InputError, match=r"^t: not a time between 1970 and 2255"):
        time_us(value, "t")


def test_placement_rules_are_read() -> None:
    """cli.md, Predicates: selector sorted, terms ORed, expressions ANDed."""
    term = {
        "matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a", "b"]},
            {"key": "cores", "operator": "Gt", "values": ["16"]},
        ],
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}],
    }
    body = pod(
        nodeSelector={"b": "2", "a": "1"},
        affinity=affinity(term, {}),
        tolerations=[
            {"operator": "Exists"},
            {"key": "tenure.sh/owned", "value": "x", "effect": "NoSchedule"},
        ],
    )

    rules = read_pod(body).placement

    assert rules.node_selector == (("a", "1"), ("b", "2"))
    assert rules.affinity_terms == (
        (
            MatchExpression(key="zone", operator="In", values=("a", "b")),
            MatchExpression(key="cores", operator="Gt", values=("16",)),
            MatchExpression(key="metadata.name", operator="NotIn", values=("n9",), is_field=True),
        ),
    )
    assert rules.tolerations == (
        Toleration(key="", operator="Exists", value="", effect=""),
        Toleration(key="tenure.sh/owned", operator="Equal", value="x", effect="NoSchedule"),
    )
    assert hash(rules) == hash(read_pod(body).placement)


def test_affinity_with_only_empty_terms_matches_no_node() -> None:
    """As kube-scheduler: an empty term matches nothing, no requirement at all everything."""
    assert read_pod(pod(affinity=affinity({}))).placement.affinity_terms == ()
    assert read_pod(pod(affinity={"podAffinity": {}})).placement.affinity_terms is None


BROKEN = {
    "a suffix that is none": (
        gpu_pod({"memory": "1.5Gi2"}),
        "spec.containers[0].resources.limits[memory]",
    ),
    "a resource that YAML read as a number": (
        pod(container(limits={1: "2"})),  # type: ignore[dict-item]  # what YAML may hold
        "spec.containers[0].resources.limits",
    ),
    "a resource that no text can hold": (
        gpu_pod({"\ud800": "2"}),
        "spec.containers[0].resources.limits",
    ),
    "a selector key that YAML read as a truth value": (
        pod(nodeSelector={True: "a", "b": "c"}),
        "spec.nodeSelector",
    ),
    "a negative amount": (
        gpu_pod({"nvidia.com/gpu": "-1"}),
        "spec.containers[0].resources.limits[nvidia.com/gpu]",
    ),
    "a fraction of a card": (
        gpu_pod({"nvidia.com/gpu": "0.5"}),
        "spec.containers[0].resources.limits[nvidia.com/gpu]",
    ),
    "a fraction in milli": (
        gpu_pod({"koordinator.sh/gpu-core": "1500m"}),
        "spec.containers[0].resources.limits[koordinator.sh/gpu-core]",
    ),
    "a fraction in the proposal's domain": (
        gpu_pod({"kubernetes.io/gpu": 0.5}),
        "spec.containers[0].resources.limits[kubernetes.io/gpu]",
    ),
    "a truth value for an amount": (
        gpu_pod({"cpu": True}),
        "spec.containers[0].resources.limits[cpu]",
    ),
    "null for an amount": (gpu_pod({"cpu": None}), "spec.containers[0].resources.limits[cpu]"),
    "a bad amount in an init container": (
        pod(init=[container("i", requests={"cpu": "two"})]),
        "spec.initContainers[0].resources.requests[cpu]",
    ),
    "a bad amount in the overhead": (pod(overhead={"cpu": "-1"}), "spec.overhead[cpu]"),
    "a bad amount for the whole Pod": (
        pod(resources={"requests": {"cpu": "?"}}),
        "spec.resources.requests[cpu]",
    ),
    "no containers": ({"metadata": {"name": "p"}, "spec": {}}, "spec.containers"),
    "containers that are no list": (
        {"metadata": {"name": "p"}, "spec": {"containers": {}}},
        "spec.containers",
    ),
    "a container that is no object": (
        {"metadata": {"name": "p"}, "spec": {"containers": ["main"]}},
        "spec.containers[0]",
    ),
    "a container without a name": (pod({"resources": {}}), "spec.containers[0].name"),
    "two containers of one name": (
        pod(container("a"), init=[container("a")]),
        "spec.containers[0].name",
    ),
    "no name": ({"metadata": {}, "spec": {"containers": [{}]}}, "metadata.name"),
    "a name that reads as namespace and name": (pod(name="a/b"), "metadata.name"),
    "a name that is a number": (
        {"metadata": {"name": 7}, "spec": {}},
        "metadata.name",
    ),
    "a label that YAML read as a number": (pod(labels={"team": 7}), "metadata.labels[team]"),
    "half a surrogate pair": (pod(labels={"team": "\ud800"}), "metadata.labels[team]"),
    "metadata that is a list": ({"metadata": [], "spec": {}}, "metadata"),
    "a node name that is a number": (pod(nodeName=4), "spec.nodeName"),
    "a priority that is text": (pod(priority="high"), "spec.priority"),
    "a selector that is a list": (pod(nodeSelector=["a"]), "spec.nodeSelector"),
    "an unknown toleration operator": (
        pod(tolerations=[{"key": "a", "operator": "Equals"}]),
        "spec.tolerations[0].operator",
    ),
    "a toleration of nothing": (pod(tolerations=[{"value": "a"}]), "spec.tolerations[0].key"),
    "a toleration with an unknown effect": (
        pod(tolerations=[{"operator": "Exists", "effect": "Never"}]),
        "spec.tolerations[0].effect",
    ),
    "a toleration of every value with a value": (
        pod(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]),
        "spec.tolerations[0].value",
    ),
    "an unknown affinity operator": (
        pod(affinity=affinity({"matchExpressions": [{"key": "a", "operator": "Is"}]})),
        f"{TERM}.matchExpressions[0].operator",
    ),
    "a field that nodes do not have": (
        pod(
            affinity=affinity(
                {"matchFields": [{"key": "spec.x", "operator": "In", "values": ["a"]}]}
            )
        ),
        f"{TERM}.matchFields[0]",
    ),
}


@pytest.mark.parametrize(("body", "field"), BROKEN.values(), ids=BROKEN)
def test_an_unreadable_pod_names_its_field(body: Object, field: str) -> None:
    """cli.md, exit code 2: one message with the field path."""
    with pytest.raises(InputError) as caught:
        read_pod(body)

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("operator", "values"),
    [("In", []), ("Exists", ["a"]), ("Gt", ["1", "2"]), ("Lt", ["many"])],
)
def test_affinity_operators_take_only_their_own_values(operator: str, values: list[str]) -> None:
    """As the API server validates them."""
    expression = {"key": "a", "operator": operator, "values": values}

    with pytest.raises(InputError, match="does not take these"):
        read_pod(pod(affinity=affinity({"matchExpressions": [expression]})))


@pytest.mark.parametrize("containers", [1, 3])
def test_a_legal_amount_beyond_counting_is_the_most_there_is(containers: int) -> None:
    """No node has as much, so the Pod does not fit; the input is no error."""
    huge = [
        container(str(number), limits={"cpu": "1E", "memory": "8E"}) for number in range(containers)
    ]
    spec = read_pod(pod(*huge))

    assert spec.memory_bytes == INTEGER_MAX
    assert spec.cpu_milli == bounds_of("cpu_milli")[1]
    assert spec.containers[0].original["memory"] == "8E"


@pytest.mark.parametrize(
    ("resource", "units"),
    [
        ("nvidia.com/gpu", 8_000_000),
        ("vke.volcengine.com/mgpu-memory", 8_000_000),
        ("koordinator.sh/gpu-memory", INTEGER_MAX),
    ],
)
def test_device_units_leave_room_to_become_bytes_and_percent(resource: str, units: int) -> None:
    """A card is 100 percent, a unit of memory up to 2^30 bytes: both must stay countable."""
    (only,) = read_pod(gpu_pod({resource: "1E"})).containers

    assert only.units(resource) == units


def test_a_quota_is_read() -> None:
    """Amounts by the names written; without `hard` it allows everything."""
    quota = {"spec": {"hard": {"requests.cpu": "2", "pods": 5}}}

    assert {name: q.ceil() for name, q in decode_quota(quota).items()} == {
        "requests.cpu": 2,
        "pods": 5,
    }
    assert decode_quota({"spec": {}}) == {}


@pytest.mark.parametrize("value", ["abc", "-1", None])
def test_a_bad_quota_names_its_field(value: object) -> None:
    """cli.md, exit code 2: a bad or negative quantity."""
    with pytest.raises(InputError) as caught:
        decode_quota({"spec": {"hard": {"cpu": value}}})

    assert caught.value.field == "spec.hard[cpu]"


def test_a_time_that_is_none_is_unreadable() -> None:
    """A creation time is recorded for ever, so it is not guessed."""
    body = pod()
    body["metadata"]["creationTimestamp"] = "yesterday"

    with pytest.raises(InputError, match="not a time") as caught:
        read_pod(body)

    assert caught.value.field == "metadata.creationTimestamp"
