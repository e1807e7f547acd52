from __future__ import annotations

import pytest

from ledger.domain.dialects.hami.demands import hami_demands
from ledger.domain.kube.pod_spec import read_pod
from ledger.domain.request.asked import TypeRequest
from ledger.domain.request.normalise import decode_pod
from ledger.domain.request.requests import CardFilter
from tests.support.objects import Json, Object, container, gpu_pod, pod, sidecar

GPU = "nvidia.com/gpu"
MEM = "nvidia.com/gpumem"
PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
MIB = 2**20
USE_TYPE = "nvidia.com/use-gputype"
NOUSE_TYPE = "nvidia.com/nouse-gputype"
USE_ID = "nvidia.com/use-gpuuuid"
NOUSE_ID = "nvidia.com/nouse-gpuuuid"
CARD_POLICY = "hami.io/gpu-scheduler-policy"
NODE_POLICY = "hami.io/node-scheduler-policy"
WEIGHTS = "hami.io/device-scoring-weights"
CARD_POLICIES = "binpack, spread, topology-aware, numa, mutex"
UNSUPPORTED = "not supported by this release:"
WEIGHED = "weights that are not all 1"


def asked(body: Object) -> TypeRequest:
    """Return what a Pod asks for in HAMi's words."""
    return hami_demands(read_pod(body))


def given(body: Object) -> list[tuple[int, int, int, int, bool]]:
    """Return cards, core, MiB, ratio and alone of every demand."""
    found = asked(body)
    assert not found.errors, found.errors
    return [
        (
            demand.count,
            demand.core_percent,
            demand.memory_bytes // MIB,
            demand.memory_ratio_percent,
            demand.exclusive,
        )
        for demand in found.demands
    ]


def faults(body: Object) -> list[str]:
    """Return the violations, each with its field."""
    return [str(error) for error in asked(body).errors]


@pytest.mark.parametrize(
    ("limits", "demand"),
    [
        pytest.param({GPU: 1}, (1, 100, 0, 100, True), id="a card alone"),
        pytest.param({GPU: 1, MEM: 3000, CORES: 30}, (1, 30, 3000, 0, False), id="a share"),
        pytest.param({GPU: 2, PERCENT: 50, CORES: 30}, (2, 30, 0, 50, False), id="of two cards"),
        pytest.param({GPU: 2, PERCENT: 100, CORES: 100}, (2, 100, 0, 100, True), id="all of two"),
        pytest.param({GPU: 1, PERCENT: 40, CORES: 60}, (1, 60, 0, 40, False), id="40 and 60"),
        pytest.param({GPU: 1, PERCENT: 100}, (1, 100, 0, 100, True), id="all of the memory"),
        pytest.param({GPU: 1, MEM: 4096}, (1, 0, 4096, 0, False), id="memory alone"),
        pytest.param({GPU: 1, CORES: 50}, (1, 50, 0, 100, False), id="compute alone"),
        pytest.param({MEM: 2000}, (1, 0, 2000, 0, False), id="one card by default"),
        pytest.param({CORES: 30}, (1, 30, 0, 100, False), id="one card for compute"),
        pytest.param({PERCENT: 30}, (1, 0, 0, 30, False), id="one card for a percentage"),
        pytest.param({GPU: 1, MEM: 3000, CORES: 100}, (1, 100, 3000, 0, True), id="a part alone"),
        pytest.param({GPU: 1, MEM: 2000, PERCENT: 0}, (1, 0, 2000, 0, False), id="0 percent"),
        pytest.param({GPU: 1, MEM: 0}, (1, 100, 0, 100, True), id="0 MiB is not asked"),
        pytest.param({GPU: 1, CORES: 0, PERCENT: 5}, (1, 0, 0, 5, False), id="no compute"),
        pytest.param({GPU: 1, MEM: "3k"}, (1, 0, 3000, 0, False), id="a suffix"),
    ],
)
def test_a_container_is_worth_what_the_contract_says(
    limits: dict[str, Json], demand: tuple[int, int, int, int, bool]
) -> None:
    """Contract 1, the table and facts 2 to 4, 7, 9: per card, exclusive with all of the compute."""
    assert given(gpu_pod(limits)) == [demand]


def test_nothing_is_asked_by_zeros() -> None:
    """Zero of everything is no request."""
    assert asked(gpu_pod({GPU: 0, MEM: 0, CORES: 0})) == TypeRequest()


def test_containers_take_different_cards() -> None:
    """Design section 3: the protocol's two containers are on two cards, each with its own part."""
    found = asked(
        pod(container("a", limits={GPU: 1, MEM: 3000}), container("b", limits={GPU: 1, MEM: 5000}))
    )

    assert [(one.count, one.memory_bytes, one.containers) for one in found.demands] == [
        (1, 3000 * MIB, ("0",)),
        (1, 5000 * MIB, ("1",)),
    ]
    assert found.counts == {"0": 1, "1": 1}


