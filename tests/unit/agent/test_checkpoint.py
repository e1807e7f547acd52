"""Kubelet's checkpoint of devices: what kubelet wrote is read, and nothing else is believed."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.json_format import MessageToDict

from agent.checkpoint import (
    BYTES_MAX,
    CheckpointError,
    CheckpointFault,
    DeviceCheckpoint,
    read_device_checkpoint,
)
from agent.plugin.messages import ContainerAllocateResponse

SAMPLES: Final = sorted((Path(__file__).parents[2] / "samples" / "kubelet").glob("*.json"))
V1: Final = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"c1","ResourceName":'
    b'"nvidia.com/gpu","DeviceIDs":["GPU-a"],"AllocResp":null}],"RegisteredDevices":'
    b'{"nvidia.com/gpu":["GPU-a"],"rdma/hca":[]}},"Checksum":3275011752}'
)
V2: Final = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"11111111-2222-3333-4444-555555555555",'
    b'"ContainerName":"trainer","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["GPU-a"],'
    b'"1":["GPU-b","GPU-c"]},"AllocResp":"CgoKAUESBUdQVS1h"}],"RegisteredDevices":'
    b'{"nvidia.com/gpu":["GPU-a","GPU-b","GPU-c","GPU-d"]}},"Checksum":875023044}'
)
MUTATIONS: Final = 20_000
PARTS: Final = 4
"""Of them, for processes that test beside one another."""


def changed(content: bytes, **data: object) -> bytes:
    """Return the file with other data under the old checksum."""
    file: dict[str, Any] = json.loads(content)
    file["Data"] |= data
    return json.dumps(file).encode()


def entry(**fields: object) -> dict[str, object]:
    """Return an entry as JSON."""
    whole: dict[str, object] = {"PodUID": "u", "ContainerName": "c", "ResourceName": "r"}
    return {**whole, "DeviceIDs": {"0": ["a"]}, "AllocResp": None, **fields}


@pytest.mark.parametrize("path", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_what_kubelet_wrote_is_read_and_its_checksum_is_equal(path: Path) -> None:
    """Files captured of kubelet 1.36."""
    raw = json.loads(path.read_bytes())["Data"]["PodDeviceEntries"]

    read = read_device_checkpoint(path.read_bytes())

    assert [one.pod_uid for one in read.entries] == [one["PodUID"] for one in raw]
    assert [one.container for one in read.entries] == [one["ContainerName"] for one in raw]
    for one, said in zip(read.entries, raw, strict=True):
        assert one.ids() == {device for ids in said["DeviceIDs"].values() for device in ids}
        answer = MessageToDict(ContainerAllocateResponse.FromString(one.response))
        shown = answer["envs"]["NVIDIA_VISIBLE_DEVICES"].split(",")
        assert set(shown) == one.ids()


def test_ids_of_either_format_are_read() -> None:
    """V1 has a list of them, V2 one for each NUMA node; GPU-sharing contract D.3's own files."""
    (old,) = read_device_checkpoint(V1).entries
    (new,) = read_device_checkpoint(V2).entries

    assert old.device_ids == {-1: ("GPU-a",)}
    assert new.device_ids == {0: ("GPU-a",), 1: ("GPU-b", "GPU-c")}


def test_a_file_of_a_kubelet_without_devices_is_read() -> None:
    """Kubelet writes null for what it has none of."""
    empty = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":%d}'
    with pytest.raises(CheckpointError) as refusal:
        read_device_checkpoint(empty % 1)
    computed = re.search(r"computed=(\d+)", str(refusal.value))
    assert computed

    read = read_device_checkpoint(empty % int(computed[1]))

    assert read == DeviceCheckpoint(entries=())


