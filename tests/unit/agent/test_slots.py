"""Names of slots, and what they mean: for one container of one Pod, once."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from agent.checkpoint import (
    BYTES_MAX,
    CheckpointError,
    DeviceCheckpoint,
    read_device_checkpoint,
)
from agent.decide.isolation import UnknownSizeError
from agent.decide.slots import SharedNameError, given, is_name, name_of, slot_ids, started
from agent.decide.slots_cdi import CardEdits, Edits, read_cards, specification_of
from agent.plugin import serving
from agent.plugin.files import CardFiles, CheckpointFile, OtherContentError, SpecFolder
from agent.plugin.messages import NotYetError, devices_in
from agent.plugin.preparing import SlotPlugin, Slots, not_isolated
from agent.plugin.serving import (
    KUBELET_SOCKET,
    DevicePlugin,
    Metrics,
)
from agent.plugin.serving import _Registration as Registration
from agent.witness.asking import AwayError
from ledger.domain.annotations.proof import ProvenDevice
from ledger.domain.errors import InputError
from ledger.domain.resources import SLOT
from tests.support.kubelets import checkpoint_of, entry
from tests.support.loops import run_in_virtual_time

START: Final = "0123456789abcdef"
A, B = (f"slot-0000.{START}.{number}" for number in (1, 2))
CARDS: Final = {
    card: CardEdits(edits={"deviceNodes": [{"path": f"/dev/{card}"}]}) for card in ("x", "y")
}


class Held(dict[tuple[str, str], Sequence[str]]):
    """Holdings in memory."""

    def devices_of(self, pod_uid: str, container: str) -> Sequence[ProvenDevice] | None:
        """Return a container's devices."""
        found = self.get((pod_uid, container))
        if found is None:
            return None
        return [ProvenDevice(device_type="gpu", device_id=each, minor=0) for each in found]

    def shown_to(self, pod_uid: str) -> Sequence[str]:
        """Return all cards that a Pod's containers see, such as `self[pod_uid, "*"]`."""
        return self.get((pod_uid, "*"), ())

    def is_held(self, pod_uid: str) -> bool:
        """Tell whether the Pod holds something, such as `self[pod_uid, ""]`."""
        return (pod_uid, "") in self


def kept(*entries: Mapping[str, Any]) -> DeviceCheckpoint:
    """Return a checkpoint with these entries."""
    return read_device_checkpoint(checkpoint_of(dict(one) for one in entries))


def of(pod_uid: str, container: str, name: str, slot: str = "slot-0000") -> dict[str, Any]:
    """Return an entry with one name of ours."""
    return entry(pod_uid, container, slot, f"{SLOT}={name}")


def slots(
    folder: Path,
    held: Held,
    *entries: Mapping[str, Any],
    isolated: Callable[[Sequence[ProvenDevice]], Edits] = not_isolated,
) -> Slots:
    """Return the slots of a node with this checkpoint."""
    return Slots(
        count=2,
        start=START,
        specifications=SpecFolder(folder),
        checkpoint=lambda: kept(*entries),
        holdings=held,
        cards=lambda: CARDS,
        isolated=isolated,
    )


def paths(folder: Path) -> dict[str, list[str]]:
    """Return each name that means something, and the device nodes that it shows."""
    return {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for file in folder.glob("*.json")
        for device in json.loads(file.read_text())["devices"]
    }


def test_no_name_is_given_twice(tmp_path: Path) -> None:
    """Not by one start, and not by another, which remembers nothing of the first."""
    first, second = slots(tmp_path, Held()), slots(tmp_path, Held())
    second._start = "fedcba9876543210"

    names = [each.name_for(["slot-0000"]) for each in (first, second) for _ in range(100)]

    assert len(set(names)) == len(names)
    assert all(map(is_name, names))


