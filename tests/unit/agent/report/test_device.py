"""What is reported of a machine is what the scheduler reads of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.discover.faults import CardFault
from agent.discover.machine import (
    Card,
    Discovery,
    Fault,
    Identity,
    Kind,
    Nic,
    OtherDevice,
    Place,
)
from agent.report.device import (
    Wanted,
    allocations,
    closed_cards,
    model_label,
    recoveries,
    wanted,
)
from ledger.domain.annotations.proof import ProvenContainer, ProvenDevice
from ledger.domain.device_types import DeviceType, Unit
from ledger.domain.devices import DeviceRecord, DeviceTopology, VirtualFunction
from ledger.domain.kube.device_objects import device_faults
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from ledger.domain.topology import LinkMatrix
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from tests.support.machines_found import CUT, TWO_CARDS, card
from tests.support.proofs import held_by_pod

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"
NODE: Final[dict[str, Any]] = {
    "metadata": {"name": "n1", "uid": "uid-1"},
    "status": {"nodeInfo": {"systemUUID": "A-B-C", "machineID": "0123", "bootID": "first"}},
}
WORDS: Final = replace(
    DEFAULT_VOCABULARY,
    device_types=(
        DeviceType(name="qpu", resource="example.com/qpu", unit=Unit.COUNT),
        DeviceType(name="xpu", resource="example.com/xpu", memory="example.com/xpu-memory"),
    ),
)


def said(
    found: Discovery,
    there: Mapping[str, Any] | None = None,
    *,
    node: dict[str, Any] = NODE,
    now: str = NOW,
    vocabulary: Vocabulary = DEFAULT_VOCABULARY,
) -> Wanted:
    """Return what is reported."""
    return wanted(found, node, there, (), vocabulary=vocabulary, now=now)


def device(found: Discovery, there: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - as `said`
    """Return the Device object that is reported."""
    made = said(found, there, **more).device
    assert made is not None
    return dict(made)


def read(
    body: dict[str, Any], node: dict[str, Any] = NODE, vocabulary: Vocabulary = DEFAULT_VOCABULARY
) -> NodeFacts:
    """Return what the scheduler reads, which finds nothing wrong with it."""
    assert not list(device_faults(body, vocabulary))
    facts, warnings = decode_node(node, body, vocabulary=vocabulary)
    assert not warnings
    return facts


def entry(body: dict[str, Any], kind: str, number: int = 0) -> dict[str, Any]:
    """Return a device that the object lists."""
    found: list[dict[str, Any]] = [one for one in body["spec"]["devices"] if one["type"] == kind]
    return found[number]


def test_the_scheduler_reads_what_was_found() -> None:
    """Ids, minors, bytes, places, functions, model, links and the machine itself."""
    facts = read(device(TWO_CARDS))

    fpga, first, second, nic = facts.devices
    assert first == DeviceRecord(
        device_type="gpu",
        minor=0,
        device_id=TWO_CARDS.cards[0].uuid,
        model="A100-SXM4-80GB",
        memory_bytes=TWO_CARDS.cards[0].memory_bytes,
        topology=DeviceTopology(numa_node=0, pcie_id="pci0000:3a", bus_id="0000:3b:00.0"),
        unique_id=True,
    )
    assert (second.minor, second.topology and second.topology.numa_node) == (1, 1)
    assert (nic.device_id, nic.labels, nic.core_percent) == (
        "0000:5e:00.0",
        {"fabric": "roce"},
        100,
    )
    assert nic.vfs == (VirtualFunction(minor=0, bus_id="0000:5e:00.2"),)
    assert (fpga.device_type, fpga.device_id, fpga.topology) == ("fpga", "0000:81:00.0", None)
    assert facts.links == LinkMatrix(rows=((0.0, 300.0), (300.0, 0.0)))
    assert facts.labels == {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-model": "A100-SXM4-80GB",
        "node.koordinator.sh/gpu-driver-version": "550.90.07",
    }
    assert (facts.system_uuid, facts.machine_id, facts.boot_id) == ("a-b-c", "0123", "first")


def test_types_of_the_settings_are_told_in_their_own_resources() -> None:
    """Counted ones as one, with memory where they have some; labels and functions as declared."""
    found = Discovery(
        others=(
            OtherDevice(device_type="qpu", device_id="rack-7", minor=0, labels=(("site", "x"),)),
            OtherDevice(device_type="xpu", device_id="x0", minor=3, memory_bytes=1 << 30),
        )
    )
    qpu, xpu = read(device(found, vocabulary=WORDS), vocabulary=WORDS).devices

    assert (qpu.core_percent, qpu.labels, qpu.memory_bytes) == (100, {"site": "x"}, 0)
    assert (xpu.minor, xpu.core_percent, xpu.memory_bytes) == (3, 100, 1 << 30)


IDS = st.text("abcdef0123456789", min_size=1, max_size=8)
PLACES = st.builds(
    Place,
    bus_id=st.just("0000:3b:00.0"),
    root=st.sampled_from(["", "pci0000:3a"]),
    numa_node=st.just(1),
)
FAULTS = st.lists(
    st.builds(Fault, reason=st.sampled_from(["Xid79", "PortDown"]), message=IDS), max_size=2
).map(tuple)


@given(
    st.builds(
        Discovery,
        driver_version=IDS,
        cards=st.lists(
            st.builds(
                Card,
                uuid=IDS.map("GPU-{}".format),
                minor=st.integers(0, 15),
                model=st.just("NVIDIA L40S"),
                memory_bytes=st.integers(0, 1 << 40),
                place=PLACES,
                faults=FAULTS,
            ),
            unique_by=(lambda one: one.uuid, lambda one: one.minor),
            max_size=6,
        ).map(tuple),
        nics=st.lists(
            st.builds(
                Nic,
                name=IDS,
                minor=st.integers(0, 9),
                place=st.integers(0, 255).map(lambda bus: Place(bus_id=f"0000:{bus:02x}:00.0")),
                fabric=st.sampled_from(["", "ib", "roce"]),
                faults=FAULTS,
            ),
            unique_by=(lambda one: one.place.bus_id, lambda one: one.minor),
            max_size=4,
        ).map(tuple),
    )
)
def test_whatever_is_found_reads_back(found: Discovery) -> None:
    """Each device once, with its bytes; healthy exactly where nothing is wrong with it."""
    made = said(found).device
    if made is None:
        assert not found.cards
        assert not found.nics
        return
    facts = read(dict(made))
    cards = [one for one in facts.devices if one.device_type == "gpu"]
    assert {(one.device_id, one.minor, one.memory_bytes, one.healthy) for one in cards} == {
        (one.uuid, one.minor, one.memory_bytes, not one.faults) for one in found.cards
    }
    assert {one.device_id: one.healthy for one in facts.devices if one.device_type == "rdma"} == {
        nic.place.bus_id: not nic.faults for nic in found.nics
    }


def test_the_object_is_the_nodes_and_says_which_machine_it_is() -> None:
    """It goes with its Node."""
    metadata = device(TWO_CARDS)["metadata"]

    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "name": "n1",
            "uid": "uid-1",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert metadata["annotations"] == {
        "tenure.sh/machine": '{"bootID":"first","machineID":"0123","systemUUID":"a-b-c"}'
    }


def test_kubelet_on_another_machine_is_said() -> None:
    """Its container may see another machine-id; a boot that it has not told of yet, too."""
    found = replace(TWO_CARDS, identity=Identity(system_uuid="a-b-c", boot_id="second"))

    (problem,) = said(found).problems
    assert (problem.reason, problem.message) == (
        "MachineDiffers",
        "bootID: the host's files say second, its Node first",
    )


def test_a_card_with_faults_is_closed_and_says_why() -> None:
    """All of them, by their words."""
    faults = (Fault(reason="UncorrectedECC", message="3"), Fault(reason="Xid79"))
    found = replace(TWO_CARDS, cards=(replace(TWO_CARDS.cards[0], faults=faults),), links=())
    body = device(found)

    assert entry(body, "gpu")["conditions"] == [
        {
            "type": "Healthy",
            "status": "False",
            "reason": "UncorrectedECC",
            "message": "UncorrectedECC: 3; Xid79",
            "lastTransitionTime": NOW,
        },
        {
            "type": "Xid79",
            "status": "True",
            "reason": "Xid79",
            "message": "",
            "lastTransitionTime": NOW,
        },
    ]
    assert not read(body).devices[1].healthy


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    """Another fault of a closed card is no transition."""
    good = device(TWO_CARDS)
    ill = (replace(TWO_CARDS.cards[0], faults=(Fault(reason="Xid79"),)), TWO_CARDS.cards[1])
    bad = device(replace(TWO_CARDS, cards=ill), good, now=LATER)
    worse = (replace(ill[0], faults=(Fault(reason="Xid48"), *ill[0].faults)), ill[1])
    again = device(replace(TWO_CARDS, cards=worse), bad, now="2027")

    times = [entry(one, "gpu")["conditions"][0]["lastTransitionTime"] for one in (good, bad, again)]
    assert times == [NOW, LATER, LATER]
    assert device(TWO_CARDS, good, now=LATER) == good


def test_what_nobody_can_look_at_stays_and_is_closed() -> None:
    """A driver that is gone takes no card from its holder; labels stay with it."""
    before = device(TWO_CARDS)
    found = replace(TWO_CARDS, cards=(), links=(), driver_version="", unknown=(Kind.GPU,))
    body = device(found, before, now=LATER)
    facts = read(body)

    assert [(one.device_id, one.healthy) for one in facts.devices if one.device_type == "gpu"] == [
        (one.uuid, False) for one in TWO_CARDS.cards
    ]
    assert all(one.healthy for one in facts.devices if one.device_type != "gpu")
    assert entry(body, "gpu")["conditions"][0]["reason"] == "Unseen"
    assert body["metadata"]["labels"] == before["metadata"]["labels"]
    assert device(TWO_CARDS, body, now=LATER)["spec"]["devices"][1]["health"]


def test_one_card_that_is_lost_is_closed_and_the_other_goes_on() -> None:
    """Nobody knows which one it was but who was told before."""
    found = replace(TWO_CARDS, cards=TWO_CARDS.cards[1:], links=(), unknown=(Kind.GPU,))
    facts = read(device(found, device(TWO_CARDS)))

    healthy = {one.minor: one.healthy for one in facts.devices if one.device_type == "gpu"}
    assert healthy == {0: False, 1: True}


def test_a_card_that_is_gone_is_gone() -> None:
    """All that there is was seen, and it is not among it."""
    found = replace(TWO_CARDS, cards=TWO_CARDS.cards[1:], links=())
    facts = read(device(found, device(TWO_CARDS)))

    assert [one.minor for one in facts.devices if one.device_type == "gpu"] == [1]


def test_a_nic_keeps_its_minor_when_another_comes_or_goes() -> None:
    """A minor is what Pods hold it by; one that nobody can see keeps its own, too."""
    nics = [
        Nic(name=f"mlx5_{n}", minor=n, place=Place(bus_id=f"0000:{n:02x}:00.0")) for n in range(4)
    ]
    before = device(Discovery(nics=(nics[1], nics[3])))
    found = Discovery(nics=tuple(nics[1:]))
    minors = {one["id"]: one["minor"] for one in device(found, before)["spec"]["devices"]}
    assert minors == {"0000:01:00.0": 0, "0000:03:00.0": 1, "0000:02:00.0": 2}

    unseen = Discovery(nics=(nics[0],), unknown=(Kind.RDMA,))
    kept = device(unseen, before)["spec"]["devices"]
    assert len({one["minor"] for one in kept}) == 3
    assert [one["health"] for one in kept].count(True) == 1


def test_a_card_that_is_cut_is_told_of_and_closed() -> None:
    """`MIGNotServed`, with its instances by name."""
    body = device(replace(TWO_CARDS, cards=(*TWO_CARDS.cards, CUT), links=()))

    condition = entry(body, "gpu", 2)["conditions"][0]
    assert (condition["reason"], condition["message"]) == (
        "MIGNotServed",
        "MIGNotServed: 1g.10gb MIG-1",
    )
    assert [one.healthy for one in read(body).devices if one.device_type == "gpu"] == [
        True,
        True,
        False,
    ]


MIXED: Final = {
    **NODE,
    "metadata": {**NODE["metadata"], "labels": {"nvidia.com/mig.strategy": "mixed"}},
}


def test_a_mixed_node_stays_the_vendors() -> None:
    """No object: with one the scheduler would not count what the plugin advertises."""
    made = said(TWO_CARDS, node=MIXED)

    assert (made.device, made.labels) == (None, {})
    assert [problem.reason for problem in made.problems] == ["MIGMixed"]


def test_a_node_that_became_mixed_keeps_its_cards_and_gives_none() -> None:
    """Pods may hold them."""
    body = device(TWO_CARDS, device(TWO_CARDS), node=MIXED)

    facts = read(body, MIXED)
    assert [one.healthy for one in facts.devices if one.device_type == "gpu"] == [False, False]
    assert entry(body, "gpu")["conditions"][0]["reason"] == "MIGNotServed"


def advertising(name: str, amount: str, **metadata: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the Node with a resource that somebody made kubelet tell."""
    status = {**NODE.get("status", {}), "capacity": {name: amount}}
    return {**NODE, "metadata": {**NODE["metadata"], **metadata}, "status": status}


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"]
)
def test_cards_that_another_plugin_advertises_are_closed(name: str) -> None:
    """With what to do; once the plugin is gone, its resource is 0 and the cards are open."""
    node = advertising(name, "8")
    made = said(TWO_CARDS, node=node)
    assert [problem.reason for problem in made.problems] == ["NotOwned"]
    body = device(TWO_CARDS, node=node)
    assert {one.healthy for one in read(body, node).devices if one.device_type == "gpu"} == {False}
    condition = entry(body, "gpu")["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", "NotOwned")
    assert "keep it off nodes of ours" in condition["message"]
    assert closed_cards(body) == ()

    gone = advertising(name, "0")
    after = device(TWO_CARDS, body, node=gone)
    assert {one.healthy for one in read(after, gone).devices if one.device_type == "gpu"} == {True}


