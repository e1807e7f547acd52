from __future__ import annotations

from types import ModuleType

import pytest

from ledger.domain import resources
from ledger.domain.dialects.gpushare import words as gpushare
from ledger.domain.dialects.mgpu import words as mgpu
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.registry import gpu_dialect_of
from ledger.domain.resources import is_extended, is_native, unhealthy_gpu_config_map
from ledger.domain.vocabulary import DEFAULT_VOCABULARY

ALIASES = {
    "kubernetes.io/gpu": "koordinator.sh/gpu",
    "kubernetes.io/gpu-core": "koordinator.sh/gpu-core",
    "kubernetes.io/gpu-memory": "koordinator.sh/gpu-memory",
    "kubernetes.io/gpu-mem": "koordinator.sh/gpu-memory",
    "kubernetes.io/gpu-memory-ratio": "koordinator.sh/gpu-memory-ratio",
    "kubernetes.io/gpu-mem-ratio": "koordinator.sh/gpu-memory-ratio",
    "kubernetes.io/rdma": "koordinator.sh/rdma",
    "kubernetes.io/fpga": "koordinator.sh/fpga",
    "koordinator.sh/batch-cpu": "kubernetes.io/batch-cpu",
    "koordinator.sh/batch-memory": "kubernetes.io/batch-memory",
}

WITHOUT_ALIAS = [
    "koordinator.sh/gpu",
    "koordinator.sh/gpu.shared",
    "kubernetes.io/gpu.shared",
    "nvidia.com/gpu",
    "amd.com/gpu",
    "dcu.com/gpu",
    "huawei.com/npu-core",
    "kubernetes.io/batch-cpu",
    "kubernetes.io/mid-cpu",
    "vke.volcengine.com/mgpu-core",
    "aliyun.com/gpu-mem",
    "cpu",
    "memory",
    "example.com/unknown",
]


@pytest.mark.parametrize(("alias", "released"), ALIASES.items(), ids=ALIASES)
def test_aliases_become_released_names(alias: str, released: str) -> None:
    """Koordinator contract 1.1: both domains, the typos, and batch in the reverse direction."""
    assert DEFAULT_VOCABULARY.canonical(alias) == released
    assert DEFAULT_VOCABULARY.canonical(released) == released


@pytest.mark.parametrize("name", WITHOUT_ALIAS)
def test_other_names_stay(name: str) -> None:
    """A name without an alias is its own canonical name."""
    assert DEFAULT_VOCABULARY.canonical(name) == name


def test_the_released_spelling_wins() -> None:
    """Koordinator contract 1.1, alias rule."""
    amounts = {"kubernetes.io/gpu-core": 1, "koordinator.sh/gpu-core": 2, "cpu": 4}

    assert DEFAULT_VOCABULARY.canonical_resources(amounts) == {
        "cpu": 4,
        "koordinator.sh/gpu-core": 2,
    }


def test_of_two_aliases_the_first_in_text_order_wins() -> None:
    """The answer does not depend on the order of the input."""
    amounts = {"kubernetes.io/gpu-memory": 1, "kubernetes.io/gpu-mem": 2}

    assert DEFAULT_VOCABULARY.canonical_resources(amounts) == {"koordinator.sh/gpu-memory": 2}
    assert DEFAULT_VOCABULARY.canonical_resources(dict(reversed(amounts.items()))) == {
        "koordinator.sh/gpu-memory": 2
    }