@pytest.mark.parametrize("ids", [[], ["slot-0002"], ["slot-0000", "GPU-1"]])
def test_a_slot_that_is_not_ours_gets_no_name(tmp_path: Path, ids: list[str]) -> None:
    """Two slots are slot-0000 and slot-0001."""
    with pytest.raises(InputError, match="not a slot"):
        slots(tmp_path, Held()).name_for(ids)


def test_an_agent_hears_of_a_pod_when_kubelet_admits_it(tmp_path: Path) -> None:
    """Kubelet is asked then whose it is, and not when its container starts."""
    heard: list[str] = []
    plugin = SlotPlugin(slots(tmp_path, Held()), came=lambda: heard.append("came"))
    asyncio.run(plugin.allocate(["slot-0001"]))
    assert heard == ["came"]
    with pytest.raises(InputError, match="not a slot"):
        asyncio.run(plugin.allocate(["slot-0002"]))
    assert heard == ["came"]


def test_a_plugin_whose_place_another_took_registers_again(tmp_path: Path) -> None:
    """Kubelet tells it nothing, but would give other ids, or none; once may be a race."""
    served = SlotPlugin(slots(tmp_path, Held()))
    ours, others = frozenset(slot_ids(2)), frozenset({"slot-0000"})
    answers = [ours, others, None, ours, others, None, frozenset[str]()]
    asked: list[str] = []

    async def offered(resource: str) -> frozenset[str]:
        asked.append(resource)
        answer = answers[len(asked) - 1]
        if answer is None:
            raise AwayError("away")
        return answer

    plugin = DevicePlugin(
        served,
        folder=tmp_path,
        start=START,
        metrics=Metrics(CollectorRegistry()),
        offered=offered,
    )
    for name in (KUBELET_SOCKET, "own"):
        (tmp_path / name).touch()
    kubelet = plugin._kubelet()
    assert kubelet is not None
    plugin._registered = Registration(kubelet=kubelet, own=tmp_path / "own", at=0.0)
    stands = []
    for _ in answers:
        asyncio.run(plugin._compare_offered())
        stands.append(plugin.why_not_ready() == "")

    assert stands == [True] * 6 + [False]
    assert set(asked) == {SLOT}


