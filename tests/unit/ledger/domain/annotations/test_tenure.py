from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from ledger.domain.annotations.tenure import (
    ContainerDevices,
    allocated_key,
    container_index,
    decode_released_at,
    encode_admitted,
    encode_container_devices,
    encode_released_at,
    is_admitted,
    is_managed_namespace,
    read_container_devices,
    visible_key,
)
from ledger.domain.errors import InputError


def test_places_are_short_whatever_the_containers_are_called() -> None:
    """Design section 3: names would break the 63-character limit."""
    assert container_index(0) == "0"
    assert container_index(2, init=True) == "init-2"
    assert visible_key("0") == "tenure.sh/visible.0"
    assert allocated_key("init-2") == "tenure.sh/allocated.init-2"


def test_container_devices_round_trip() -> None:
    """App containers first, each kind by index as a number."""
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
    assert read_container_devices(dict(reversed(annotations.items()))) == containers


def test_a_container_without_gpus_gets_no_annotation() -> None:
    """An absent annotation reads as "no GPU", which is what is meant."""
    assert encode_container_devices([ContainerDevices(index="0")]) == {}
    assert read_container_devices({"other": "x"}) == ()
    half = ContainerDevices(index="0", visible=("GPU-a",))
    assert read_container_devices(encode_container_devices([half])) == (half,)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("tenure.sh/visible.main", "GPU-a"),
        ("tenure.sh/visible.", "GPU-a"),
        ("tenure.sh/visible.-1", "GPU-a"),
        ("tenure.sh/visible.00", "GPU-a"),
        ("tenure.sh/allocated.init-", "GPU-a"),
        ("tenure.sh/allocated.0", ""),
        ("tenure.sh/allocated.0", "GPU-a,"),
        ("tenure.sh/allocated.0", "GPU-a, GPU-b"),
        ("tenure.sh/allocated.0", "GPU-a,GPU-a"),
    ],
    ids=[
        "a name",
        "no place",
        "a negative place",
        "a padded place",
        "half a place",
        "no device",
        "a trailing comma",
        "a blank",
        "a repeated device",
    ],
)
def test_broken_container_devices_are_errors(key: str, text: str) -> None:
    """Only we write these, so anything odd is a fault or a forgery."""
    with pytest.raises(InputError) as caught:
        read_container_devices({key: text})

    assert caught.value.field == f"metadata.annotations[{key}]"


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
    assert decode_released_at("2026-01-05T14:05:09.250000Z") == moment
    assert decode_released_at("2026-01-05T22:05:09.25+08:00") == moment


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-05T14:05:09", "2026-13-05T14:05:09Z"])
def test_other_release_times_are_errors(text: str) -> None:
    """A time without a zone could be anywhere."""
    with pytest.raises(InputError, match="released-at"):
        decode_released_at(text)