def test_containers_alike_are_one_demand() -> None:
    """Cards that give alike are chosen together, as Koordinator's are."""
    share = {GPU: 2, MEM: 3000}
    found = asked(pod(container("a", limits=share), container("b", limits=share)))

    assert [(one.count, one.containers) for one in found.demands] == [(4, ("0", "1"))]


def test_a_whole_card_beside_a_share() -> None:
    """`nvidia.com/gpu` alone stays a whole card in a Pod whose other container has a share."""
    body = pod(container("a", limits={GPU: 1}), container("b", limits={GPU: 1, MEM: 3000}))

    assert given(body) == [(1, 100, 0, 100, True), (1, 0, 3000, 0, False)]


@pytest.mark.parametrize(
    ("init", "apps", "demands"),
    [
        pytest.param(
            [container("i", limits={GPU: 1, MEM: 1000})],
            [container("a", limits={GPU: 1, MEM: 3000, CORES: 30})],
            [(1, 30, 3000, 0, False)],
            id="less than the container after it",
        ),
        pytest.param(
            [container("i", limits={GPU: 1, MEM: 9000, CORES: 10})],
            [container("a", limits={GPU: 1, MEM: 3000, CORES: 30})],
            [(1, 30, 9000, 0, False)],
            id="the larger of each",
        ),
        pytest.param(
            [container("i", limits={GPU: 2, MEM: 1000})],
            [container("a", limits={GPU: 1, MEM: 3000})],
            [(1, 0, 3000, 0, False), (1, 0, 1000, 0, False)],
            id="a card more",
        ),
        pytest.param(
            [container("i", limits={GPU: 1})],
            [container("a", limits={GPU: 1, MEM: 3000})],
            [(1, 100, 0, 100, True)],
            id="a whole card",
        ),
        pytest.param(
            [container("i", limits={GPU: 1, MEM: 3000})],
            [container("a")],
            [(1, 0, 3000, 0, False)],
            id="an init container alone",
        ),
        pytest.param(
            [
                sidecar("s", limits={GPU: 1, MEM: 500}),
                container("i", limits={GPU: 1, MEM: 9000}),
            ],
            [container("a", limits={GPU: 1, MEM: 3000})],
            [(1, 0, 500, 0, False), (1, 0, 9000, 0, False)],
            id="beside a sidecar that runs already",
        ),
        pytest.param(
            [
                container("i", limits={GPU: 1, MEM: 9000}),
                sidecar("s", limits={GPU: 1, MEM: 500}),
            ],
            [container("a", limits={GPU: 1, MEM: 3000})],
            [(1, 0, 9000, 0, False), (1, 0, 3000, 0, False)],
            id="before a sidecar",
        ),
        pytest.param(
            [
                container("i", limits={GPU: 1, MEM: 9000}),
                container("j", limits={GPU: 2, MEM: 100, CORES: 40}),
            ],
            [container("a", limits={GPU: 1, MEM: 3000})],
            [(1, 40, 9000, 0, False), (1, 40, 100, 0, False)],
            id="one after the other",
        ),
    ],
)
def test_init_containers_reuse_the_first_cards(
    init: list[Object], apps: list[Object], demands: list[tuple[int, int, int, int, bool]]
) -> None:
    """Contract 1, fact 13, and design section 3: the larger of what takes turns on a card."""
    assert given(pod(*apps, init=init)) == demands


def test_what_takes_turns_counts_memory_alike() -> None:
    """MiB and percent of memory can't be compared before a card is known."""
    body = pod(
        container("a", limits={GPU: 1, MEM: 3000}),
        init=[container("i", limits={GPU: 1, PERCENT: 50})],
    )

    (fault,) = faults(body)
    assert fault == (
        f"spec.containers[0].resources.requests[{MEM}]: Forbidden: beside an init container that "
        "asks for cards memory is counted alike everywhere: container i counts it in percent"
    )


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        pytest.param(
            {GPU: 1, MEM: 3000, PERCENT: 50},
            f"[{PERCENT}]: Forbidden: memory is counted in MiB by {MEM} or in percent by "
            f"{PERCENT}, not both",
            id="memory twice",
        ),
        pytest.param(
            {GPU: 1, PERCENT: 101},
            f"[{PERCENT}]: Invalid value: 101: percent of each card, at most 100",
            id="more memory than a card has",
        ),
        pytest.param(
            {GPU: 1, CORES: 101},
            f"[{CORES}]: Invalid value: 101: percent of each card, at most 100",
            id="more compute than a card has",
        ),
        pytest.param(
            {GPU: 1, MEM: "16Gi"},
            f'[{MEM}]: Invalid value: "16Gi": more than 1048576 MiB of one card; the value counts '
            "MiB: write 6144 for 6 GiB, not 6Gi",
            id="bytes",
        ),
        pytest.param(
            {GPU: 1, MEM: 1048577},
            f'[{MEM}]: Invalid value: "1048577": more than 1048576 MiB of one card; the value '
            "counts MiB: write 6144 for 6 GiB, not 6Gi",
            id="a MiB too much",
        ),
        pytest.param(
            {GPU: 0, MEM: 3000},
            f"[{GPU}]: Invalid value: 0: {MEM} is of each card; nearest legal value 1",
            id="of no card",
        ),
        pytest.param(
            {GPU: 1025, MEM: 3000},
            f"[{GPU}]: Invalid value: 1025: no node has more than 1024",
            id="more cards than there are",
        ),
    ],
)
def test_what_breaks_a_rule_is_named(limits: dict[str, Json], fault: str) -> None:
    """Contract 1, facts 6 to 8, 10 and 11, as ours."""
    assert faults(gpu_pod(limits)) == [f"spec.containers[0].resources.requests{fault}"]