def test_a_kubelet_that_does_not_say_what_it_offers_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin has its registration to look at."""
    monkeypatch.setattr(serving, "OFFERED_SECONDS", 0.01)

    async def offered(_: str) -> frozenset[str]:
        await asyncio.Event().wait()
        raise AssertionError

    plugin = DevicePlugin(
        SlotPlugin(slots(tmp_path, Held())),
        folder=tmp_path,
        start=START,
        metrics=Metrics(CollectorRegistry()),
        offered=offered,
    )
    plugin._registered = Registration(kubelet=(1, 1), own=tmp_path / "own", at=0.0)

    async def compare() -> None:
        async with asyncio.timeout(10):
            await plugin._compare_offered()

    asyncio.run(compare())
    assert plugin._others_offered == 0


def test_a_start_is_tried_again_soon_and_then_less_and_less_often(tmp_path: Path) -> None:
    """Most have to wait for milliseconds; who waits for 20 s costs little."""
    metrics = Metrics(CollectorRegistry())
    served = SlotPlugin(slots(tmp_path, Held()))
    plugin = DevicePlugin(served, folder=tmp_path, start=START, metrics=metrics)
    tried: list[float] = []

    async def act() -> str:
        tried.append(asyncio.get_running_loop().time())
        if len(tried) < 8:
            raise NotYetError("not yet")
        return "done"

    async def wait() -> None:
        assert await plugin._waited(act, 20.0, []) == "done"

    run_in_virtual_time(wait())
    milliseconds = [round(1000 * each) for each in tried]
    assert milliseconds == [0, 5, 15, 35, 75, 155, 255, 355]


def test_a_name_means_the_cards_of_its_own_container(tmp_path: Path) -> None:
    """An init container lends its slot to the one after it; both have a name of their own."""
    held = Held({("p", "init"): ["x", "y"], ("p", "main"): ["y"]})
    node = slots(tmp_path, held, of("p", "init", A), of("p", "main", B))

    new = node.prepare(["slot-0000"])

    assert [one.name for one in new] == [A, B]
    assert paths(tmp_path) == {A: ["/dev/x", "/dev/y"], B: ["/dev/y"]}


def shown_by(folder: Path) -> dict[str, Any]:
    """Return what the one name that was written means."""
    (file,) = folder.glob("*.json")
    (device,) = json.loads(file.read_text())["devices"]
    found: dict[str, Any] = device
    return found


def test_a_container_is_shown_the_cards_of_its_group_and_told_its_own(tmp_path: Path) -> None:
    """Device nodes of all of them; CUDA, and whoever asks what it holds, has its own by UUID."""
    held = Held({("p", "main"): ["x"], ("p", "*"): ["x", "y", "gone"]})
    node = slots(tmp_path, held, of("p", "main", A))

    assert node.prepare(["slot-0000"])

    assert shown_by(tmp_path) == {
        "name": A,
        "annotations": {"tenure.sh/devices": "x"},
        "containerEdits": {
            "deviceNodes": [{"path": "/dev/x"}, {"path": "/dev/y"}],
            "env": ["CUDA_VISIBLE_DEVICES=x"],
        },
    }
    assert node.prepare(["slot-0000"]) == ()


@pytest.mark.parametrize("shown", [(), ("x",)], ids=["nothing", "its own alone"])
def test_a_container_that_is_shown_no_others_is_as_it_was(
    tmp_path: Path, shown: Sequence[str]
) -> None:
    """To the byte: nothing is added to its environment."""
    held = Held({("p", "main"): ["x"], ("p", "*"): shown})
    assert slots(tmp_path, held, of("p", "main", A)).prepare(["slot-0000"])
    (file,) = tmp_path.glob("*.json")
    assert file.read_text() == specification_of(A, [CARDS["x"]], devices=["x"])


def test_a_container_that_is_limited_to_parts_of_cards_sees_these_alone(tmp_path: Path) -> None:
    """Its limits are by place among the cards that it sees."""
    limits: Edits = {"env": ["CUDA_DEVICE_SM_LIMIT=50"]}
    held = Held({("p", "main"): ["x"], ("p", "*"): ["x", "y"]})
    node = slots(tmp_path, held, of("p", "main", A), isolated=lambda _: limits)
    assert node.prepare(["slot-0000"])
    assert shown_by(tmp_path)["containerEdits"] == {"deviceNodes": [{"path": "/dev/x"}], **limits}


def test_a_name_of_another_slot_is_left_alone(tmp_path: Path) -> None:
    """Its own container's start writes it."""
    held = Held({("p", "main"): ["x"], ("q", "main"): ["y"]})
    node = slots(tmp_path, held, of("p", "main", A), of("q", "main", B, "slot-0001"))

    node.prepare(["slot-0000"])

    assert paths(tmp_path) == {A: ["/dev/x"]}


def test_a_name_that_was_written_needs_no_names_of_containers_again(tmp_path: Path) -> None:
    """Where the Pod still holds something; a name without a meaning waits, as does another's."""
    slots(tmp_path, Held({("p", "main"): ["x"]}), of("p", "main", A)).prepare(["slot-0000"])
    (before,) = tmp_path.glob("*.json")
    inode, words = before.stat().st_ino, before.read_text()

    held = Held({("p", ""): []})
    assert slots(tmp_path, held, of("p", "main", A)).prepare(["slot-0000"]) == ()

    assert (before.read_text(), before.stat().st_ino != inode) == (words, True)
    for one, name, why in (("p", B, "tells no such Pod"), ("q", A, "nothing is known to be held")):
        with pytest.raises(NotYetError, match=why):
            slots(tmp_path, held, of(one, "main", name)).prepare(["slot-0000"])