@pytest.mark.parametrize(
    ("name", "device_type", "dialect"),
    [
        ("koordinator.sh/gpu", "gpu", Dialect.KOORDINATOR),
        ("koordinator.sh/gpu.shared", "gpu", Dialect.KOORDINATOR),
        ("kubernetes.io/gpu-mem", "gpu", Dialect.KOORDINATOR),
        ("koordinator.sh/gpu-memory-ratio", "gpu", Dialect.KOORDINATOR),
        ("huawei.com/npu-core", "gpu", Dialect.KOORDINATOR),
        ("huawei.com/npu-cpu", "gpu", Dialect.KOORDINATOR),
        ("huawei.com/npu-dvpp", "gpu", Dialect.KOORDINATOR),
        ("nvidia.com/gpu", "gpu", Dialect.NVIDIA),
        ("amd.com/gpu", "gpu", Dialect.NVIDIA),
        ("dcu.com/gpu", "gpu", Dialect.NVIDIA),
        ("vke.volcengine.com/mgpu-core", "gpu", Dialect.MGPU),
        ("vke.volcengine.com/mgpu-memory", "gpu", Dialect.MGPU),
        ("aliyun.com/gpu-mem", "gpu", Dialect.GPUSHARE),
        ("aliyun.com/gpu-count", "gpu", Dialect.GPUSHARE),
        ("aliyun.com/gpu-core.percentage", "gpu", Dialect.GPUSHARE),
        ("koordinator.sh/rdma", "rdma", None),
        ("kubernetes.io/rdma", "rdma", None),
        ("kubernetes.io/fpga", "fpga", None),
        ("kubernetes.io/batch-cpu", None, None),
        ("tenure.sh/slot", None, None),
        ("cpu", None, None),
    ],
)
def test_names_know_their_device_type_and_dialect(
    name: str, device_type: str | None, dialect: Dialect | None
) -> None:
    """Koordinator contract 1.1; RDMA and FPGA mix with every GPU dialect."""
    assert DEFAULT_VOCABULARY.device_type_of(name) == device_type
    assert gpu_dialect_of(name) == dialect


@pytest.mark.parametrize(
    ("name", "native", "extended", "device"),
    [
        ("cpu", True, False, False),
        ("hugepages-2Mi", True, False, False),
        ("kubernetes.io/gpu-core", True, False, True),
        ("kubernetes.io/batch-cpu", True, False, False),
        ("koordinator.sh/gpu-core", False, True, True),
        ("nvidia.com/gpu", False, True, True),
        ("example.com/license", False, True, False),
        ("requests.example.com/quota", False, False, False),
    ],
)
def test_what_the_api_server_enforces_is_known(
    *, name: str, native: bool, extended: bool, device: bool
) -> None:
    """Requests must equal limits for extended resources, and by our rule for devices."""
    assert is_native(name) is native
    assert is_extended(name) is extended
    assert (name in DEFAULT_VOCABULARY.device_names) is device


def test_proposal_names_are_the_way_back() -> None:
    """Every released device name with a proposal spelling has exactly one; others stay."""
    assert (
        DEFAULT_VOCABULARY.proposal_name("koordinator.sh/gpu-memory") == "kubernetes.io/gpu-memory"
    )
    assert (
        DEFAULT_VOCABULARY.proposal_name("koordinator.sh/gpu.shared") == "koordinator.sh/gpu.shared"
    )
    assert (
        DEFAULT_VOCABULARY.canonical(DEFAULT_VOCABULARY.proposal_name("koordinator.sh/rdma"))
        == "koordinator.sh/rdma"
    )


def test_the_unhealthy_list_is_named_after_the_node() -> None:
    """GPU-sharing contract B.1."""
    assert unhealthy_gpu_config_map("n-17") == "unhealthy-gpu-n-17"


def _names_of(module: ModuleType) -> list[tuple[str, str]]:
    return [pair for pair in vars(module).items() if isinstance(pair[1], str)]


def test_no_two_constants_spell_one_name_by_accident() -> None:
    """A name spelled twice is spelled twice on purpose: the pairs below."""
    prefixes = ("LABEL_", "ANNOTATION_", "TAINT_")
    by_text: dict[str, list[str]] = {}
    modules = (resources, gpushare, mgpu)
    for constant, text in sorted(pair for module in modules for pair in _names_of(module)):
        if constant.startswith(prefixes):
            by_text.setdefault(text, []).append(constant)

    assert [names for names in by_text.values() if len(names) > 1] == [
        ["ANNOTATION_MGPU_COMPUTE_POLICY", "LABEL_MGPU_COMPUTE_POLICY"],
        ["LABEL_TENURE_OWNED", "TAINT_TENURE_OWNED"],
    ]