def test_a_resource_that_we_applied_is_no_other_plugins() -> None:
    """A dialect of ours may have the vendor's own name."""
    ours = {
        "manager": "tenure-agent",
        "operation": "Apply",
        "subresource": "status",
        "fieldsV1": {"f:status": {"f:capacity": {"f:nvidia.com/gpu": {}}}},
    }
    node = advertising("nvidia.com/gpu", "2", managedFields=[ours])
    assert said(TWO_CARDS, node=node).problems == ()


def test_a_machine_without_devices_has_no_object_until_it_had_one() -> None:
    """Then it is emptied: its last card was taken out."""
    assert said(Discovery()).device is None
    assert device(Discovery(), device(TWO_CARDS))["spec"] == {"devices": []}


def test_cards_of_two_models_are_said() -> None:
    """The label of the whole node can say one."""
    found = replace(
        TWO_CARDS, cards=(TWO_CARDS.cards[0], replace(TWO_CARDS.cards[1], model="NVIDIA T4"))
    )

    assert [problem.reason for problem in said(found).problems] == ["ModelsDiffer"]


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB-HBM3"),
        ("Tesla T4", "Tesla-T4"),
        ("NVIDIA GeForce RTX 4090 (rev. 1)", "GeForce-RTX-4090-rev.-1"),
        ("NVIDIA " + "x" * 80, "x" * 63),
        ("NVIDIA", "NVIDIA"),
        ("", ""),
    ],
    ids=["a H100", "no vendor", "brackets", "long", "nothing but the vendor", "nothing"],
)
def test_a_model_is_a_label(model: str, label: str) -> None:
    """Koordinator contract 2.3."""
    assert model_label(model) == label