def test_a_name_is_never_given_another_meaning(tmp_path: Path) -> None:
    """Whatever the ledger says by now: the runtime may know the first."""
    held = Held({("p", "main"): ["x"]})
    node = slots(tmp_path, held, of("p", "main", A))
    assert node.prepare(["slot-0000"])
    assert node.prepare(["slot-0000"]) == ()
    held["p", "main"] = ["y"]

    with pytest.raises(OtherContentError):
        node.prepare(["slot-0000"])

    assert paths(tmp_path) == {A: ["/dev/x"]}


@pytest.mark.parametrize(
    ("held", "entries", "why"),
    [
        (Held({("p", "main"): ["x"]}), [], "kubelet keeps no name"),
        (Held(), [of("p", "main", A)], "nothing is known to be held"),
        (Held({("p", "main"): []}), [of("p", "main", A)], "nothing is known to be held"),
        (Held({("q", "main"): ["x"]}), [of("p", "main", A)], "nothing is known to be held"),
    ],
    ids=["no record", "no holding", "an empty holding", "another Pod's holding"],
)
def test_what_is_not_known_yet_starts_nothing(
    tmp_path: Path, held: Held, entries: Sequence[Mapping[str, Any]], why: str
) -> None:
    """A container never starts without its cards, or with those of another Pod."""
    with pytest.raises(NotYetError, match=why):
        slots(tmp_path, held, *entries).prepare(["slot-0000"])

    assert paths(tmp_path) == {}


def test_a_card_that_nothing_shows_starts_nothing(tmp_path: Path) -> None:
    """It is named, with the Pod that holds it."""
    held = Held({("p", "main"): ["x", "z"]})

    with pytest.raises(InputError, match="device=z, pod_uid=p, container=main"):
        slots(tmp_path, held, of("p", "main", A)).prepare(["slot-0000"])

    assert paths(tmp_path) == {}


def test_what_keeps_a_container_to_its_part_is_in_its_meaning(tmp_path: Path) -> None:
    """After what the vendor does for the card; a size that nobody knows yet is waited for."""
    held = Held({("p", "main"): ["x"]})

    def unknown(devices: Sequence[ProvenDevice]) -> Edits:
        raise UnknownSizeError(devices[0].device_id)

    with pytest.raises(NotYetError, match="device=x, container=p/main"):
        slots(tmp_path, held, of("p", "main", A), isolated=unknown).prepare(["slot-0000"])
    assert paths(tmp_path) == {}

    def limits(_: Sequence[ProvenDevice]) -> Edits:
        return {"env": ["A=1"], "deviceNodes": [{"path": "/dev/limits"}]}

    slots(tmp_path, held, of("p", "main", A), isolated=limits).prepare(["slot-0000"])
    assert paths(tmp_path) == {A: ["/dev/x", "/dev/limits"]}
    assert CARDS["x"].edits == {"deviceNodes": [{"path": "/dev/x"}]}


def test_a_name_of_two_containers_is_an_error() -> None:
    """Kubelet's record says what we never said."""
    with pytest.raises(SharedNameError, match="p/main,q/main"):
        given(kept(of("p", "main", A), of("q", "main", A)), devices_in)


def test_names_that_are_not_ours_are_not_looked_at() -> None:
    """Other resources, other kinds, and what could be a path."""
    other = {**of("p", "main", A), "ResourceName": "nvidia.com/gpu"}
    foreign = entry("p", "b", "slot-0000", "nvidia.com/gpu=0", f"{SLOT}=../../etc/passwd")

    assert given(kept(other, foreign), devices_in) == {}


def test_a_name_that_kubelet_keeps_no_more_is_taken_away(tmp_path: Path) -> None:
    """And nothing else in the folder."""
    held = Held({("p", "main"): ["x"]})
    slots(tmp_path, held, of("p", "main", A)).prepare(["slot-0000"])
    (tmp_path / "nvidia.json").write_text("{}")
    (tmp_path / "tenure-else.json").write_text("{}")
    (tmp_path / f"tenure-{A}.ab12.tmp").write_text("{")

    assert slots(tmp_path, held, of("p", "main", A)).sweep() == ()
    assert slots(tmp_path, held, of("q", "main", B)).sweep() == (A,)

    assert {path.name for path in tmp_path.iterdir()} == {"nvidia.json", "tenure-else.json"}


