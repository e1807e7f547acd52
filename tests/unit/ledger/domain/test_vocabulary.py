from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import pytest

from ledger.domain.device_types import BUILT_IN, DeviceType, Unit
from ledger.domain.kube.device_objects import inventory_of_device
from ledger.domain.log.codec import decode_value, plain_value
from ledger.domain.request.normalise import decode_pod
from ledger.domain.request.requests import PodRequest
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from tests.support.objects import Object, container, pod

NPU: Final = DeviceType(name="npu", resource="example.com/npu", unit=Unit.COUNT)
XPU: Final = DeviceType(
    name="xpu",
    resource="koordinator.sh/xpu",
    memory="koordinator.sh/xpu-memory",
    aliases=("kubernetes.io/xpu",),
)
WORDS: Final = Vocabulary(device_types=(NPU, XPU))
PARTS: Final = Vocabulary(device_types=(replace(NPU, unit=Unit.PERCENT),))


def asking() -> Object:
    """Return a Pod that asks for one NPU, by the count or by the percent."""
    return pod(container(limits={"example.com/npu": "1"}))


def test_every_spelling_of_a_type_is_known_to_the_vocabulary_that_describes_it() -> None:
    """And to no other one; the built-in types are in all of them."""
    assert WORDS.device_type_of("kubernetes.io/xpu") == "xpu"
    assert WORDS.device_type_of("koordinator.sh/xpu-memory") == "xpu"
    assert WORDS.canonical("kubernetes.io/xpu") == "koordinator.sh/xpu"
    assert WORDS.proposal_name("koordinator.sh/xpu") == "kubernetes.io/xpu"
    assert {"example.com/npu", "kubernetes.io/xpu", "kubernetes.io/rdma"} <= WORDS.device_names
    assert WORDS.units_max.keys() == WORDS.device_names
    in_bytes = {name for name, most in WORDS.units_max.items() if most > 8_000_000}
    assert {"koordinator.sh/xpu-memory", "kubernetes.io/gpu-mem"} <= in_bytes
    assert "koordinator.sh/xpu" not in in_bytes
    assert WORDS.known_types == ("fpga", "gpu", "npu", "rdma", "xpu")
    assert DEFAULT_VOCABULARY.device_type_of("koordinator.sh/xpu") is None
    assert DEFAULT_VOCABULARY.canonical("kubernetes.io/xpu") == "kubernetes.io/xpu"
    assert DEFAULT_VOCABULARY.known_types == ("fpga", "gpu", "rdma")
    assert DEFAULT_VOCABULARY.device_type_of("kubernetes.io/rdma") == "rdma"


def test_a_built_in_type_can_be_described_anew() -> None:
    """Someone's RDMA may be handed out whole only, under another name."""
    nic = DeviceType(name="rdma", resource="example.com/nic", unit=Unit.COUNT)
    own = Vocabulary(device_types=(nic,))

    assert own.type_named("rdma") == nic
    assert own.device_type_of("koordinator.sh/rdma") is None
    assert DEFAULT_VOCABULARY.type_named("rdma") in BUILT_IN


def test_two_vocabularies_read_one_pod_in_one_process() -> None:
    """Each by its own words, in turns: nothing of one is left when the other reads."""
    for _ in range(3):
        whole, part, none = (
            decode_pod(asking(), words).devices for words in (WORDS, PARTS, DEFAULT_VOCABULARY)
        )
        assert [(one.count, one.core_percent, one.exclusive) for one in whole] == [(1, 100, True)]
        assert [(one.count, one.core_percent, one.exclusive) for one in part] == [(1, 1, False)]
        assert none == ()


def test_threads_that_read_by_different_vocabularies_do_not_disturb_one_another() -> None:
    """Five hundred readings of each, all at once: every one as if it were alone."""
    alone = {words: decode_pod(asking(), words) for words in (WORDS, PARTS, DEFAULT_VOCABULARY)}

    def read(words: Vocabulary) -> tuple[Vocabulary, PodRequest]:
        return words, decode_pod(asking(), words)

    with ThreadPoolExecutor(max_workers=8) as pool:
        found = list(pool.map(read, [*alone] * 500))

    assert all(request == alone[words] for words, request in found)


def test_a_device_is_inventoried_by_the_words_of_its_reader() -> None:
    """The same object: whole devices for one, percents for another, a stranger for a third."""
    item = {"type": "npu", "health": True, "resources": {"example.com/npu": 4}}
    body: Object = {"spec": {"devices": [item]}}

    found = [inventory_of_device(body, "", words) for words in (WORDS, PARTS, DEFAULT_VOCABULARY)]

    assert [one.devices[0].core_percent for one in found] == [100, 4, 0]
    assert [bool(one.warnings) for one in found] == [False, False, True]


SAME: Final = {
    "types in another order": replace(WORDS, device_types=(XPU, NPU)),
    "a built-in type written out": replace(WORDS, device_types=(*WORDS.device_types, *BUILT_IN)),
}


@pytest.mark.parametrize("other", SAME.values(), ids=SAME)
def test_what_means_the_same_has_one_digest(other: Vocabulary) -> None:
    """However the settings say it: two files that agree must not look as if they differed."""
    assert other.digest == WORDS.digest


OTHERS: Final = {
    "a type less": replace(WORDS, device_types=(NPU,)),
    "a type in another unit": replace(WORDS, device_types=(replace(NPU, unit=Unit.PERCENT), XPU)),
    "a built-in type described anew": replace(
        WORDS, device_types=(*WORDS.device_types, replace(BUILT_IN[0], unique_ids=True))
    ),
    "GiB": replace(WORDS, gpushare_unit="GiB"),
    "less memory": replace(WORDS, mgpu_multi_min_memory_mib=128),
    "more memory": replace(WORDS, mgpu_max_memory_mib=1 << 21),
    "another bind policy": replace(WORDS, default_bind_policy="SpreadByPCPUs"),
    "another exclusive policy": replace(WORDS, default_exclusive_policy="PCPULevel"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_means_something_else_has_another_digest(other: Vocabulary) -> None:
    """Every part of it counts."""
    assert other.digest != WORDS.digest
    assert hash(WORDS) == hash(replace(WORDS))


def test_a_vocabulary_is_recorded_as_its_settings_alone() -> None:
    """The tables that were made of it are no part of it, and it comes back as it was."""
    assert WORDS.device_names
    text = json.dumps(plain_value(WORDS), sort_keys=True)

    assert plain_value(WORDS).keys() == {
        "device_types",
        "gpushare_unit",
        "mgpu_multi_min_memory_mib",
        "mgpu_max_memory_mib",
        "default_bind_policy",
        "default_exclusive_policy",
        "whole_cards",
        "slot_mode",
    }
    assert decode_value(Vocabulary, json.loads(text), "") == WORDS
    assert decode_value(Vocabulary, json.loads(text), "").device_names == WORDS.device_names