def test_who_holds_what_is_told_for_people() -> None:
    """By type, then by name; each Pod with its minors."""

    def given(kind: str, minor: int) -> ProvenDevice:
        return ProvenDevice(device_type=kind, device_id=f"{kind}-{minor}", minor=minor)

    pods = [
        held_by_pod(
            pod_uid=f"u-{name}",
            namespace="ml",
            pod_name=name,
            containers=(
                ProvenContainer(index="0", devices=(given("gpu", 3), given("rdma", 0))),
                ProvenContainer(index="1", devices=(given("gpu", 1), given("gpu", 3))),
            ),
        )
        for name in ("b", "a")
    ]

    assert allocations(pods) == [
        {
            "type": kind,
            "entries": [
                {"namespace": "ml", "name": name, "uuid": f"u-{name}", "minors": minors}
                for name in ("a", "b")
            ],
        }
        for kind, minors in (("gpu", [1, 3]), ("rdma", [0]))
    ]
    assert allocations([]) == []


def test_a_card_without_a_place_is_told_without_one() -> None:
    """None is not `-1`: nothing at all is known."""
    bare = replace(card(0), place=Place())

    assert "topology" not in entry(device(Discovery(cards=(bare,))), "gpu")


def test_only_who_names_since_when_a_card_is_closed_opens_it() -> None:
    """The same words open nothing that closes later, and no card that is open."""
    first, second = TWO_CARDS.cards
    ill = replace(TWO_CARDS, cards=(replace(first, faults=(Fault(reason="Xid79"),)), second))
    closed = device(ill, now=LATER)

    def annotated(text: str) -> dict[str, Any]:
        metadata = {**closed["metadata"], "annotations": {"tenure.sh/recovered": text}}
        return {**closed, "metadata": metadata}

    assert recoveries(annotated(f" {first.uuid}@{LATER} , GPU-x@{LATER}")) == (first.uuid,)
    for text in ("", first.uuid, f"{first.uuid}@{NOW}", f"{second.uuid}@{LATER}", "@", ","):
        assert recoveries(annotated(text)) == ()
    assert recoveries(closed) == recoveries(None) == recoveries({"metadata": 1}) == ()


