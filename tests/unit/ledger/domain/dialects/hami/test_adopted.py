from __future__ import annotations

import json

import pytest

from ledger.domain.adopted.pods import adopt
from ledger.domain.annotations.checkpoints import DeviceCheckpoint
from ledger.domain.kube.node_objects import KubeletReports, decode_node
from ledger.domain.log.events import PodObserved
from tests.support.hami import ALLOCATED
from tests.support.hami import allocated as written
from tests.support.objects import Object, container, device, gpu_device, node, pod, sidecar

MIB = 2**20
GPU = "nvidia.com/gpu"
MEM = "nvidia.com/gpumem"
CORES = "nvidia.com/gpucores"
NODE = "hami.io/vgpu-node"
FOUR_CARDS = decode_node(node(), device(*(gpu_device(minor) for minor in range(4))))[0]
"""Cards GPU-0 to GPU-3 of 24 GiB."""


def held(
    *containers: Object,
    allocated: str,
    init: list[Object] | None = None,
    annotations: dict[str, str] | None = None,
) -> PodObserved:
    """Return what a running Pod of these containers holds; `allocated` is HAMi's annotation."""
    texts = {ALLOCATED: allocated, **(annotations or {})}
    fields: Object = {"uid": "u1", "nodeName": "n1", "phase": "Running"}
    body = pod(*containers, annotations=texts, init=init or [], **fields)
    return adopt(body, FOUR_CARDS)


def asks(name: str, cards: int = 1, mib: int = 3000, cores: int = 30) -> Object:
    """Return a container as HAMi's webhook leaves it."""
    return container(name, limits={GPU: cards, MEM: mib, CORES: cores})


def numbers(adopted: PodObserved) -> list[tuple[int, int, int, int, bool]]:
    """Return minor, core, MiB, instances and exclusive of every share."""
    return [
        (
            share.minor,
            share.core_percent,
            share.memory_bytes // MIB,
            share.instances,
            share.exclusive,
        )
        for share in adopted.shares
    ]


def test_a_pod_holds_what_hami_gave_it() -> None:
    """Contract 3: by UUID, MiB and percent of compute, each container its own part."""
    found = held(
        asks("a", mib=3000),
        asks("b", mib=5000),
        allocated=written([("GPU-2", 3000, 30)], [("GPU-2", 5000, 30)]),
    )

    assert numbers(found) == [(2, 60, 8000, 2, False)]
    assert [
        (one.container, one.index, one.core_percent, one.memory_bytes // MIB)
        for one in found.shares[0].containers
    ] == [("a", "0", 30, 3000), ("b", "1", 30, 5000)]
    assert (found.source, found.dialect) == ("vgpu-devices-allocated", "hami")
    assert (found.unknown_types, found.faults) == ((), ())


def test_a_whole_card_is_held_alone() -> None:
    """Contract 1, facts 2 and 3: the webhook made `gpucores: 100` of `nvidia.com/gpu` alone."""
    found = held(
        container("a", limits={GPU: 2, CORES: 100}),
        allocated=written([("GPU-3", 24576, 100), ("GPU-0", 24576, 100)]),
    )

    assert numbers(found) == [(0, 100, 24576, 1, True), (3, 100, 24576, 1, True)]


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        pytest.param(
            written([("GPU-0", 9000, 10)], [("GPU-0", 3000, 30)]),
            [(0, 30, 9000, 1, False)],
            id="the larger of each amount",
        ),
        pytest.param(
            written([("GPU-1", 9000, 10)], [("GPU-0", 3000, 30)]),
            [(0, 30, 3000, 1, False), (1, 10, 9000, 1, False)],
            id="on another card",
        ),
        pytest.param(written([("GPU-0", 3000, 30)]), [(0, 30, 3000, 1, False)], id="before v2.9.0"),
    ],
)
def test_init_containers_take_turns_with_the_others(
    text: str, shares: list[tuple[int, int, int, int, bool]]
) -> None:
    """Contract 1, fact 13, and 3: init containers' entries come first, or are not there."""
    found = held(asks("a"), init=[asks("i", mib=9000, cores=10)], allocated=text)

    assert numbers(found) == shares
    assert found.faults == ()


