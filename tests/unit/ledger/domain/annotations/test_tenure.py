from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from ledger.domain.annotations.tenure import (
    ContainerDevices,
    allocated_key,
    container_index,
    encode_admitted,
    encode_container_devices,
    encode_released_at,
    is_admitted,
    is_managed_namespace,
    visible_key,
)


def test_places_are_short_whatever_the_containers_are_called() -> None:
    """Design section 3: names would break the 63-character limit."""
    assert container_index(0) == "0"
    assert container_index(2, init=True) == "init-2"
    assert visible_key("0") == "tenure.sh/visible.0"
    assert allocated_key("init-2") == "tenure.sh/allocated.init-2"


def test_container_devices_are_two_annotations_of_each() -> None:
    """Design section 3: what is shown and what is its own, by the container's index."""
    containers = (
        ContainerDevices(index="2", visible=("GPU-a", "GPU-b"), allocated=("GPU-a",)),
        ContainerDevices(index="10", visible=("GPU-c",), allocated=("GPU-c",)),
        ContainerDevices(index="init-0", visible=("GPU-a",), allocated=("GPU-a",)),
    )
    annotations = encode_container_devices(containers)

    assert annotations == {
        "tenure.sh/visible.2": "GPU-a,GPU-b",
        "tenure.sh/allocated.2": "GPU-a",
        "tenure.sh/visible.10": "GPU-c",
        "tenure.sh/allocated.10": "GPU-c",
        "tenure.sh/visible.init-0": "GPU-a",
        "tenure.sh/allocated.init-0": "GPU-a",
    }


def test_a_container_without_gpus_gets_no_annotation() -> None:
    """An absent annotation reads as "no GPU", which is what is meant."""
    assert encode_container_devices([ContainerDevices(index="0")]) == {}
    half = ContainerDevices(index="0", visible=("GPU-a",))
    assert encode_container_devices([half]) == {"tenure.sh/visible.0": "GPU-a"}


def test_marks_are_the_text_true() -> None:
    """Any other value is no mark."""
    assert encode_admitted() == {"tenure.sh/admitted": "true"}
    assert is_admitted(encode_admitted())
    assert not is_admitted({"tenure.sh/admitted": "yes"})
    assert is_managed_namespace({"tenure.sh/managed": "true"})
    assert not is_managed_namespace({})


def test_release_times_are_utc_to_the_microsecond() -> None:
    """Two releases in one second are two values, so the Node changes each time."""
    moment = datetime(2026, 1, 5, 14, 5, 9, 250000, tzinfo=UTC)
    east = moment.astimezone(timezone(timedelta(hours=8)))

    assert encode_released_at(moment) == encode_released_at(east) == "2026-01-05T14:05:09.250000Z"