@settings(max_examples=60)
@drawn(
    givings=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.integers(0, 2)), max_size=12
    )
)
def test_whose_a_name_is_does_not_depend_on_its_slot(
    givings: list[tuple[int, str, int]],
) -> None:
    """Of any record, every name is found by each of its slots, for the container it is kept for."""
    entries, whose = [], {}
    for number, (pod, container, slot) in enumerate(givings):
        name = name_of([f"slot-{slot:04}"], START, number)
        whose[name] = (f"p{pod}", container)
        entries.append(of(f"p{pod}", container, name, f"slot-{slot:04}"))

    names = given(kept(*entries), devices_in)

    assert {name: (one.pod_uid, one.container) for name, one in names.items()} == whose
    for each in slot_ids(3):
        found = {one.name for one in started(names.values(), [each])}
        assert found == {name for name in whose if name.startswith(each)}


VENDOR: Final = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "hooks": [{"path": "/hook"}]},
    "devices": [
        {"name": "x", "containerEdits": {"deviceNodes": [{"path": "/dev/x"}, {"path": "/dev/c"}]}},
        {"name": "y", "containerEdits": {"deviceNodes": [{"path": "/dev/y"}, {"path": "/dev/c"}]}},
        {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/x"}]}},
    ],
}


def test_a_name_shows_what_the_vendor_shows_for_each_of_its_cards() -> None:
    """Once what is for all of them, in the vendor's version of the specification."""
    cards = read_cards(VENDOR)

    written = json.loads(specification_of(A, [cards["x"], cards["y"]]))

    assert written == {
        "cdiVersion": "0.7.0",
        "kind": SLOT,
        "devices": [
            {
                "name": A,
                "containerEdits": {
                    "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                    "hooks": [{"path": "/hook"}],
                    "deviceNodes": [{"path": "/dev/x"}, {"path": "/dev/c"}, {"path": "/dev/y"}],
                },
            }
        ],
    }


def test_cards_without_edits_are_no_meaning() -> None:
    """The container would start without them."""
    with pytest.raises(InputError, match="nothing shows"):
        specification_of(A, [CardEdits(edits={})])


def changed(**fields: object) -> dict[str, object]:
    """Return the vendor's specification with other fields."""
    return {**VENDOR, **fields}


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ([], "expected an object"),
        (changed(cdiVersion="1"), "cdiVersion"),
        (changed(cdiVersion=None), "cdiVersion"),
        (changed(devices={}), "devices"),
        (changed(devices=[{}]), r"devices\[0\].name"),
        (changed(devices=[{"name": "x"}, {"name": "x"}]), r"devices\[1\].name"),
        (changed(containerEdits={"intelRdt": {}}), "containerEdits.intelRdt"),
        (changed(containerEdits={"env": "A=B"}), "containerEdits.env"),
        (changed(devices=[{"name": "x", "containerEdits": []}]), r"devices\[0\].containerEdits"),
    ],
)
def test_a_vendors_specification_that_cannot_be_read_is_refused(said: object, place: str) -> None:
    """With the place in it; nothing is left out silently."""
    with pytest.raises(InputError, match=place):
        read_cards(said)


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        (
            "vendor.json",
            '{"devices": [{"name": "x", "containerEdits": {}, "name": "y"}]}',
            r"devices\[0\].name: the key stands twice",
        ),
        ("vendor.yaml", "devices:\n- name: x\n  name: y\n", "line=3, column=3"),
    ],
)
def test_a_key_that_a_vendors_file_has_twice_is_refused(
    tmp_path: Path, name: str, text: str, place: str
) -> None:
    """Else the last one would count, and a card be shown as another one is."""
    (tmp_path / name).write_text(text)

    with pytest.raises(InputError, match=place) as refusal:
        CardFiles([tmp_path / name]).cards()
    assert name in str(refusal.value)


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_files_of_vendors_are_read_again_when_they_change(tmp_path: Path, suffix: str) -> None:
    """JSON or YAML; two that show one device are refused."""
    path = tmp_path / f"vendor.{suffix}"
    write = json.dumps if suffix == "json" else yaml.safe_dump
    path.write_text(write(VENDOR))
    files = CardFiles([path])
    assert set(files.cards()) == {"x", "y", "all"}

    path.write_text(write(changed(devices=[{"name": "new"}])))
    assert set(files.cards()) == {"new"}

    with pytest.raises(InputError, match="two specifications"):
        CardFiles([path, path]).cards()