def test_a_word_counts_once() -> None:
    """A card that is closed all the same is closed anew, so that the same word opens it no more."""
    first, second = TWO_CARDS.cards
    ill = replace(TWO_CARDS, cards=(replace(first, faults=(Fault(reason="Xid79"),)), second))
    closed = device(ill)
    word = {"tenure.sh/recovered": f"{first.uuid}@{NOW}"}
    there = {**closed, "metadata": {**closed["metadata"], "annotations": word}}
    assert recoveries(there) == (first.uuid,)

    again = device(ill, there, now=LATER)

    assert entry(again, "gpu")["conditions"][0]["lastTransitionTime"] == LATER
    assert recoveries({**again, "metadata": there["metadata"]}) == ()


def test_what_an_object_says_against_cards_is_known_again() -> None:
    """Not what passes by itself, nor what is no card's, nor words that nobody could keep."""
    first, second = TWO_CARDS.cards
    faults = (Fault(reason="UncorrectedECC", message="3"), Fault(reason="Xid79"))
    closed = device(replace(TWO_CARDS, cards=(replace(first, faults=faults), second, CUT)))
    assert closed_cards(closed) == (
        CardFault(uuid=first.uuid, reason="UncorrectedECC", message="3"),
        CardFault(uuid=first.uuid, reason="Xid79"),
    )
    unseen = device(Discovery(unknown=(Kind.GPU, Kind.RDMA)), device(TWO_CARDS))
    assert closed_cards(unseen) == closed_cards(None) == closed_cards({"spec": 1}) == ()
    for name, value in (("id", None), ("id", "x" * 2000), ("type", "rdma"), ("conditions", [1])):
        devices = [{**entry(closed, "gpu"), name: value}]
        assert closed_cards({"spec": {"devices": devices}}) == ()


