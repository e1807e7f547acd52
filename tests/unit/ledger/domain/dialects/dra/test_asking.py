"""A request as the spec of a claim, of cards that are given in parts and of those that are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledger.domain.dialects.dra.asking import (
    SIZES_MAX,
    Asking,
    Giver,
    asking_of,
    claim_spec,
    says_the_same,
    sizes_in,
    template_name,
)
from ledger.domain.errors import FieldError
from ledger.domain.request.normalise import decode_pod
from tests.support.objects import Object, container, gpu_pod, pod

GIB = 1 << 30
DRIVER = "gpu.example.com"
GIVER = Giver(driver=DRIVER, device_class="cards", sizes=(16 * GIB, 80 * GIB))
KOORDINATOR = "koordinator.sh/gpu-"


def asked(made: Object) -> Asking:
    """Return what a Pod asks for by a claim."""
    found = asking_of(decode_pod(made))
    assert isinstance(found, Asking)
    return found


def devices(made: Object, giver: Giver = GIVER) -> Any:  # noqa: ANN401 - JSON
    """Return `spec.devices` of a Pod's claim."""
    spec = claim_spec(asked(made), giver)
    assert spec is not None
    return spec["devices"]


def test_whole_cards_are_a_count_and_no_amounts() -> None:
    """Whatever a card has is what its driver gives by default."""
    assert devices(gpu_pod({"nvidia.com/gpu": "2"})) == {
        "requests": [{"name": "g0", "exactly": {"deviceClassName": "cards", "count": 2}}]
    }


def test_parts_are_amounts_of_cards_that_are_given_in_parts() -> None:
    """Of another card the whole would be given without a word."""
    made = gpu_pod({f"{KOORDINATOR}core": "50", f"{KOORDINATOR}memory": "8Gi"})
    [request] = devices(made)["requests"]

    assert request["exactly"] == {
        "deviceClassName": "cards",
        "count": 1,
        "capacity": {"requests": {"memory": str(8 * GIB), "cores": "50"}},
        "selectors": [{"cel": {"expression": "device.allowMultipleAllocations"}}],
    }


def test_several_parts_are_of_different_cards() -> None:
    """kube-scheduler would put two requests of a claim on one card."""
    made = devices(
        gpu_pod({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "25"})
    )

    assert made["constraints"] == [{"distinctAttribute": f"{DRIVER}/uuid"}]
    assert [one["exactly"]["count"] for one in made["requests"]] == [2]


def test_containers_with_parts_of_their_own_are_requests_of_one_claim() -> None:
    """Each by its own amounts; beside a whole card, too."""
    volcano = "vke.volcengine.com/mgpu-"
    made = devices(
        pod(
            container("a", limits={f"{volcano}core": "30", f"{volcano}memory": "1024"}),
            container("b", limits={f"{volcano}core": "100"}),
        )
    )

    assert [one["name"] for one in made["requests"]] == ["g0", "g1"]
    assert "capacity" not in made["requests"][1]["exactly"]
    assert made["constraints"]


def test_a_ratio_is_an_alternative_for_each_size_of_card() -> None:
    """The larger card first; each for cards of its size alone."""
    made = gpu_pod({f"{KOORDINATOR}core": "50", f"{KOORDINATOR}memory-ratio": "50"})
    [request] = devices(made)["requests"]
    large, small = request["firstAvailable"]

    assert (large["name"], small["name"]) == (f"m{80 * GIB}", f"m{16 * GIB}")
    assert large["capacity"]["requests"]["memory"] == str(40 * GIB)
    assert small["capacity"]["requests"]["memory"] == str(8 * GIB)
    assert str(16 * GIB) in small["selectors"][1]["cel"]["expression"]
    assert sizes_in({"devices": {"requests": [request]}}) == (80 * GIB, 16 * GIB)


def test_of_many_sizes_the_largest_are_alternatives() -> None:
    """The API server takes eight."""
    made = gpu_pod({f"{KOORDINATOR}core": "50", f"{KOORDINATOR}memory-ratio": "50"})
    giver = replace(GIVER, sizes=tuple(number * GIB for number in range(1, 12)))
    [request] = devices(made, giver)["requests"]

    assert len(request["firstAvailable"]) == SIZES_MAX
    assert claim_spec(asked(made), replace(GIVER, sizes=())) is None, "of no card that is known"


