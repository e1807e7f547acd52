"""What the probe Pod of the mode `env` proves, by what its containers say of themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from agent.decide.env_proof import BLANK, SHOWN, ProbePod, Reason, judged, why_not_run
from agent.inside import say
from ledger.domain.annotations.tenure import visible_key

CARD: Final = "GPU-5d0f6c1e"
POD: Final = ProbePod(node="n-17", namespace="ours", image="i", runtime_class="nvidia")
GOOD: Final[dict[str, tuple[str | None, list[str]]]] = {
    SHOWN: (CARD, ["/dev/nvidia3"]),
    BLANK: ("", []),
}


def ended(said: dict[str, tuple[str | None, list[str]]], *, code: int = 0) -> dict[str, Any]:
    """Return the Pod whose containers said this of themselves."""
    statuses = [
        {
            "name": name,
            "state": {
                "terminated": {
                    "exitCode": code,
                    "message": json.dumps({"visible": visible, "cards": cards}),
                }
            },
        }
        for name, (visible, cards) in said.items()
    ]
    return {"status": {"phase": "Succeeded", "containerStatuses": statuses}}


def reason(said: dict[str, tuple[str | None, list[str]]]) -> Reason:
    """Return what is known by what containers said, beside what the others said rightly."""
    found = judged(ended({**GOOD, **said}), card=CARD, minor=3)
    assert found is not None
    return found.reason


def test_it_is_proved_by_a_card_that_is_seen_and_one_that_is_not() -> None:
    """Neither of the two alone: a runtime that shows all cards shows this one, too."""
    assert reason({}) is Reason.PROVED


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({SHOWN: (None, [])}, Reason.VARIABLE_DIFFERS),
        ({SHOWN: ("", [])}, Reason.VARIABLE_DIFFERS),
        ({SHOWN: ("GPU-other", ["/dev/nvidia3"])}, Reason.VARIABLE_DIFFERS),
        ({BLANK: (None, [])}, Reason.VARIABLE_DIFFERS),
        ({BLANK: ("all", [])}, Reason.VARIABLE_DIFFERS),
        ({SHOWN: (CARD, [])}, Reason.CARD_NOT_SHOWN),
        ({SHOWN: (CARD, ["/dev/nvidia2"])}, Reason.CARD_NOT_SHOWN),
        ({SHOWN: (CARD, ["/dev/nvidia2", "/dev/nvidia3"])}, Reason.OTHERS_SHOWN),
        ({BLANK: ("", ["/dev/nvidia0"])}, Reason.OTHERS_SHOWN),
    ],
    ids=[
        "no variable",
        "the annotation was not there yet",
        "another card's variable",
        "no variable without an annotation",
        "all cards without an annotation",
        "a runtime that does not read it",
        "a runtime that shows another card",
        "a runtime that shows more cards",
        "a runtime that shows cards to whoever has none",
    ],
)
def test_whatever_else_a_container_sees_is_named(
    said: dict[str, tuple[str | None, list[str]]], why: Reason
) -> None:
    """The value first: the runtime can't show what it was not told."""
    assert reason(said) is why


def test_a_pod_that_did_not_run_to_its_end_proves_nothing() -> None:
    """One that failed, one that says nothing that can be read, one of which a container is away."""
    unread = ended(GOOD)
    unread["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = "{"
    for pod in (ended(GOOD, code=1), unread, ended({SHOWN: GOOD[SHOWN]})):
        found = judged(pod, card=CARD, minor=3)
        assert found is not None
        assert found.reason is Reason.NOT_RUN
    assert judged({"status": {"phase": "Running"}}, card=CARD, minor=3) is None
    assert judged({}, card=CARD, minor=3) is None


def test_people_are_told_what_kubelet_says_of_it() -> None:
    """A class of runtimes that the node has not, say."""
    waiting = {"name": SHOWN, "state": {"waiting": {"reason": "ErrImageNeverPull"}}}
    pod = {"status": {"phase": "Pending", "containerStatuses": [waiting]}}
    assert why_not_run(pod) == "shown: ErrImageNeverPull"
    refused = {"status": {"phase": "Failed", "reason": "OutOfpods", "message": "too many"}}
    assert why_not_run(refused) == "OutOfpods too many"
    assert why_not_run(None) == "kubelet does not tell of it"


def test_the_annotation_comes_by_the_binding_and_names_one_card() -> None:
    """As with Pods that hold one; the other container's annotation is nowhere."""
    made, bound = POD.made(), POD.bound("u", CARD)
    assert set(made["metadata"]) == {"name", "namespace"}
    assert bound["metadata"]["annotations"] == {visible_key("0"): CARD}
    assert (bound["metadata"]["uid"], bound["target"]["name"]) == ("u", "n-17")
    fields = [
        one["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] for one in made["spec"]["containers"]
    ]
    assert fields == [f"metadata.annotations['{visible_key(place)}']" for place in ("0", "1")]


def test_it_is_named_by_its_agents_own_pod_and_goes_with_it() -> None:
    """At an upgrade a node has two agents; outside of a Pod it is named by the node."""
    assert POD.name == "tenure-agent-probe-n-17"
    own = replace(POD, owner=("agent-x", "6f0c"))
    [owner] = own.made()["metadata"]["ownerReferences"]
    assert (own.name, owner["kind"]) == ("tenure-agent-probe-6f0c", "Pod")
    assert (owner["name"], owner["uid"]) == ("agent-x", "6f0c")
    assert own.bound("u", CARD)["metadata"]["name"] == own.name


def test_a_container_says_its_variable_and_the_cards_that_it_sees(tmp_path: Path) -> None:
    """In the order of their minors, and no other node of the driver's."""
    devices, told = tmp_path / "dev", tmp_path / "told"
    devices.mkdir()
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (devices / name).touch()
    said = {}
    for name, there in ((SHOWN, {"NVIDIA_VISIBLE_DEVICES": CARD}), (BLANK, {})):
        say(there, devices=devices, told=told)
        said[name] = json.loads(told.read_text())
    cards = ["/dev/nvidia2", "/dev/nvidia10"]
    assert said == {
        SHOWN: {"visible": CARD, "cards": cards},
        BLANK: {"visible": None, "cards": cards},
    }