def test_a_sidecar_counts_beside_the_containers() -> None:
    """Contract 1, fact 13, as ours: it runs as long as they do."""
    found = held(
        asks("a"),
        init=[sidecar("s", limits={GPU: 1, MEM: 500, CORES: 5})],
        allocated=written([("GPU-0", 500, 5)], [("GPU-0", 3000, 30)]),
    )

    assert numbers(found) == [(0, 35, 3500, 2, False)]


@pytest.mark.parametrize(
    ("text", "shares", "fault"),
    [
        pytest.param(
            written([]),
            [],
            "container a has not the cards it asks for: asked=1, named=0",
            id="no card",
        ),
        pytest.param(
            written([("GPU-0", 3000, 30)], [("GPU-1", 1, 1)]),
            [(0, 30, 3000, 1, False), (1, 1, 1, 1, False)],
            "vgpu-devices-allocated has not one entry per container: entries=2, containers=1",
            id="more entries than containers",
        ),
        pytest.param(
            "GPU-0,NVIDIA,x,0:;",
            [],
            f"metadata.annotations[{ALLOCATED}][0][0].memory: not an integer: value='x'",
            id="a number that is none",
        ),
    ],
)
def test_a_card_that_nobody_can_name_is_unknown(
    text: str, shares: list[tuple[int, int, int, int, bool]], fault: str
) -> None:
    """Never card 0 by guess: the node is closed for GPUs."""
    found = held(asks("a"), allocated=text)

    assert numbers(found) == shares
    assert found.unknown_types == (() if shares else ("gpu",))
    assert found.faults == ((fault,) if fault else ())


def test_a_card_that_the_node_does_not_list_closes_none_that_it_lists() -> None:
    """Contract 3, as ours: it is none of them, and is told with its id."""
    text = written([("GPU-9", 3000, 30), ("GPU-1", 1, 1)])
    found = held(asks("a", cards=2), allocated=text)

    assert numbers(found) == [(1, 1, 1, 1, False)]
    assert found.unknown_types == ()
    assert "vgpu-devices-allocated names a card that the node does not list: GPU-9" in found.faults

    found = held(asks("a"), allocated=written([("GPU-9", 3000, 30)]))
    assert (numbers(found), found.unknown_types) == ([], ())
    found = held(asks("a"), asks("b"), allocated=written([("GPU-9", 3000, 30)], []))
    assert found.unknown_types == ("gpu",)


def test_another_nodes_name_is_a_fault() -> None:
    """Contract 3: HAMi chose another node than the Pod is on."""
    text = written([("GPU-0", 3000, 30)])
    found = held(asks("a"), allocated=text, annotations={NODE: "n2"})

    assert numbers(found) == [(0, 30, 3000, 1, False)]
    assert found.faults == (f"{NODE} names another node: value='n2'",)


def test_our_own_annotation_comes_first() -> None:
    """Cli.md, Running Pods: `device-allocated` is asked before all others."""
    ours = '{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-memory":"3000Mi"}}]}'
    found = held(
        asks("a"),
        allocated=written([("GPU-0", 3000, 30)]),
        annotations={"scheduling.koordinator.sh/device-allocated": ours},
    )

    assert found.source == "device-allocated"
    assert [share.minor for share in found.shares] == [1]
    assert found.faults == ("device-allocated names cards 1, vgpu-devices-allocated names 0",)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param(
            written([("GPU-9", 3000, 30)]),
            "device-allocated names cards 1, vgpu-devices-allocated names unknown",
            id="a card that the node does not have",
        ),
        pytest.param(
            "GPU-1,NVIDIA,x,0:;",
            f"metadata.annotations[{ALLOCATED}][0][0].memory: not an integer: value='x'",
            id="no amount",
        ),
        pytest.param(
            written([("GPU-1", 3000, 40)]),
            "device-allocated gives 30 % and 3000 MiB of gpu 1,"
            " vgpu-devices-allocated gives 40 % and 3000 MiB",
            id="another amount",
        ),
    ],
)
def test_what_hami_says_against_our_annotation_is_named(text: str, fault: str) -> None:
    """Cli.md, Running Pods: the first source counts; the second is not passed over in silence."""
    amounts = {"koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory": "3000Mi"}
    ours = json.dumps({"gpu": [{"minor": 1, "resources": amounts}]})
    found = held(
        asks("a"),
        allocated=text,
        annotations={"scheduling.koordinator.sh/device-allocated": ours},
    )

    assert numbers(found) == [(1, 30, 3000, 1, False)]
    assert fault in found.faults


