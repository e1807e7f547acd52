"""What the service says that a Pod's containers are shown, on its way to the node's plugin."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Final

import pytest

from agent.decide.believing import Believing, OwnNode
from agent.decide.node_holdings import HeldByPod, NodeHoldings, all_holdings
from agent.kubelet.watch import PodsHere
from agent.plugin.held import HeldHere
from agent.service.wire import read_holdings, written
from ledger.domain.errors import InputError
from ledger.domain.resources import ANNOTATION_TENURE_PROOF
from ledger.signing import published, trusting
from tests.support.agent_scene import PROOF_KEY, Scene
from tests.unit.agent.service.test_held import Kubelet, Word

BOTH: Final = ("GPU-a-0", "GPU-a-1")
BELIEVING: Final = Believing(
    OwnNode(name="a", uid="uid-a"), trusting(published([PROOF_KEY.public]))
)


def told(shown: tuple[str, ...] = ()) -> tuple[str, NodeHoldings, HeldByPod]:
    """Return what the service answers of a Pod that is shown these."""
    scene = Scene()
    scene.hold("p", percent=100, shown=shown)
    text = json.dumps(scene.get("holdings")[1])
    known = all_holdings(*read_holdings(text.encode()))
    [held] = known.pods()
    return text, known, held


def test_the_service_says_and_proves_what_containers_are_shown() -> None:
    """Also the copy on disk; and what is said beside a proof must be what it proves."""
    _, known, held = told(BOTH)
    assert held.shown == BELIEVING.holding(held, known).shown == BOTH
    assert held.in_sight == {*BOTH}
    assert read_holdings(written(known))[2] == (held,)
    for other in (("GPU-a-0",), (*BOTH, "GPU-b-0")):
        with pytest.raises(InputError, match="proves another holding"):
            BELIEVING.holding(replace(held, shown=other), known)


def test_who_is_shown_nothing_is_told_of_as_before() -> None:
    """Agents of before the setting know no such word, and refuse it."""
    text, known, held = told()
    assert "shown" not in text
    assert held.in_sight == {held.devices[0].device_id}
    assert "shown" not in written(known).decode()


@pytest.mark.parametrize("by", ["service", "copy", "annotation"])
def test_the_plugin_has_it_by_whichever_word_is_believed(by: str) -> None:
    """While the service is away the copy counts, and the Pod's own proof."""
    _, known, held = told(BOTH)
    metadata = {"uid": "pod-p", "namespace": "ml", "name": "p", "annotations": {}}
    if by == "annotation":
        metadata["annotations"] = {ANNOTATION_TENURE_PROOF: held.proof}
        known = replace(known, held={}, position=0)
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}, "status": {}}
    pods = PodsHere(Kubelet(told=(pod,)))
    asyncio.run(pods.look())
    mine = HeldHere(Word(known, is_heard=by == "service"), pods, BELIEVING)
    assert mine.shown_to("pod-p") == BOTH
    assert mine.shown_to("pod-q") == ()