def test_the_limits_are_legal() -> None:
    """The largest amounts that are not refused."""
    assert given(gpu_pod({GPU: 1024, MEM: 1048576, CORES: 99})) == [(1024, 99, 1048576, 0, False)]


def test_every_violation_is_named_at_once() -> None:
    """Users get all of it at once."""
    body = pod(
        container("a", limits={GPU: 1, CORES: 200, PERCENT: 200}),
        container("b", limits={GPU: 0, MEM: 1}),
    )

    assert len(faults(body)) == 3


@pytest.mark.parametrize(
    ("annotations", "only"),
    [
        pytest.param({}, None, id="no wish"),
        pytest.param({USE_TYPE: "  ", NOUSE_ID: ""}, None, id="blank values"),
        pytest.param(
            {USE_TYPE: "A100,V100", NOUSE_TYPE: " PCIE ,"},
            CardFilter(models=("A100", "V100"), not_models=("PCIE",)),
            id="models",
        ),
        pytest.param(
            {USE_ID: " abc , 123 ", NOUSE_ID: "456"},
            CardFilter(ids=("abc", "123"), not_ids=("456",)),
            id="UUIDs",
        ),
        pytest.param({NOUSE_TYPE: " , "}, None, id="no word in a list of what not to use"),
    ],
)
def test_the_wished_cards_are_read(annotations: dict[str, str], only: CardFilter | None) -> None:
    """Contract 2: of a whole card, too."""
    request = decode_pod(gpu_pod({GPU: 1}, annotations=annotations))

    assert request.card_filter == only


@pytest.mark.parametrize(
    ("only", "model", "device_id", "takes"),
    [
        pytest.param(CardFilter(models=("a100", "V100")), "NVIDIA-A100", "", True, id="any case"),
        pytest.param(CardFilter(models=("V100",)), "NVIDIA-A100", "", False, id="another model"),
        pytest.param(CardFilter(not_models=("A100",)), "NVIDIA-A100", "", False, id="kept off"),
        pytest.param(CardFilter(not_models=("V100",)), "NVIDIA-A100", "", True, id="not this one"),
        pytest.param(
            CardFilter(models=("A100",), not_models=("A100",)), "NVIDIA-A100", "", False, id="both"
        ),
        pytest.param(CardFilter(ids=("abc", "123")), "", "abc", True, id="this id"),
        pytest.param(CardFilter(ids=("abc",)), "", "1abc", False, id="a part of an id"),
        pytest.param(CardFilter(ids=("abc",)), "", "ABC", False, id="an id in capitals"),
        pytest.param(CardFilter(not_ids=("abc",)), "", "abc", False, id="not this id"),
        pytest.param(CardFilter(ids=("abc",), not_ids=("abc",)), "", "abc", False, id="both ids"),
        pytest.param(CardFilter(ids=("abc",), not_ids=("456",)), "", "abc", True, id="not that"),
        pytest.param(CardFilter(models=("A100",)), "", "abc", False, id="a model nobody told"),
    ],
)
def test_a_card_passes_by_model_and_id(
    only: CardFilter, model: str, device_id: str, *, takes: bool
) -> None:
    """Contract 2: models by a part of the text, ids letter for letter; `nouse` wins."""
    assert only.takes(model, device_id) is takes