@pytest.mark.parametrize("content", ["{", "a: [", "- x", "\x00"])
def test_a_file_that_is_no_specification_is_named(tmp_path: Path, content: str) -> None:
    """As the start of the agent does."""
    path = tmp_path / "vendor.yaml"
    path.write_text(content)

    with pytest.raises(InputError, match=r"vendor\.yaml"):
        CardFiles([path]).cards()


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Neither where a name is written, nor where files of others are read."""
    target = tmp_path / "target"
    target.write_text("")
    link = tmp_path / f"tenure-{A}.json"
    link.symlink_to(target)

    with pytest.raises(OSError, match="symbolic"):
        SpecFolder(tmp_path).write(A, "{}")

    assert target.read_text() == ""


def test_of_two_agents_at_once_the_first_says_what_a_name_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second looked before the first wrote: another meaning is refused all the same."""
    folder, other = SpecFolder(tmp_path), SpecFolder(tmp_path)
    link = Path.hardlink_to

    def late(path: Path, target: Path) -> None:
        monkeypatch.undo()
        assert other.write(A, '{"first": 1}')
        link(path, target)

    monkeypatch.setattr(Path, "hardlink_to", late)
    with pytest.raises(OtherContentError):
        folder.write(A, '{"second": 2}')

    assert [path.read_text() for path in tmp_path.iterdir()] == ['{"first": 1}']
    assert not other.write(A, '{"first": 1}')


def test_what_kubelet_keeps_for_us_and_we_never_said_ends_nothing(tmp_path: Path) -> None:
    """Starts are refused, no name is taken away, and the process goes on."""
    torn = {**of("p", "main", A), "AllocResp": "/////w=="}
    node = slots(tmp_path, Held({("p", "main"): ["x"]}), torn)

    for act in (lambda: node.prepare(["slot-0000"]), node.sweep):
        with pytest.raises(InputError, match="no answer of a device plugin"):
            act()


def test_the_checkpoint_is_read_as_it_is_now(tmp_path: Path) -> None:
    """Known bytes are not verified again; others are, and what is torn is not taken for them."""
    path = tmp_path / "checkpoint"
    file = CheckpointFile(path)
    with pytest.raises(FileNotFoundError):
        file.read()
    path.write_bytes(checkpoint_of([of("p", "main", A)]))
    first = file.read()
    assert file.read() is first
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError):
        file.read()
    path.write_bytes(checkpoint_of([of("q", "main", B)]))

    assert [one.pod_uid for one in file.read().entries] == ["q"]


def test_what_is_no_file_or_has_no_end_is_named(tmp_path: Path) -> None:
    """A pipe without a writer holds nobody up, and YAML that was cut off is not taken for whole."""
    pipe, large = tmp_path / "pipe.yaml", tmp_path / "large.yaml"
    os.mkfifo(pipe)
    large.write_bytes(b"cdiVersion: 0.6.0\ndevices: []\n" + b"#" * BYTES_MAX)

    for path, why in ((pipe, "not a regular file"), (large, "too large")):
        with pytest.raises(InputError, match=f"{path.name}.*{why}"):
            CardFiles([path]).cards()
