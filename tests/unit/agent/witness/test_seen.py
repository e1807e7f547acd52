"""Who is on which card, and what the sources say differently."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.json_format import ParseDict

from agent.checkpoint import read_device_checkpoint
from agent.discover.machine import Card
from agent.witness import seen as names
from agent.witness.said import (
    EXITED,
    RUNNING,
    Inside,
    Listed,
    ListPodResourcesResponse,
    said_by_kubelet,
)
from agent.witness.seen import Place, Read, Seen, Source, seen
from tests.support.witnessing import card, cards_with, given, kept, listed, look, made_with, read

CARDS: Final = (card(0), card(1), card(2))
KUBELET: Final = Path(__file__).parents[3] / "samples" / "kubelet"


def holders(found: Seen) -> dict[str, dict[str, str]]:
    """Return card -> Pod/container -> who says so."""
    return {
        one.uuid: {
            f"{whose.pod_uid}/{whose.container}": " ".join(sorted(sources))
            for whose, sources in one.holders
        }
        for one in found.cards
        if one.holders
    }


def reasons(found: Seen) -> list[str]:
    """Return by which names the sources disagree."""
    return [one.reason for one in found.disagreements]


def test_every_source_tells_of_a_holder() -> None:
    """A Pod from before Tenure: kubelet's file and answer, its environment, its process."""
    said = read(
        kept("old", "GPU-1"),
        answer=[given("old", "GPU-1")],
        containers=[listed("old")],
        made={"old-main": made_with(NVIDIA_VISIBLE_DEVICES="GPU-1")},
        places={5: Place(pod_uid="uid-old", container_id="old-main")},
    )
    found = look((card(0), card(1, 5)), said)
    every = "checkpoint environment podresources process"
    assert holders(found) == {"GPU-1": {"uid-old/main": every}}
    assert (found.complete, found.disagreements) == (True, ())
    assert found.live == {"uid-old"}
    assert cards_with(found, "uid-old") == {"GPU-1"}


def test_an_entry_of_a_pod_that_is_gone_holds_nothing() -> None:
    """Kubelet forgets it when the next container is admitted."""
    found = look(CARDS, read(kept("gone", "GPU-0"), containers=[listed("gone", state=EXITED)]))
    assert (holders(found), found.live, found.complete) == ({}, frozenset(), True)


def test_a_pod_between_two_starts_of_its_container_holds_on() -> None:
    """Kubelet's answer has it, though nothing runs."""
    said = read(
        kept("p", "GPU-0"), answer=[given("p", "GPU-0")], containers=[listed("p", state=EXITED)]
    )
    assert holders(look(CARDS, said)) == {"GPU-0": {"uid-p/main": "checkpoint podresources"}}


def test_of_two_pods_of_a_name_the_one_that_runs_is_meant() -> None:
    """The first one's containers have ended, and are still listed."""
    new = replace(listed("p", again="2"), pod_uid="uid-new")
    said = read(
        kept("p", "GPU-0"),
        answer=[given("p", "GPU-1")],
        containers=[listed("p", state=EXITED), new],
    )
    assert holders(look(CARDS, said)) == {"GPU-1": {"uid-new/main": "podresources"}}


@pytest.mark.parametrize("away", ["checkpoint", "given", "containers"])
def test_a_source_that_is_away_frees_nothing(away: str) -> None:
    """What is left counts, and nobody may say that a Pod is gone."""
    whole = read(kept("old", "GPU-1"), answer=[given("old", "GPU-1")], containers=[listed("old")])
    nothing: Any = {away: None}
    found = look(CARDS, replace(whole, **nothing))
    assert cards_with(found, "uid-old") == {"GPU-1"}
    assert (found.complete, reasons(found)) == (False, [names.SOURCE_AWAY])


def test_a_driver_that_tells_no_processes_is_a_source_that_is_away() -> None:
    """So is a container of which the runtime tells nothing."""
    blind = replace(card(0), processes=None)
    found = look((blind, card(1)), read())
    assert reasons(found) == [names.SOURCE_AWAY]
    assert [found.hides(each) for each in ("GPU-0", "GPU-1", "GPU-9")] == [True, False, False]
    assert (found.complete, found.blind) == (True, True)
    said = read(containers=[listed("p")], inside={})
    found = look(CARDS, said)
    assert (reasons(found), found.complete, found.blind) == ([names.SOURCE_AWAY], True, False)


def test_a_driver_that_told_not_all_cards_hides_those_that_it_did_not_tell() -> None:
    """Who holds a card that it told of is seen; a card that never had a name hides likewise."""
    found = look((card(1),), read(driver=False, all_known=False))
    assert [found.hides(each) for each in ("GPU-0", "GPU-1")] == [True, False]
    assert (found.complete, found.blind, found.unread) == (True, True, frozenset())