def test_memory_alone_asks_for_no_cores() -> None:
    """In words, since a driver's default is all of them; and in none where it tells of none."""
    made = gpu_pod({"aliyun.com/gpu-mem": "2048"})
    [request] = devices(made)["requests"]
    [other] = devices(made, replace(GIVER, has_cores=False))["requests"]

    assert request["exactly"]["capacity"]["requests"] == {"memory": str(2 * GIB), "cores": "0"}
    assert other["exactly"]["capacity"]["requests"] == {"memory": str(2 * GIB)}


def test_ids_and_models_are_selectors() -> None:
    """A text of a user's is a text in the expression, whatever is in it."""
    made = gpu_pod(
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2048"},
        annotations={
            "nvidia.com/use-gpuuuid": 'GPU-a",GPU-b',
            "nvidia.com/nouse-gputype": "v100",
        },
    )
    [request] = devices(made)["requests"]
    words = [one["cel"]["expression"] for one in request["exactly"]["selectors"]]
    said = f'device.attributes["{DRIVER}"]'

    assert f'{said}.uuid in ["GPU-a\\"", "GPU-b"]' in words
    assert f'!["V100"].exists(m, {said}.productName.upperAscii().contains(m))' in words


def test_the_name_is_of_the_request_and_not_of_who_gives() -> None:
    """Admission knows no cards."""
    first = asked(gpu_pod({"nvidia.com/gpu": "2"}, name="a"))

    assert template_name(first) == template_name(asked(gpu_pod({"nvidia.com/gpu": "2"}, name="b")))
    assert template_name(first) != template_name(asked(gpu_pod({"nvidia.com/gpu": "3"})))


def test_what_the_api_server_fills_in_and_how_it_writes_amounts_is_no_difference() -> None:
    """Another amount is."""
    made = gpu_pod({f"{KOORDINATOR}core": "50", f"{KOORDINATOR}memory": "8Gi"})
    spec = claim_spec(asked(made), GIVER)
    assert spec is not None
    stored: Any = claim_spec(asked(made), GIVER)
    exactly = stored["devices"]["requests"][0]["exactly"]
    exactly["allocationMode"] = "ExactCount"
    exactly["capacity"]["requests"]["memory"] = "8Gi"

    assert says_the_same(stored, spec)
    exactly["capacity"]["requests"]["memory"] = "9Gi"
    assert not says_the_same(stored, spec)


@pytest.mark.parametrize(
    "annotations",
    [
        {"scheduling.koordinator.sh/gpu-partition-spec": "{}"},
        {"scheduling.koordinator.sh/numa-topology-spec": {"numaTopologyPolicy": "SingleNUMANode"}},
    ],
)
def test_wishes_that_no_claim_can_say_are_told(annotations: dict[str, object]) -> None:
    """Each by its field."""
    found = asking_of(decode_pod(gpu_pod({"nvidia.com/gpu": "2"}, annotations=annotations)))

    assert isinstance(found, tuple)
    assert all(isinstance(error, FieldError) for error in found)
    assert [error.field for error in found] == [f"metadata.annotations[{next(iter(annotations))}]"]


def test_what_a_node_would_have_to_share_out_is_told() -> None:
    """MGPU's policies but the fixed share are a node's."""
    policy = "vke.volcengine.com/mgpu-compute-policy"
    amounts = {"vke.volcengine.com/mgpu-core": "30", "vke.volcengine.com/mgpu-memory": "1024"}
    burst = gpu_pod(amounts, annotations={policy: "native-burst-share"})
    found = asking_of(decode_pod(burst))

    assert isinstance(found, tuple)
    assert [error.field for error in found] == [f"metadata.annotations[{policy}]"]
    assert asked(gpu_pod(amounts, annotations={policy: "fixed-share"}))


@pytest.mark.parametrize(
    "wish",
    [
        {"hami.io/node-scheduler-policy": "spread"},
        {"hami.io/gpu-scheduler-policy": "binpack"},
        {"hami.io/gpu-scheduler-policy": "topology-aware"},
    ],
)
def test_policies_of_a_pod_of_its_own_are_refused(wish: dict[str, str]) -> None:
    """Whoever gives claims knows none of them: they are not passed over."""
    found = asking_of(decode_pod(gpu_pod({"nvidia.com/gpu": "2"}, annotations=wish)))

    assert not isinstance(found, Asking)
    assert [str(error) for error in found] == [
        "metadata.annotations: not supported by this release: policies of a pod's own by a claim"
    ]
