from __future__ import annotations

import pytest

from ledger.domain.errors import InputError
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from tenure.check.api_rules import check_amounts, with_api_defaults
from tests.support.objects import Object, container, pod, sidecar

HUGE = {"hugepages-2Mi": "4Mi"}
RULES: dict[str, tuple[Object, list[str]]] = {
    "whole and equal": ({"limits": {"a.io/x": "1"}, "requests": {"a.io/x": "1"}}, []),
    "equal in another spelling": ({"limits": {"a.io/x": "1k"}, "requests": {"a.io/x": 1000}}, []),
    "limits alone": ({"limits": {"a.io/x": "1"}}, []),
    "CPU in thousandths": ({"limits": {"cpu": "1500m"}, "requests": {"cpu": "1m"}}, []),
    "a native name may differ": (
        {"limits": {"kubernetes.io/batch-cpu": "2"}, "requests": {"kubernetes.io/batch-cpu": "1"}},
        [],
    ),
    "not whole": (
        {"limits": {"a.io/x": "1500m"}, "requests": {"a.io/x": "1500m"}},
        ["limits[a.io/x]", "requests[a.io/x]"],
    ),
    "negative": ({"limits": {"memory": "-1Gi"}}, ["limits[memory]"]),
    "unequal": ({"limits": {"a.io/x": "2"}, "requests": {"a.io/x": "1"}}, ["requests[a.io/x]"]),
    "requests alone": ({"requests": {"a.io/x": "1"}}, ["limits[a.io/x]"]),
    "above the limit": (
        {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}},
        ["requests[cpu]"],
    ),
    "a native name above its limit": (
        {"limits": {"kubernetes.io/batch-cpu": "1"}, "requests": {"kubernetes.io/batch-cpu": "2"}},
        ["requests[kubernetes.io/batch-cpu]"],
    ),
    "huge pages are limited": (
        {"limits": {"cpu": "1"}, "requests": {"hugepages-2Mi": "2Mi"}},
        ["limits[hugepages-2Mi]"],
    ),
    "huge pages are not overcommitted": (
        {"limits": {"cpu": "1", **HUGE}, "requests": {"hugepages-2Mi": "2Mi"}},
        ["requests[hugepages-2Mi]"],
    ),
    "huge pages alone": ({"limits": HUGE}, [""]),
    "no such resource": ({"limits": {"gpu": "1"}}, ["limits[gpu]"]),
}


@pytest.mark.parametrize("case", RULES.values(), ids=RULES)
def test_amounts_are_checked_as_the_api_server_does(case: tuple[Object, list[str]]) -> None:
    """In app containers, init containers and sidecars alike."""
    resources, fields = case
    one = container("c", **resources)
    body = pod(container("a"), one, init=[container("i"), {**one, "name": "j"}])

    found = [error.field for error in check_amounts(body)]

    assert found == [
        f"spec.{key}[1].resources.{field}".removesuffix(".")
        for key in ("initContainers", "containers")
        for field in fields
    ]


def test_what_mutation_fills_in_is_not_missed_in_a_pod_that_it_could_not_read() -> None:
    """Only devices: other people's resources stay as their users wrote them."""
    asked = {"nvidia.com/gpu": "1", "a.io/x": "1"}
    body = pod(container(requests=asked))

    assert [
        error.field for error in check_amounts(body, filled_in=DEFAULT_VOCABULARY.device_names)
    ] == ["spec.containers[0].resources.limits[a.io/x]"]


def test_requests_default_to_limits() -> None:
    """SetDefaults_Pod: those that are there stay, and nothing else of the Pod changes."""
    body = pod(
        container("a", limits={"cpu": "2", "memory": "1Gi"}, requests={"cpu": "1"}),
        container("b"),
        init=[sidecar("s", limits={"cpu": "1"})],
    )

    after = with_api_defaults(body)

    spec = after["spec"]
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert spec["containers"][1] is body["spec"]["containers"][1]
    assert spec["initContainers"][0]["resources"]["requests"] == {"cpu": "1"}
    assert body["spec"]["initContainers"][0]["resources"] == {"limits": {"cpu": "1"}}