def test_disagreements_are_named_and_everybody_counts() -> None:
    """Nothing is settled by guess: all the cards that somebody names are held."""
    said = read(
        kept("p", "GPU-0"),
        kept("q", "GPU-7"),
        answer=[given("p", "GPU-1"), given("q", "GPU-7")],
        containers=[listed("p"), listed("q")],
        made={"p-main": made_with(NVIDIA_VISIBLE_DEVICES="GPU-2")},
    )
    found = look(CARDS, said)
    assert cards_with(found, "uid-p") == {"GPU-0", "GPU-1", "GPU-2"}
    wanted = [names.CARD_UNKNOWN, names.ENVIRONMENT_DIFFERS, names.RECORDS_DIFFER]
    assert reasons(found) == wanted
    words = {one.reason: one.message for one in found.disagreements}
    assert words[names.RECORDS_DIFFER].endswith("container=main: file=GPU-0, answer=GPU-1")
    assert "uid-q" in words[names.CARD_UNKNOWN]


def test_monitoring_that_sees_all_cards_holds_none_until_it_uses_one() -> None:
    """`all` is said by every image of the vendor's, and by exporters on purpose."""
    made = {"dcgm-main": made_with(NVIDIA_VISIBLE_DEVICES="all")}
    said = read(containers=[listed("dcgm")], made=made)
    assert holders(look(CARDS, said)) == {}
    place = {9: Place(pod_uid="uid-dcgm", container_id="dcgm-main")}
    found = look((card(0, 9),), read(containers=[listed("dcgm")], made=made, places=place))
    assert holders(found) == {"GPU-0": {"uid-dcgm/main": "process"}}
    assert reasons(found) == [names.FOREIGN_PROCESS]


def test_a_process_that_is_nobodys_is_on_its_card() -> None:
    """In no Pod, or not to be told: the card has somebody on it."""
    found = look((card(0, 1, 2), card(1)), read(places={1: None}))
    assert [(one.uuid, one.outside) for one in found.cards] == [("GPU-0", (1, 2)), ("GPU-1", ())]
    assert [found.hides(each) for each in ("GPU-0", "GPU-1")] == [True, False]
    assert reasons(found) == [names.PROCESS_OUTSIDE] * 2 + [names.SOURCE_AWAY]


def test_a_pod_whose_uid_nothing_tells_is_named() -> None:
    """Kubelet's answer has no UIDs; one that is admitted has no container yet."""
    found = look(CARDS, read(answer=[given("new", "GPU-0")]))
    assert (reasons(found), found.complete) == ([names.POD_UNKNOWN], False)
    both = look(CARDS, read(kept("new", "GPU-0"), answer=[given("new", "GPU-0")]))
    assert cards_with(both, "uid-new") == {"GPU-0"}


def test_devices_that_are_no_cards_are_not_looked_at() -> None:
    """Our own slots among them."""
    other = "tenure.sh/slot"
    said = read(
        kept("p", "slot-0000", resource=other), answer=[given("p", "slot-0000", resource=other)]
    )
    assert (holders(look(CARDS, said)), reasons(look(CARDS, said))) == ({}, [])


@pytest.mark.parametrize("name", ["one-pod", "one-pod-two-numa", "two-pods-8cpu-2numa"])
def test_captured_answers_of_a_real_kubelet_agree(name: str) -> None:
    """Its file, its answer and the containers that its runtime would list."""
    content = (KUBELET / f"kubelet_internal_checkpoint.{name}.json").read_bytes()
    record, registered = read_device_checkpoint(content), json.loads(content)["Data"]
    said = json.loads((KUBELET / "podresources" / f"podresources.{name}.json").read_text())
    answer = said_by_kubelet(
        ParseDict(said["List"], ListPodResourcesResponse(), ignore_unknown_fields=True)
    ).given
    ids = sorted({each for ids in registered["RegisteredDevices"].values() for each in ids})
    cards = tuple(
        Card(uuid=each, minor=number, memory_bytes=1, processes=())
        for number, each in enumerate(ids)
    )
    by_ids = {one.ids: one for one in answer}
    containers = tuple(
        Listed(
            container_id=f"c{number}",
            state=RUNNING,
            pod_uid=entry.pod_uid,
            namespace=by_ids[entry.ids()].pod[0],
            pod_name=by_ids[entry.ids()].pod[1],
            name=entry.container,
        )
        for number, entry in enumerate(record.entries)
    )
    found = seen(
        cards,
        Read(
            checkpoint=record,
            given=answer,
            containers=containers,
            inside={one.container_id: Inside() for one in containers},
        ),
        is_card=lambda _: True,
    )
    assert (found.complete, found.disagreements) == (True, ())
    for entry in record.entries:
        assert cards_with(found, entry.pod_uid) == entry.ids()
    both = frozenset({Source.CHECKPOINT, Source.POD_RESOURCES})
    assert {sources for one in found.cards for _, sources in one.holders} == {both}
