"""`tenure simulate` on a machine as its agent reports it: found, told, read, and placed on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from agent.discover.bandwidth import read_bandwidth
from agent.discover.machine import Discovery, Fault, GpuLink, Nic, Place
from agent.report.device import wanted
from agent.report.offers import node_offers
from ledger.domain.devices import VirtualFunction
from ledger.domain.dialects.names import Dialect
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from tests.support.cli import CommandLine
from tests.support.machines_found import card
from tests.support.objects import Object, gpu_pod, node

pytestmark = pytest.mark.integration

ROOTS: Final = ("pci0000:3a", "pci0000:3a", "pci0000:5d", "pci0000:5d")
FOUR: Final = Discovery(
    driver_version="550.90",
    cards=tuple(card(minor, numa=minor // 2, root=root) for minor, root in enumerate(ROOTS)),
    links=tuple(
        GpuLink(first=a, second=b, nvlinks=4 * ((a, b) in {(0, 3), (1, 2)}), nvlink_mbps=25_000)
        for a in range(4)
        for b in range(a + 1, 4)
    ),
    nics=(
        Nic(
            name="mlx5_0",
            minor=0,
            place=Place(bus_id="0000:5e:00.0", root="pci0000:5d", numa_node=1),
            fabric="roce",
            vfs=(VirtualFunction(minor=0, bus_id="0000:5e:00.2"),),
        ),
    ),
)
"""Cards in pairs below two roots, with NVLinks across: 0 with 3, 1 with 2."""


@pytest.fixture
def line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return CommandLine(tmp_path / "run.db", capsys)


def reported(found: Discovery) -> list[Mapping[str, Any]]:
    """Return the Node and the Device as their agent leaves them."""
    cpus = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    plain = {"apiVersion": "v1", **node("n1")}
    metadata: Any = {"name": "n1", "uid": "uid-1"}
    told = {**plain, "metadata": metadata}
    want = wanted(found, told, None, (), vocabulary=DEFAULT_VOCABULARY, now="2026-01-01T00:00:00Z")
    amounts = node_offers(
        found, [], None, dialects=frozenset(Dialect), vocabulary=DEFAULT_VOCABULARY
    )
    assert want.device is not None
    labels = {**want.labels, "tenure.sh/owned": "true"}
    status = {"allocatable": {**cpus, **amounts}, "capacity": {**cpus, **amounts}}
    return [{**plain, "metadata": {**metadata, "labels": labels}, "status": status}, want.device]


def placed(line: CommandLine, found: Discovery, *pods: Object) -> dict[str, dict[str, list[str]]]:
    """Return, by Pod that was placed, its devices by type."""
    items = [*reported(found), *pods]
    Path("in.json").write_text(json.dumps({"kind": "List", "items": items}), encoding="utf-8")
    done = line.run("simulate", "in.json", "--now", "2026-03-02T09:00:00Z", "-o", "json")
    assert done.code in (0, 1), done.err
    assert "warning" not in done.err
    return {
        item["name"]: {
            kind: [str(device["minor"]) for device in devices]
            for kind, devices in item["devices"].items()
        }
        for item in json.loads(done.out)["placements"]
        if item["node"]
    }


def test_a_reported_machine_is_placed_on_by_its_links(line: CommandLine) -> None:
    """NVLinks count more than a shared root; what somebody measured more than both."""
    pair = gpu_pod({"nvidia.com/gpu": "2"}, name="pair")
    assert placed(line, FOUR, pair) == {"pair": {"gpu": ["0", "3"]}}


def test_measured_links_count_before_derived_ones(line: CommandLine) -> None:
    """Two of nccl-tests' cards that are faster together than the NVLinks say."""
    runs = "".join(
        f"# Using devices\n#  Rank 0 Group 0 Pid 1 on n1 device 0 [0000:{a + 0x3B:02x}:00] x\n"
        f"#  Rank 1 Group 0 Pid 1 on n1 device 1 [0000:{b + 0x3B:02x}:00] x\n"
        f" 8 2 float none -1 1.0 1.0 {400 if (a, b) == (2, 3) else 10}.0 0 1.0 1.0 1.0 0\n"
        for a in range(4)
        for b in range(a + 1, 4)
    )
    found = replace(FOUR, measured=read_bandwidth(runs, FOUR.cards))
    pair = gpu_pod({"nvidia.com/gpu": "2"}, name="pair")

    assert placed(line, found, pair) == {"pair": {"gpu": ["2", "3"]}}


def test_a_card_that_is_closed_is_given_to_nobody(line: CommandLine) -> None:
    """Four are asked for, three are whole."""
    ill = (*FOUR.cards[:3], replace(FOUR.cards[3], faults=(Fault(reason="Xid79"),)))
    found = replace(FOUR, cards=ill)
    three = gpu_pod({"nvidia.com/gpu": "3"}, name="three")
    four = gpu_pod({"nvidia.com/gpu": "4"}, name="four")

    assert placed(line, found, four, three) == {"three": {"gpu": ["0", "1", "2"]}}


def test_a_nic_goes_with_the_cards_of_its_root(line: CommandLine) -> None:
    """With one of its virtual functions; the root is the one that sysfs has for both."""
    prefix = "scheduling.koordinator.sh"
    joint = json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})
    hint = json.dumps({"rdma": {"vfSelector": {}, "selector": {"matchLabels": {"fabric": "roce"}}}})
    pod = gpu_pod(
        {"koordinator.sh/gpu": "100", "koordinator.sh/rdma": "1"},
        name="near",
        annotations={
            f"{prefix}/device-joint-allocate": joint,
            f"{prefix}/device-allocate-hint": hint,
        },
    )

    (devices,) = placed(line, FOUR, pod).values()
    assert devices["rdma"] == ["0"]
    assert devices["gpu"][0] in {"2", "3"}
