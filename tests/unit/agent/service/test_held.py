"""What a container holds, by its place in the ledger's word and its name in kubelet's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agent.decide.node_holdings import CpuClaim, NodeHoldings
from agent.decide.pod_words import pod_words
from agent.https import NoAnswerError
from agent.kubelet.watch import Pod, PodsHere, read_pods
from agent.plugin.held import HeldHere
from agent.report.held import Asked
from ledger.domain.annotations.proof import ProvenContainer
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from tests.support.loops import run_in_virtual_time
from tests.support.proofs import believing, held, holds, word

POD: dict[str, Any] = {
    "metadata": {"uid": "p", "annotations": {"a": "b", "c": 1}},
    "spec": {
        "initContainers": [{"name": "first"}, {"name": "sidecar"}],
        "containers": [{"name": "main"}, {"name": "other"}],
    },
}


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
    return HeldHere(Word(word(7, held("p", 5, *containers, **words))), pods, believing())


def test_each_container_has_what_its_place_holds() -> None:
    """And what the whole Pod holds; one that holds nothing has nothing."""
    mine = here(holds("", "all"), holds("1", "x"), holds("init-0", "y"), holds("init-1", "z"))
    found = {
        name: [one.device_id for one in mine.devices_of("p", name) or ()]
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


def test_another_claim_with_cpus_is_told_and_no_pod() -> None:
    """A round of the report begins; nothing is prepared or shown for it."""
    mine = here(holds("0", "x"))
    before = (mine.version(), mine.pods(), mine.cpu_claims())
    claim = CpuClaim(claim_uid="c", position=7, namespace="ml", name="c", cpus=parse_cpuset("2-3"))
    known = replace(word(7, held("p", 5, holds("0", "x"))), cpu_claims=(claim,))
    other = HeldHere(Word(known), mine._pods, believing())
    assert before[2] is None
    assert (other.cpu_claims(), other.pods()) == ((claim,), before[1])
    assert other.version() != before[0]
    assert not other.is_held("c")
    assert other.shown_to("c") == ()


def test_names_that_kubelet_has_not_told_are_waited_for() -> None:
    """Kubelet is asked again when somebody wants them; while it is away, what it told stays."""
    kubelet = Kubelet(told=())
    mine = here(holds("0", "x"), kubelet=kubelet)
    assert mine.devices_of("p", "main") is None

    async def later() -> None:
        pods = mine._pods
        running = asyncio.create_task(pods.run())
        kubelet.told = (POD,)
        async with asyncio.timeout(60):
            while mine.devices_of("p", "main") is None:  # noqa: ASYNC110 - as kubelet's call waits
                await asyncio.sleep(0.01)
        running.cancel()
        kubelet.why = "down"
        await pods.look()
        assert pods.problem == "down"

    asyncio.run(later())
    assert [one.device_id for one in mine.devices_of("p", "main") or ()] == ["x"]


def test_kubelet_is_asked_when_a_pod_came_and_the_less_often_the_longer_one_is_missed() -> None:
    """So it is known when its container starts, and one that never comes costs little."""
    asked: list[float] = []

    class Noting(Kubelet):
        async def pods(self) -> Sequence[Pod]:
            asked.append(asyncio.get_running_loop().time())
            return await super().pods()

    async def later() -> None:
        pods = PodsHere(Noting())
        running = asyncio.create_task(pods.run())
        await asyncio.sleep(1.0)
        pods.somebody_came()
        await asyncio.sleep(1.0)
        for _ in range(200):
            assert pods.words("nobody") is None
            await asyncio.sleep(0.005)
        await asyncio.sleep(1.0)
        pods.somebody_came()
        await asyncio.sleep(0.1)
        assert pods.words("nobody") is None
        await asyncio.sleep(0.1)
        running.cancel()

    run_in_virtual_time(later())
    assert [round(each, 2) for each in asked[:6]] == [0.0, 1.0, 2.0, 2.02, 2.06, 2.14]
    assert [round(each, 2) for each in asked[6:9]] == [2.3, 2.5, 2.7]
    assert [round(each, 2) for each in asked[-2:]] == [4.0, 4.1], "as soon as at first"


CORES = "koordinator.sh/gpu-core"
ASKING: dict[str, Any] = {
    "metadata": {"uid": "p", "name": "p"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {CORES: "40"}}}]},
}


def test_what_is_held_and_asked_for_is_told_to_the_report() -> None:
    """None where nobody knows; what kubelet said before is not its word of now."""
    kubelet = Kubelet(told=(ASKING,))
    mine = here(holds("0", "x"), kubelet=kubelet)
    assert [one.pod_uid for one in mine.pods() or ()] == ["p"]
    assert mine.asked() == Asked(amounts={CORES: 40}, pod_uids=frozenset("p"))
    assert HeldHere(Word(None), mine._pods, believing()).pods() is None
    kubelet.why = "down"
    asyncio.run(mine._pods.look())
    assert mine.asked() is None
    kubelet.why, kubelet.told = "", (ASKING, {"metadata": {"uid": "q"}, "spec": {}})
    asyncio.run(mine._pods.look())
    assert mine.asked() is None, "a Pod that can't be read may ask for anything"


def test_a_round_begins_when_something_else_is_held_or_asked_for() -> None:
    """Not by an answer that says the same; kubelet is asked once for a Pod that it has not told."""
    kubelet = Kubelet(told=(ASKING,))
    mine = here(holds("0", "x"), kubelet=kubelet)
    known = mine._known
    assert isinstance(known, Word)
    first = mine.version()
    assert known.holdings is not None
    known.holdings = replace(known.holdings, position=8)
    kubelet.told = (dict(ASKING),)
    asyncio.run(mine._pods.look())
    assert mine.version() == first
    assert not mine._pods._wanted.is_set()

    late = held("late", 8)
    known.holdings = word(9, *known.holdings.pods(), late)
    second = mine.version()
    assert second != first
    assert mine._pods._wanted.is_set()
    mine._pods._wanted.clear()
    assert mine.version() == second
    assert not mine._pods._wanted.is_set()
    kubelet.told = ()
    asyncio.run(mine._pods.look())
    assert mine.version() != second


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
