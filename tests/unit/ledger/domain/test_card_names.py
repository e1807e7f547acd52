"""What units of a resource are of cards, by a node's labels: one rule for all vendors."""

from __future__ import annotations

from fractions import Fraction

import pytest

from ledger.domain.request.card_names import (
    WHOLE_CARD,
    Cut,
    are_parts,
    cards_of,
    count_in,
    cut_of,
    may_be_cards,
    product_of,
    stands_for_cards,
)

GPU = "nvidia.com/gpu"
GKE = "cloud.google.com/gke-"
MI = "AMD_Instinct_MI300X_OAM"


@pytest.mark.parametrize(
    ("domain", "labels", "count"),
    [
        ("nvidia.com", {f"{GPU}.count": "8"}, 8),
        ("gpu.intel.com", {"gpu.intel.com/device.count": "2"}, 2),
        ("gpu.intel.com", {"gpu.intel.com/device-id.0380-56c0.count": "1"}, 1),
        ("amd.com", {f"beta.amd.com/gpu.product-name.{MI}": "8"}, 8),
        ("amd.com", {"amd.com/gpu.family.AI": "6", "amd.com/gpu.family.NV": "2"}, 8),
        (
            "amd.com",
            {f"{beta}amd.com/gpu.family.{one}": "2" for beta in ("", "beta.") for one in "AB"},
            4,
        ),
        ("nvidia.com", {"karpenter.k8s.aws/instance-gpu-count": "4"}, 4),
        ("nvidia.com", {"aliyun.accelerator/nvidia_count": "2"}, 2),
        ("google.com", {f"{GKE}accelerator-count": "4"}, 4),
        ("nvidia.com", {"aliyun.accelerator/nvidia_count": "2", f"{GPU}.count": "1"}, 1),
        ("nvidia.com", {"nvidia.com/mig-1g.5gb.count": "7"}, 0),
        ("nvidia.com", {f"{GPU}.count": "many"}, 0),
        ("nvidia.com", {"gpu.intel.com/device-id.0380-56c0.count": "1"}, 0),
    ],
)
def test_labels_count_cards_whoever_wrote_them(
    domain: str, labels: dict[str, str], count: int
) -> None:
    """Those of one kind are summed; the vendor's own count before a cloud's."""
    assert count_in(labels, domain)[1] == count


@pytest.mark.parametrize(
    ("name", "units", "labels", "mode", "most"),
    [
        (GPU, 4, {f"{GKE}max-shared-clients-per-gpu": "4"}, "replicas", 4),
        (GPU, 4, {f"{GKE}gpu-sharing-strategy": "mps"}, "replicas", 0),
        (GPU, 14, {f"{GKE}gpu-partition-size": "1g.5gb"}, "slices", 7),
        (GPU, 8, {f"{GPU}.count": "2"}, "replicas", 4),
        ("gpu.intel.com/i915", 10, {"gpu.intel.com/device.count": "1"}, "replicas", 10),
        ("amd.com/gpu", 64, {f"beta.amd.com/gpu.product-name.{MI}": "8"}, "replicas", 8),
        ("amd.com/gpu", 64, {"amd.com/gpu.compute-memory-partition": "cpx_nps4"}, "slices", 8),
        ("amd.com/qpx_nps1", 8, {}, "slices", 4),
        ("amd.com/cpx_nps1", 24, {"amd.com/gpu.product-name": "AMD_MI300A"}, "slices", 6),
        ("huawei.com/Ascend310P-2c", 4, {}, "slices", 4),
        ("example.com/gpu.shared", 4, {"example.com/gpu.replicas": "2"}, "replicas", 2),
    ],
)
def test_fewer_cards_than_units_are_parts(
    name: str, units: int, labels: dict[str, str], mode: str, most: int
) -> None:
    """A label or a name that tells of parts means replicas or slices, of every vendor."""
    cut = cut_of(name, labels, units)

    assert cut is not None
    assert (cut.mode, cut.most) == (mode, most)


@pytest.mark.parametrize(
    ("name", "units", "labels"),
    [
        (GPU, 8, {f"{GPU}.count": "8"}),
        (GPU, 4, {f"{GPU}.count": "8"}),
        (GPU, 3, {f"{GPU}.count": "1", f"{GPU}.replicas": "1"}),
        ("amd.com/spx_nps1", 5, {}),
        ("amd.com/gpu", 8, {"amd.com/gpu.compute-memory-partition": "spx_nps1"}),
        ("example.com/npu", 4, {f"{GKE}max-shared-clients-per-gpu": "4"}),
    ],
)
def test_units_that_nothing_cuts_are_cards(name: str, units: int, labels: dict[str, str]) -> None:
    """Labels that say one replica count the cards of one model, and are believed in that."""
    assert cut_of(name, labels, units) == WHOLE_CARD


def test_parts_of_several_kinds_are_on_the_cards_they_need() -> None:
    """MIG's may share a card; AMD's have cards of their own, all cut alike."""
    small, large = cut_of("nvidia.com/mig-1g.5gb", {}), cut_of("nvidia.com/mig-3g.20gb", {})
    assert small
    assert large

    assert cards_of([(small, 14), (large, 4)]) == (4, 18)
    assert cards_of([(Cut(mode="slices", most=8), 24)]) == (3, 3)
    assert cards_of([(Cut(mode="replicas", most=0), 5)]) == (1, 5)
    assert small.size == Fraction(1, 7)


def test_more_cards_than_the_label_counts_are_of_no_known_model() -> None:
    """GPU feature discovery counts the cards of one model."""
    labels = {f"{GPU}.product": "A", f"{GPU}.count": "1"}

    assert (product_of(labels, 1), product_of(labels, 3)) == ("A", "")
    assert product_of({f"{GKE}accelerator": "nvidia-tesla-t4"}) == "nvidia-tesla-t4"


def test_whole_cards_beside_slices_that_need_them_all_are_doubtful() -> None:
    """Two cards can't be whole and cut: such units are placed by number alone."""
    offers = {GPU: 2, "nvidia.com/mig-1g.10gb": 6, "nvidia.com/mig-2g.20gb": 4}

    assert are_parts({f"{GPU}.count": "2"}, offers)
    assert not are_parts({f"{GPU}.count": "4"}, offers)


@pytest.mark.parametrize(
    ("name", "is_card"),
    [
        ("cerit.io/gpu-count", True),
        ("tencent.com/vcuda-core", True),
        ("nvidia.com/GRID_T4-4Q", True),
        ("nvidia.com/TU104GL_Tesla_T4", True),
        ("cambricon.com/mlu370.smlu.vcore", True),
        ("iluvatar.ai/MR-V100-vgpu", True),
        ("tke.cloud.tencent.com/qgpu-core", True),
        ("qualcomm.com/qaic", True),
        ("furiosa.ai/rngd", True),
        ("rebellions.ai/ATOM", True),
        ("tenstorrent.com/n150", True),
        ("intel.com/qat", False),
        ("gpu.intel.com/i915_monitoring", False),
        ("nvidia.com/mlnxnics", False),
        ("rdma/hca_shared_devices_a", False),
        ("smarter-devices/fuse", False),
        ("xilinx.com/fpga-xilinx_u200", False),
        ("nvidia.com/GA102GL_A10", True),
        ("nvidia.com/AD102GL_L40S", True),
        ("openshift.io/tx200", False),
        ("openshift.io/vf100", False),
    ],
)
def test_what_nobody_reads_may_be_cards(name: str, *, is_card: bool) -> None:
    """Names of parts of cards that no rule knows leave the number of cards open."""
    assert may_be_cards(name) is is_card
    assert not stands_for_cards(name)
