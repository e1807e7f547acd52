from __future__ import annotations

import pytest

from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.registry import rewritten
from ledger.domain.errors import RefusedError
from ledger.domain.request.normalise import decode_pod
from tests.support.objects import Object, container, gpu_pod, pod

GPU = "nvidia.com/gpu"
MEM = "nvidia.com/gpumem"
PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
SHARED = "koordinator.sh/gpu.shared"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
MIB = 2**20


@pytest.mark.parametrize(
    ("body", "dialect"),
    [
        pytest.param(gpu_pod({GPU: 2}), Dialect.NVIDIA, id="cards alone"),
        pytest.param(gpu_pod({GPU: 2, MEM: 3000}), Dialect.HAMI, id="a share"),
        pytest.param(gpu_pod({MEM: 3000}), Dialect.HAMI, id="a share without a number of cards"),
        pytest.param(gpu_pod({GPU: 2, MEM: 0, CORES: 0}), Dialect.NVIDIA, id="zeros ask nothing"),
        pytest.param(
            pod(container("a", limits={GPU: 1}), container("b", limits={GPU: 1, CORES: 30})),
            Dialect.HAMI,
            id="a share in another container",
        ),
        pytest.param(
            gpu_pod({GPU: 1}, annotations={"nvidia.com/use-gputype": "A100"}),
            Dialect.HAMI,
            id="cards of a model",
        ),
        pytest.param(
            gpu_pod({GPU: 1}, annotations={"nvidia.com/use-gputype": " "}),
            Dialect.NVIDIA,
            id="a blank wish",
        ),
        pytest.param(
            gpu_pod({"koordinator.sh/gpu": 100}, annotations={"nvidia.com/use-gputype": "A100"}),
            Dialect.KOORDINATOR,
            id="its annotations are no words of Koordinator's",
        ),
    ],
)
def test_hamis_words_or_wishes_make_the_dialect(body: Object, dialect: Dialect) -> None:
    """`nvidia.com/gpu` is borrowed: alone it is whole cards of NVIDIA's dialect."""
    assert decode_pod(body).dialect is dialect


@pytest.mark.parametrize(
    "other", ["amd.com/gpu", "koordinator.sh/gpu", "aliyun.com/gpu-mem", "koordinator.sh/gpu-core"]
)
def test_another_dialect_beside_it_is_refused(other: str) -> None:
    """Design section 3: a Pod asks in one dialect."""
    with pytest.raises(RefusedError, match="in one dialect only"):
        decode_pod(gpu_pod({GPU: 1, MEM: 3000, other: 100}))


def test_only_cards_of_nvidia_will_do() -> None:
    """Koordinator contract 1.2, as for `nvidia.com/gpu`."""
    shared, whole = (decode_pod(gpu_pod({GPU: 1, **more})) for more in ({MEM: 1}, {}))

    assert shared.placement.affinity_terms == whole.placement.affinity_terms
    assert shared.placement.affinity_terms
    assert decode_pod(gpu_pod({MEM: 0})).placement.affinity_terms is None


@pytest.mark.parametrize(
    ("amounts", "written"),
    [
        pytest.param(
            {GPU: 2, MEM: 3000, CORES: 30},
            {SHARED: 2, CORE: 60, MEMORY: 6000 * MIB},
            id="of each of two cards",
        ),
        pytest.param(
            {GPU: 2, PERCENT: 50}, {SHARED: 2, RATIO: 100}, id="percent of memory, no compute"
        ),
        pytest.param({CORES: 30}, {SHARED: 1, CORE: 30, RATIO: 100}, id="all of the memory"),
        pytest.param({GPU: 1}, {SHARED: 1, CORE: 100, RATIO: 100}, id="a whole card"),
        pytest.param(
            {GPU: 1, MEM: 3000, "koordinator.sh/rdma": 50},
            {SHARED: 1, MEMORY: 3000 * MIB, "koordinator.sh/rdma": 50},
            id="what is beside it stays",
        ),
    ],
)
def test_admission_writes_sums_over_the_cards(
    amounts: dict[str, int], written: dict[str, int]
) -> None:
    """Koordinator contract 4.4: its numbers are for all cards together."""
    assert rewritten(amounts) == written