@pytest.mark.parametrize(
    ("limits", "annotations", "fault"),
    [
        pytest.param(
            {GPU: 1, MEM: 1},
            {USE_TYPE: ","},
            f'[{USE_TYPE}]: Invalid value: ",": names nothing, so no card would do',
            id="a list without a word",
        ),
        pytest.param(
            {GPU: 2, MEM: 1},
            {USE_ID: "a,b", NOUSE_ID: "b"},
            f'[{USE_ID}]: Invalid value: "a,b": leaves 1 cards, and the pod asks for 2 different '
            "ones",
            id="fewer ids than cards",
        ),
        pytest.param(
            {GPU: 2, MEM: 1},
            {"nvidia.com/numa-bind": "true"},
            "[nvidia.com/numa-bind]: not supported by this release: several GPUs on one NUMA node",
            id="one NUMA node",
        ),
        pytest.param(
            {GPU: 1, MEM: 1},
            {"nvidia.com/vgpu-mode": "mig"},
            "[nvidia.com/vgpu-mode]: not supported by this release: modes of a card other than "
            "hami-core",
            id="a MIG instance",
        ),
        *(
            pytest.param({GPU: 1, MEM: 1}, {key: value}, f"[{key}]: {fault}", id=f"{name} {value}")
            for key, value, fault in (
                (CARD_POLICY, "numa", f"{UNSUPPORTED} cards in the order of NUMA nodes"),
                (CARD_POLICY, "spread, numa", f"{UNSUPPORTED} cards in the order of NUMA nodes"),
                (CARD_POLICY, "topology-aware", f"{UNSUPPORTED} links between shares of cards"),
                (
                    CARD_POLICY,
                    "spraed",
                    f'Invalid value: "spraed": must be of {CARD_POLICIES}',
                ),
                (NODE_POLICY, "numa", 'Invalid value: "numa": must be of binpack, spread'),
                (
                    NODE_POLICY,
                    "binpack,spread",
                    'Invalid value: "binpack,spread": must be of binpack, spread',
                ),
                (WEIGHTS, "slot=1,core=1,memory=3", f"{UNSUPPORTED} {WEIGHED}"),
                (WEIGHTS, "memory", f"{UNSUPPORTED} {WEIGHED}"),
            )
            for name in (key.removeprefix("hami.io/"),)
        ),
        pytest.param(
            {GPU: 1, MEM: 1},
            {"hami.io/gpu-scheduler-policy": "binpack,mutex"},
            "[hami.io/gpu-scheduler-policy]: not supported by this release: a share that begins on "
            "an idle card",
            id="an idle card",
        ),
    ],
)
def test_a_wish_that_is_not_honoured_is_refused(
    limits: dict[str, Json], annotations: dict[str, str], fault: str
) -> None:
    """Contract 2, as ours: never placed as if it had not been asked."""
    found = faults(gpu_pod(limits, annotations=annotations))

    assert found == [f"metadata.annotations{fault}"]


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        pytest.param({GPU: 1, MEM: 1}, {"nvidia.com/numa-bind": "true"}, id="one card is on one"),
        pytest.param({GPU: 2, MEM: 1}, {"nvidia.com/numa-bind": "yes"}, id="no boolean is false"),
        pytest.param({GPU: 1, MEM: 1}, {"nvidia.com/vgpu-mode": "hami-core"}, id="our mode"),
        pytest.param({GPU: 2}, {CARD_POLICY: "topology-aware"}, id="whole cards by their links"),
        pytest.param({GPU: 1, MEM: 1}, {WEIGHTS: "slot=1,core=1,memory=1"}, id="weights alike"),
        pytest.param({GPU: 1, MEM: 1}, {CARD_POLICY: " ", NODE_POLICY: ""}, id="blank"),
        pytest.param({GPU: 2}, {"hami.io/gpu-scheduler-policy": "mutex"}, id="whole cards"),
    ],
)
def test_a_wish_that_changes_nothing_passes(
    limits: dict[str, Json], annotations: dict[str, str]
) -> None:
    """What holds anyway, or is preferred at most, refuses nobody."""
    assert faults(gpu_pod(limits, annotations=annotations)) == []


@pytest.mark.parametrize(
    ("annotations", "node", "cards"),
    [
        pytest.param({}, "", "", id="no wish"),
        pytest.param({CARD_POLICY: "binpack"}, "", "MostAllocated", id="the fullest card"),
        pytest.param({CARD_POLICY: "spread"}, "", "LeastAllocated", id="the emptiest card"),
        pytest.param({CARD_POLICY: "spread,binpack"}, "", "LeastAllocated", id="the first counts"),
        pytest.param({NODE_POLICY: "binpack"}, "binpack", "", id="the fullest node"),
        pytest.param({NODE_POLICY: " spread "}, "spread", "", id="the emptiest node"),
    ],
)
@pytest.mark.parametrize("limits", [{GPU: 1, MEM: 1}, {GPU: 1}], ids=["a share", "a card"])
def test_policies_that_we_have_are_read(
    limits: dict[str, Json], annotations: dict[str, str], node: str, cards: str
) -> None:
    """Contract 2: a Pod's own word is before the settings."""
    request = decode_pod(gpu_pod(limits, annotations=annotations))

    assert (request.node_policy, request.card_scoring) == (node, cards)