LASTING: Final = st.sets(st.sampled_from(["Xid79", "Xid48", "UncorrectedECC"]))
SIGHTS: Final = st.lists(
    st.sampled_from(["seen", "cut", "unseen", "mixed"]), min_size=1, max_size=5
)


@given(LASTING, SIGHTS)
def test_no_state_that_passes_hides_what_counts_against_a_card(
    reasons: set[str], sights: list[str]
) -> None:
    """Out of sight, in MIG mode or the plugin's: whoever lost its file has all of it from here."""
    faults = tuple(Fault(reason=reason, message=f"{reason} of old") for reason in sorted(reasons))
    ill = replace(TWO_CARDS.cards[0], faults=faults)
    cut = replace(ill, mig=True, faults=(Fault(reason="MIGNotServed", message="1g"), *faults))
    there = device(replace(TWO_CARDS, cards=(ill,), links=()))
    for sight in sights:
        cards = {"seen": (ill,), "cut": (cut,)}.get(sight, ())
        unknown = () if cards else (Kind.GPU,)
        found = replace(TWO_CARDS, cards=cards, links=(), unknown=unknown)
        there = device(found, there, node=MIXED if sight == "mixed" else NODE)

        assert set(closed_cards(there)) == {
            CardFault(uuid=ill.uuid, reason=fault.reason, message=fault.message) for fault in faults
        }
        assert not list(device_faults(there, DEFAULT_VOCABULARY))