def test_as_many_ids_as_kubelet_takes_are_read_where_all_are_given() -> None:
    """Each stands there twice then."""
    ids = [f"GPU-8f39a1b2-1c2d-3e4f-5a6b-7c8d9e0f1a-{number:05d}" for number in range(65_536)]
    entries = [entry(DeviceIDs={"-1": ids[at::8]}) for at in range(8)]
    whole = changed(V2, PodDeviceEntries=entries, RegisteredDevices={"r": ids})
    assert len(whole) > 6_000_000
    with pytest.raises(CheckpointError) as refusal:
        read_device_checkpoint(whole)
    assert refusal.value.fault is CheckpointFault.WRONG_CHECKSUM
    (found,) = re.findall(rb"computed=(\d+)", str(refusal.value).encode())
    read = read_device_checkpoint(whole.replace(b"875023044", found))
    assert frozenset().union(*(each.ids() for each in read.entries)) == frozenset(ids)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", CheckpointFault.NOT_JSON),
        (V2[:-20], CheckpointFault.NOT_JSON),
        (V2.replace(b"trainer", b"tr\xffiner"), CheckpointFault.NOT_JSON),
        (b'{"x":' + b"[" * 100_000, CheckpointFault.NOT_JSON),
        (b"[]", CheckpointFault.OTHER_SHAPE),
        (b'{"Data":{}}', CheckpointFault.OTHER_SHAPE),
        (changed(V2, PodDeviceEntries=[entry(PodUID="")]), CheckpointFault.OTHER_SHAPE),
        (changed(V2, PodDeviceEntries=[entry(DeviceIDs="a")]), CheckpointFault.OTHER_SHAPE),
        (changed(V2, PodDeviceEntries=[entry(DeviceIDs={"x": []})]), CheckpointFault.OTHER_SHAPE),
        (changed(V2, PodDeviceEntries=[entry(AllocResp="%")]), CheckpointFault.OTHER_SHAPE),
        (
            changed(V2, PodDeviceEntries=[entry(), entry(DeviceIDs=["a"])]),
            CheckpointFault.OTHER_SHAPE,
        ),
        (V2.replace(b"GPU-b", b"GPU-d"), CheckpointFault.WRONG_CHECKSUM),
        (V2.replace(b"875023044", b"875023045"), CheckpointFault.WRONG_CHECKSUM),
        (changed(V2, PodDeviceEntries=None), CheckpointFault.WRONG_CHECKSUM),
        (b" " * (BYTES_MAX + 1), CheckpointFault.TOO_LARGE),
    ],
    ids=[
        *("nothing", "torn", "no text", "too deep", "a list", "no checksum", "no Pod"),
        *("ids as text", "a NUMA node that is none", "no base64", "both formats"),
        *("another id", "another checksum", "no entries", "too large"),
    ],
)
def test_anything_else_is_refused_by_name(content: bytes, fault: CheckpointFault) -> None:
    """A refused file frees nothing; who reads it learns why."""
    with pytest.raises(CheckpointError) as refusal:
        read_device_checkpoint(content)

    assert refusal.value.fault is fault
    assert "kubelet_internal_checkpoint" in str(refusal.value)


def survives(number: int) -> bool:
    """Damage a sample by this seed; tell whether it is still read, and rightly."""
    rng = random.Random(number)
    whole = SAMPLES[number % len(SAMPLES)].read_bytes()
    damaged = bytearray(whole)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(damaged) or 1)
        match rng.randrange(4):
            case 0 if damaged:
                damaged[at] ^= 1 << rng.randrange(8)
            case 1:
                del damaged[at : at + rng.randint(1, 40)]
            case 2:
                damaged[at:at] = whole[at : at + rng.randint(1, 40)]
            case _:
                del damaged[at:]
                damaged += whole[rng.randrange(len(whole)) :]
    try:
        read = read_device_checkpoint(bytes(damaged))
    except CheckpointError:
        return False
    assert read == read_device_checkpoint(whole), (number, bytes(damaged))
    return True


@pytest.mark.campaign_sample
@pytest.mark.parametrize("part", range(PARTS))
def test_a_damaged_file_is_refused_or_read_rightly(part: int) -> None:
    """Bits turned, parts lost, doubled and mixed."""
    still = sum(map(survives, range(part, MUTATIONS, PARTS)))

    assert still < MUTATIONS // PARTS // 10


@pytest.mark.slow
def test_a_million_damaged_files_are_refused_or_read_rightly() -> None:
    """As above."""
    for number in range(MUTATIONS * 50):
        survives(number)
