"""Words of a node's two processes in any order, also of another node, repeated and late."""

from __future__ import annotations

import asyncio
from typing import Final

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ledger.domain.annotations.proof import BoundContainer, ProvenDevice
from ledger.domain.cpuset import EMPTY, CpuSet, parse_cpuset
from ledger.domain.log.drift import CPUS_DIFFER, CPUS_NARROWED, NODE_GAVE_OTHER
from scheduler.service.agents import Given, Role
from tests.support.agent_scene import Scene
from tests.support.examples import examples

OWN: Final = parse_cpuset("0-3")
CARD: Final = ProvenDevice(device_type="gpu", device_id="GPU-a-0", minor=0)
OTHER_CARD: Final = ProvenDevice(device_type="gpu", device_id="GPU-a-1", minor=1)


def has(*devices: ProvenDevice, cpus: CpuSet = EMPTY, written: CpuSet = EMPTY) -> BoundContainer:
    """Return what the container has."""
    return BoundContainer(index="0", devices=devices, cpus=cpus, written=written)


WORDS: Final[dict[str, tuple[Role, BoundContainer, str]]] = {
    "the card": (Role.DEVICES, has(CARD), ""),
    "another card": (Role.DEVICES, has(OTHER_CARD), NODE_GAVE_OTHER),
    "its CPUs": (Role.CPUS, has(cpus=OWN), ""),
    "other CPUs": (Role.CPUS, has(cpus=parse_cpuset("4-7")), CPUS_DIFFER),
    "fewer CPUs": (Role.CPUS, has(cpus=parse_cpuset("0"), written=OWN), CPUS_NARROWED),
}
STEPS: Final = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["uid-a", "uid-b"]), st.sampled_from(sorted(WORDS))),
        st.tuples(st.sampled_from(["gone", "here"]), st.sampled_from([*Role])),
    ),
    max_size=12,
)


@given(STEPS)
@settings(max_examples=examples(150), deadline=None)
def test_the_last_word_of_each_counts_for_its_own_part_and_its_own_node(
    steps: list[tuple[str, str]],
) -> None:
    """It is assigned once by both, and each word of the end is that of whoever said it last."""
    scene = Scene()
    scene.agents.heard("a", "uid-a", Role.CPUS)
    scene.hold("p", cpus=OWN)
    last: dict[Role, str | None] = dict.fromkeys(Role)
    gone: set[Role] = set()
    is_assigned = False
    for what, which in steps:
        if what in {"gone", "here"}:
            role = Role(which)
            tell = scene.agents.gone if what == "gone" else scene.agents.here
            tell("uid-a", ["pod-p"], role)
            (gone.add if what == "gone" else gone.discard)(role)
            continue
        role, has_now, kind = WORDS[which]
        words = Given(pod_uid="pod-p", attempt=1, containers=(has_now,))
        result, _ = asyncio.run(scene.agents.assigned(what, words, role))
        if what == "uid-b":
            assert result == "unknown"
            continue
        gone.discard(role)
        last[role] = kind
        is_assigned = is_assigned or set(last.values()) == {""}
        expected = "different" if kind else "assigned" if is_assigned else "later"
        assert result == expected, which
    assert scene.assigned == ["pod-p"] * is_assigned
    state = scene.live.view.recorded("uid-a")
    assert state is not None
    said = scene.agents.otherwise("uid-a", state.holdings["pod-p/1"])
    assert {kind for kind, one in said.items() if one.words} == {*last.values()} - {None, ""}
    word = scene.word()
    assert word.cpus is not None
    assert ("pod-p" in word.gone, "pod-p" in word.cpus.gone) == (
        Role.DEVICES in gone,
        Role.CPUS in gone,
    )
    event("assigned" if is_assigned else "not assigned")
