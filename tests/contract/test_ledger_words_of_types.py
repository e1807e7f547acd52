"""The device types that a ledger's words mean: all that its settings ever had."""

from __future__ import annotations

from dataclasses import replace

from ledger.domain.device_types import DeviceType
from ledger.domain.log.events import SettingsChanged
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.settings import settings_hash, settings_json
from scheduler.cluster.snapshot import settings_of
from scheduler.decide.settings import SchedulingSettings
from tests.support.stores import Clock, Store, start

NPU = DeviceType(name="npu", resource="example.com/npu")
XPU = DeviceType(name="xpu", resource="example.com/xpu")


def settings(policy: str, *types: DeviceType) -> SchedulingSettings:
    """Return settings with these types of devices."""
    words = Vocabulary(device_types=types)
    return replace(SchedulingSettings(), node_policy=policy, vocabulary=words)


def recorded(store: Store, *told: SchedulingSettings) -> SchedulingSettings:
    """Record settings one after the other; return those that the ledger is read by."""
    with store.open() as ledger:
        clock = Clock()
        events = [
            SettingsChanged(
                settings_hash=settings_hash(each, seed=1),
                settings=settings_json(each, seed=1),
                tenure_version="1",
            )
            for each in told
        ]
        start(ledger).append([clock.new(event) for event in events])
    with store.open("read") as ledger:
        return settings_of(ledger)


def test_a_type_that_settings_dropped_still_means_what_it_did(store: Store) -> None:
    """Whoever holds or asks for such a device does so still; the rest is as of the newest."""
    read = recorded(store, settings("binpack", NPU), settings("spread", XPU))

    assert read.node_policy == "spread"
    assert read.vocabulary.known_types == ("fpga", "gpu", "npu", "rdma", "xpu")


def test_of_two_types_that_claim_a_name_the_newer_counts(store: Store) -> None:
    """By its own name, or by that of its resource."""
    other = replace(NPU, resource="example.com/other")
    renamed = replace(XPU, name="renamed")

    read = recorded(store, settings("binpack", NPU, XPU), settings("spread", other, renamed))

    assert read.vocabulary.device_types == (other, renamed)


def test_a_ledger_without_settings_is_read_by_the_defaults(store: Store) -> None:
    """As ever."""
    with store.open() as ledger:
        start(ledger)
        assert settings_of(ledger) == SchedulingSettings()