def test_what_is_hidden_keeps_its_time_and_one_word_declares_all_of_it_over() -> None:
    """The word names the card and since when it is closed, whatever stands behind that."""
    faults = (Fault(reason="UncorrectedECC"), Fault(reason="Xid79"))
    ill = replace(TWO_CARDS, cards=(replace(TWO_CARDS.cards[0], faults=faults),), links=())
    unseen = device(replace(ill, cards=(), unknown=(Kind.GPU,)), device(ill), now=LATER)

    conditions = entry(unseen, "gpu")["conditions"]
    assert [(one["type"], one["lastTransitionTime"]) for one in conditions] == [
        ("Healthy", NOW),
        ("UncorrectedECC", LATER),
        ("Xid79", NOW),
    ]
    words = {"tenure.sh/recovered": f"{ill.cards[0].uuid}@{NOW}"}
    metadata = {**unseen["metadata"], "annotations": words}
    there = {**unseen, "metadata": metadata}
    assert recoveries(there) == (ill.cards[0].uuid,)
    again = device(replace(ill, cards=(), unknown=(Kind.GPU,)), there, now="2027")
    assert closed_cards(again) == ()
    assert recoveries({**again, "metadata": metadata}) == ()


def test_a_card_that_was_replaced_leaves_its_minor() -> None:
    """While another can't be read, two cards would have one minor, and nobody could tell which."""
    first, _ = TWO_CARDS.cards
    other = replace(first, uuid="GPU-new")
    found = Discovery(unknown=(Kind.GPU,), cards=(other,))

    facts = read(device(found, device(TWO_CARDS)))

    cards = [(one.minor, one.device_id) for one in facts.devices if one.device_type == "gpu"]
    assert cards == [(0, "GPU-new"), (1, TWO_CARDS.cards[1].uuid)]