@pytest.mark.parametrize(
    ("mib", "cores", "fault"),
    [
        (300, 30, f"container a asks for 3000 of {MEM} and has 300"),
        (3000, 3, f"container a asks for 30 of {CORES} and has 3"),
    ],
)
def test_another_amount_than_asked_is_named_and_counts(mib: int, cores: int, fault: str) -> None:
    """Contract 3: the annotation is what the container may use."""
    found = held(asks("a"), allocated=written([("GPU-0", mib, cores)]))

    assert numbers(found) == [(0, cores, mib, 1, False)]
    assert found.faults == (fault,)


def test_parts_without_a_number_of_cards_are_of_one() -> None:
    """Contract 1: `nvidia.com/gpu` is 1 where only another word is there."""
    found = held(
        container("a", limits={MEM: 2000}),
        allocated=written([("GPU-0", 2000, 0)]),
    )

    assert found.faults == ()


def test_who_has_all_of_the_compute_is_alone_by_our_own_annotation_too() -> None:
    """Contract 1, fact 3: the annotation has amounts only, and all of the memory is not all."""
    ours = {
        "gpu": [
            {
                "minor": minor,
                "resources": {
                    "koordinator.sh/gpu-core": str(core),
                    "koordinator.sh/gpu-memory": f"{gib}Gi",
                },
            }
            for minor, core, gib in ((0, 100, 3), (1, 50, 24))
        ]
    }
    found = held(
        asks("a", cores=100),
        container("b", limits={GPU: 1, CORES: 50}),
        allocated="",
        annotations={"scheduling.koordinator.sh/device-allocated": json.dumps(ours)},
    )

    assert [(share.minor, share.exclusive) for share in found.shares] == [(0, True), (1, False)]


def test_kubelets_ids_of_hamis_shares_name_no_card() -> None:
    """Contract 3: `<uuid>-<n>` is kubelet's choice among shares; HAMi gives another card."""
    entry = DeviceCheckpoint(
        pod_uid="u1", container_name="a", resource_name=GPU, device_ids=("GPU-1-3",)
    )
    witnesses = KubeletReports(checkpoints={"u1": (entry,)}, cpus={})
    fields: Object = {"uid": "u1", "nodeName": "n1", "phase": "Running"}
    alone = adopt(pod(asks("a"), **fields), FOUR_CARDS, witnesses=witnesses)
    texts = {ALLOCATED: written([("GPU-2", 3000, 30)])}
    told = adopt(pod(asks("a"), annotations=texts, **fields), FOUR_CARDS, witnesses=witnesses)

    assert (alone.source, alone.shares, alone.unknown_types) == (
        "devices-checkpoints",
        (),
        ("gpu",),
    )
    assert (numbers(told), told.unknown_types) == ([(2, 30, 3000, 1, False)], ())
    assert told.faults == ()


@pytest.mark.parametrize("number", [2**31 - 1, 2_000_000_000])
def test_absurd_amounts_close_the_card_and_can_be_recorded(number: int) -> None:
    """Of the share and of each container: what one Pod says of itself stops nobody else."""
    found = held(asks("a"), allocated=written([("GPU-2", number, number)]))

    (share,) = found.shares
    assert share.core_percent > 100
    (part,) = share.containers
    assert max(share.core_percent, part.core_percent) <= 8_000_000
    assert max(share.memory_bytes, part.memory_bytes) <= 2**50
    assert "more of gpu 2 than can be counted" in found.faults
