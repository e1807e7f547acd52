"""What a container holds, by its place in the ledger's word and its name in kubelet's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agent.decide.node_holdings import HeldByPod, NodeHoldings, Origin, all_holdings
from agent.decide.pod_words import pod_words
from agent.https import NoAnswerError
from agent.kubelet.pods import Pod, read_pods
from agent.kubelet.watch import PodsHere
from agent.plugin.held import HeldHere
from agent.report.held import Asked
from ledger.domain.annotations.proof import ProvenContainer, ProvenDevice
from ledger.domain.errors import InputError

ORIGIN = Origin(node_name="a", node_uid="uid-a")
POD: dict[str, Any] = {
    "metadata": {"uid": "p", "annotations": {"a": "b", "c": 1}},
    "spec": {
        "initContainers": [{"name": "first"}, {"name": "sidecar"}],
        "containers": [{"name": "main"}, {"name": "other"}],
    },
}


def holds(index: str, *devices: str) -> ProvenContainer:
    """Return what a container may have."""
    return ProvenContainer(
        index=index,
        devices=tuple(
            ProvenDevice(device_type="gpu", device_id=one, minor=number)
            for number, one in enumerate(devices)
        ),
    )


@dataclass(slots=True)
class Kubelet:
    """A kubelet with these Pods."""

    told: Sequence[Pod] = (POD,)
    why: str = ""
    asked: int = 0

    async def pods(self) -> Sequence[Pod]:
        """Return them."""
        self.asked += 1
        if self.why:
            raise NoAnswerError(self.why)
        return self.told


@dataclass(slots=True)
class Word:
    """What is known of the node."""

    holdings: NodeHoldings | None
    is_heard: bool = True

    def age_seconds(self) -> float | None:
        """Return no age."""
        return 0.0


def here(*containers: ProvenContainer, kubelet: Kubelet | None = None, **words: Any) -> HeldHere:  # noqa: ANN401
    """Return the holdings of a node where the Pod `p` holds these."""
    pods = PodsHere(kubelet or Kubelet())
    asyncio.run(pods.look())
    one = HeldByPod(pod_uid="p", namespace="ml", pod_name="p", containers=containers, **words)
    return HeldHere(Word(all_holdings(ORIGIN, 7, [one])), pods)


def test_each_container_has_what_its_place_holds() -> None:
    """And what the whole Pod holds; one that holds nothing has nothing."""
    held = here(holds("", "all"), holds("1", "x"), holds("init-0", "y"), holds("init-1", "z"))
    found = {
        name: [one.device_id for one in held.devices_of("p", name) or ()]
        for name in ("first", "sidecar", "main", "other")
    }
    assert found == {
        "first": ["all", "y"],
        "sidecar": ["all", "z"],
        "main": ["all"],
        "other": ["all", "x"],
    }


@pytest.mark.parametrize(
    ("pod_uid", "container", "words"),
    [
        pytest.param("q", "main", {}, id="a Pod that holds nothing"),
        pytest.param("p", "else", {}, id="a container that its Pod has not"),
        pytest.param("p", "main", {"kind": "observed"}, id="somebody else gave it"),
        pytest.param("p", "main", {"phase": "lost"}, id="its node was lost"),
    ],
)
def test_what_is_not_known_is_not_guessed(
    pod_uid: str, container: str, words: dict[str, Any]
) -> None:
    """The container waits."""
    assert not here(holds("0", "x"), **words).devices_of(pod_uid, container)


def test_names_that_kubelet_has_not_told_are_waited_for() -> None:
    """Kubelet is asked again when somebody wants them; while it is away, what it told stays."""
    kubelet = Kubelet(told=())
    held = here(holds("0", "x"), kubelet=kubelet)
    assert held.devices_of("p", "main") is None

    async def later() -> None:
        pods = held._pods
        running = asyncio.create_task(pods.run())
        kubelet.told = (POD,)
        async with asyncio.timeout(60):
            while held.devices_of("p", "main") is None:  # noqa: ASYNC110 - as kubelet's call waits
                await asyncio.sleep(0.01)
        running.cancel()
        kubelet.why = "down"
        await pods.look()
        assert pods.problem == "down"

    asyncio.run(later())
    assert [one.device_id for one in held.devices_of("p", "main") or ()] == ["x"]


CORES = "koordinator.sh/gpu-core"
ASKING: dict[str, Any] = {
    "metadata": {"uid": "p", "name": "p"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {CORES: "40"}}}]},
}


def test_what_is_held_and_asked_for_is_told_to_the_report() -> None:
    """None where nobody knows; what kubelet said before is not its word of now."""
    kubelet = Kubelet(told=(ASKING,))
    held = here(holds("0", "x"), kubelet=kubelet)
    assert [one.pod_uid for one in held.pods() or ()] == ["p"]
    assert held.asked() == Asked(amounts={CORES: 40}, pod_uids=frozenset("p"))
    assert HeldHere(Word(None), held._pods).pods() is None
    kubelet.why = "down"
    asyncio.run(held._pods.look())
    assert held.asked() is None
    kubelet.why, kubelet.told = "", (ASKING, {"metadata": {"uid": "q"}, "spec": {}})
    asyncio.run(held._pods.look())
    assert held.asked() is None, "a Pod that can't be read may ask for anything"


def test_a_round_begins_when_something_else_is_held_or_asked_for() -> None:
    """Not by an answer that says the same; kubelet is asked once for a Pod that it has not told."""
    kubelet = Kubelet(told=(ASKING,))
    held = here(holds("0", "x"), kubelet=kubelet)
    known = held._known
    assert isinstance(known, Word)
    first = held.version()
    assert known.holdings is not None
    known.holdings = replace(known.holdings, position=8)
    kubelet.told = (dict(ASKING),)
    asyncio.run(held._pods.look())
    assert held.version() == first
    assert not held._pods._wanted.is_set()

    late = HeldByPod(pod_uid="late", namespace="ml", pod_name="late")
    known.holdings = all_holdings(ORIGIN, 9, [*known.holdings.pods(), late])
    second = held.version()
    assert second != first
    assert held._pods._wanted.is_set()
    held._pods._wanted.clear()
    assert held.version() == second
    assert not held._pods._wanted.is_set()
    kubelet.told = ()
    asyncio.run(held._pods.look())
    assert held.version() != second


def test_a_pod_that_cant_be_read_hides_no_other() -> None:
    """It has no words, so that its containers wait."""
    twice: dict[str, Any] = {
        "metadata": {"uid": "q"},
        "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "main"}]},
    }
    pods = PodsHere(Kubelet(told=(twice, POD)))
    asyncio.run(pods.look())
    assert (pods.words("q"), pods.words("p")) == (None, pod_words(POD))


@pytest.mark.parametrize(
    "pod",
    [
        {"metadata": {"uid": "q"}, "spec": {"containers": [{}]}},
        {"metadata": {"uid": "q"}, "spec": {"containers": [{"name": "a"}, {"name": "a"}]}},
        {"metadata": {"uid": "q"}, "spec": {"containers": ["a"]}},
    ],
    ids=["no name", "a name twice", "no container"],
)
def test_places_are_of_names_that_are_told_apart(pod: dict[str, Any]) -> None:
    """The API server refuses others; from kubelet they are not believed either."""
    with pytest.raises(InputError):
        pod_words(pod)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"items": {}}', b'{"items": [{}]}', b'{"items": [{"metadata": {}}]}']
)
def test_what_is_no_list_of_pods_is_refused(body: bytes) -> None:
    """Kubelet's answer, or whoever answers in its place."""
    with pytest.raises(InputError, match="not a list of Pods"):
        read_pods(body)


def test_a_kubelet_without_pods_says_null() -> None:
    """As Go writes an empty list."""
    assert read_pods(b'{"kind": "PodList", "items": null}') == []