BOTH = {"cpu": "500m", "memory": "1Gi"}
SUMS = {"cpu": "3500m", "memory": "3Gi"}
LEVELS: dict[str, tuple[Object, Object]] = {
    "nothing said": ({}, {}),
    "a limit asks for what the containers do": (
        {"limits": {"cpu": "4"}},
        {"limits": {"cpu": "4", **HUGE}, "requests": {**SUMS, **HUGE}},
    ),
    "a limit that no container has is asked for": (
        {"limits": {"hugepages-1Gi": "1Gi"}},
        {
            "limits": {"hugepages-1Gi": "1Gi", **HUGE},
            "requests": {"hugepages-1Gi": "1Gi", **SUMS, **HUGE},
        },
    ),
    "what is asked for stays, and has no limit made for it": (
        {"limits": {"cpu": "4"}, "requests": {"cpu": "4", "hugepages-2Mi": "8Mi"}},
        {
            "limits": {"cpu": "4"},
            "requests": {**SUMS, "cpu": "4", "hugepages-2Mi": "8Mi"},
        },
    ),
    "huge pages that containers are limited to are a limit": (
        {"requests": {"cpu": "4"}},
        {"limits": HUGE, "requests": {**SUMS, **HUGE, "cpu": "4"}},
    ),
    "a name that the Pod as a whole can't have is not asked for": (
        {"limits": {"example.com/card": "1"}},
        {"limits": {"example.com/card": "1", **HUGE}, "requests": {**SUMS, **HUGE}},
    ),
}


@pytest.mark.parametrize("case", LEVELS.values(), ids=LEVELS)
def test_resources_of_the_pod_as_a_whole_default_as_the_api_server_does_it(
    case: tuple[Object, Object],
) -> None:
    """Sums take init containers and sidecars as scheduling does; e2e compares with a real one."""
    given, wanted = case
    body = pod(
        container("a", limits={**BOTH, "example.com/card": "1"}),
        container("b", limits={"hugepages-2Mi": "4Mi"}, requests={"memory": "1Gi"}),
        init=[
            sidecar("s", limits={"cpu": "1", "memory": "1Gi"}),
            container("i", limits={"cpu": "2500m"}),
        ],
        resources=given,
    )

    assert with_api_defaults(body)["spec"]["resources"] == wanted
    assert body["spec"]["resources"] == given


WHOLE: dict[str, tuple[Object, list[str] | None]] = {
    "enough": ({"limits": {"cpu": "3500m"}, "requests": {"memory": "3Gi"}}, []),
    "above its own limit": (
        {"limits": {"cpu": "4"}, "requests": {"cpu": "5"}},
        ["spec.resources.requests[cpu]"],
    ),
    "less than the containers": (
        {"requests": {"cpu": "3"}},
        ["spec.resources.requests[cpu]"],
    ),
    "a limit below what containers request": (
        {"limits": {"memory": "2Gi"}},
        ["spec.resources.requests[memory]"],
    ),
    "a limit below a container's": (
        {"limits": {"cpu": "1"}, "requests": {"memory": "4Gi"}},
        ["spec.resources.requests[cpu]", "spec.containers[1].resources.limits[cpu]"],
    ),
    "fewer huge pages than containers": (
        {"limits": {"hugepages-2Mi": "2Mi", "cpu": "4"}},
        [
            "spec.resources.limits[hugepages-2Mi]",
            "spec.resources.requests[hugepages-2Mi]",
            "spec.containers[0].resources.limits[hugepages-2Mi]",
        ],
    ),
    "a name of containers": (
        {"limits": {"a.io/x": "1"}},
        ["spec.resources.limits[a.io/x]"],
    ),
    "negative": ({"requests": {"hugepages-1Gi": "-1"}}, None),
}


@pytest.mark.parametrize("case", WHOLE.values(), ids=WHOLE)
def test_the_pod_as_a_whole_is_checked_as_the_api_server_does(
    case: tuple[Object, list[str] | None],
) -> None:
    """What is requested of it, what it is limited to, and what containers say, fit together."""
    given, fields = case
    body = pod(
        container("a", limits={"cpu": "500m", **HUGE}, requests={"memory": "1Gi"}),
        container("b", limits={"cpu": "2", "memory": "2Gi"}),
        init=[sidecar("s", limits={"cpu": "1"})],
        resources=given,
    )

    found = [error.field for error in check_amounts(with_api_defaults(body))]

    assert bool(found) if fields is None else found == fields


def test_what_the_pod_as_a_whole_asks_for_is_no_limit() -> None:
    """Without a limit nothing is filled in."""
    body = pod(container(limits=BOTH), resources={"requests": {"cpu": "4"}})

    assert with_api_defaults(body)["spec"]["resources"] == {"requests": {"cpu": "4"}}


def test_what_the_api_server_could_not_read_has_its_field() -> None:
    """A quantity that is none ends the reading."""
    with pytest.raises(InputError) as caught:
        list(check_amounts(pod(container(requests={"cpu": "many"}))))

    assert caught.value.field == "spec.containers[0].resources.requests[cpu]"
    with pytest.raises(InputError) as caught:
        with_api_defaults(pod({"name": "a", "resources": []}))
    assert caught.value.field == "spec.containers[0].resources"
