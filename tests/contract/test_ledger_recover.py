"""A backup is put back after more was recorded: what the world has seen decides, not the backup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from ledger.domain.errors import CapacityError, InputError
from ledger.domain.log.events import (
    DriftFound,
    EpochStarted,
    LedgerRecovered,
    PodObserved,
    PodReserved,
    PodVoided,
    RequestDescribed,
)
from ledger.domain.log.recorded_request import recorded_request, request_digest
from ledger.domain.log.standing import Ahead, Behind, InStep, Lost
from ledger.domain.log.state import Holding
from ledger.domain.request.requests import PodRequest
from ledger.store.mending.recover import SeenPod
from ledger.store.open import Ledger
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from ledger.store.reading.timetravel import load_state
from tests.support.recovery import (
    allocation,
    live_pods,
    open_holdings,
    recovered,
    seen_pod,
    witness,
)
from tests.support.stores import (
    Clock,
    PostgresStore,
    Store,
    bound,
    node,
    refused,
    released,
    reserved,
    share,
    start,
)

ASKED = recorded_request(PodRequest(uid="", namespace="", name="", cpu_milli=1000, memory_bytes=0))


class Story:
    """A ledger, a backup of its morning, and the Pods that run in the afternoon."""

    def __init__(self, store: Store, places: Path) -> None:
        clock = Clock()
        self.empty = store.copy(places / "empty.db")
        with store.open() as ledger:
            start(ledger).append(
                clock.all(
                    node("n-1", gpus=3, cpus=8),
                    reserved("old", share(0, 100, exclusive=True), cpus=(0, 1)),
                    bound("old"),
                    reserved("done", share(1, 50)),
                    RequestDescribed(request=ASKED),
                    structs.replace(refused("new"), request=request_digest(ASKED)),
                )
            )
            self.backup_head = ledger.head().position
            self.morning = witness(ledger, "agent in the morning")
        self.backup = store.copy(places / "backup.db")
        with store.open() as ledger:
            start(ledger, "later").append(
                clock.all(
                    released("done"),
                    reserved("new", share(1, 100, exclusive=True), cpus=(2, 3)),
                    bound("new"),
                    reserved("half", share(2, 50)),
                    reserved("short", share(2, 30)),
                    released("short"),
                )
            )
            self.pods = live_pods(ledger)
            self.held = open_holdings(ledger)
            self.witness = witness(ledger)
        self.clock = clock


@pytest.fixture
def story(store: Store, tmp_path: Path) -> Iterator[Story]:
    """The story, with its backup in place of the ledger."""
    told = Story(store, tmp_path)
    yield told
    for copy in (told.empty, told.backup):
        _drop(copy)


def _drop(copy: Store) -> None:
    if isinstance(copy, PostgresStore):
        copy.server.drop(copy.database)


def test_a_restored_backup_holds_again_what_the_world_holds(story: Story) -> None:
    """Every live Pod has its cards and CPUs, what ended is free, and the ledger proves itself."""
    with story.backup.open() as ledger:
        result = recovered(ledger, story.pods, [story.witness], all_pods=True)

        assert open_holdings(ledger) == story.held
        assert verify(ledger).findings == ()
        assert rebuild(ledger).equal

    assert [(each.pod, each.kind) for each in result.recreated] == [
        ("team-a/new", "granted"),
        ("team-a/half", "granted"),
    ]
    assert [each.pod for each in result.released] == ["team-a/done"]
    assert result.disbelieved == ()


def test_what_a_pod_asked_for_is_told_again_where_the_ledger_still_knows(story: Story) -> None:
    """The digest of an earlier refusal, granted again or only observed; None for the others."""
    with story.backup.open() as ledger:
        recovered(ledger, story.pods, [story.witness])
        again = {
            each.event.pod_name: each.event.request
            for each in ledger.read_events(story.backup_head)
            if isinstance(each.event, PodReserved | PodObserved)
        }

    assert again == {"new": request_digest(ASKED), "half": None}


def test_the_lost_range_and_the_new_incarnation_are_recorded(story: Story) -> None:
    """Audit can show the range as unknown, never as idle."""
    with story.backup.open() as ledger:
        recovered(ledger, story.pods, [story.witness])
        events = [each.event for each in ledger.read_events(story.backup_head)]
        head = ledger.head()

    assert (
        LedgerRecovered(
            lost_from=story.backup_head + 1,
            lost_to=story.witness.position,
            incarnation="i2",
            lost_incarnation="first",
            began_at=story.backup_head + 1,
        )
        in events
    )
    assert head.epoch > story.witness.epoch
    assert [each.epoch for each in events if isinstance(each, EpochStarted)] == [2, 3]


def test_cards_of_running_pods_are_not_given_out_again(story: Story) -> None:
    """The database refuses the card that the backup believed to be free."""
    with story.backup.open() as ledger:
        recovered(ledger, story.pods, [story.witness], all_pods=True)
        writer = ledger.start_epoch("after", ledger.head().origin, "0.1.0")

        with pytest.raises(CapacityError):
            writer.append([story.clock.new(reserved("thief", share(1, 50)))])
        with pytest.raises(CapacityError):
            writer.append([story.clock.new(reserved("thief", cpus=(3,)))])


def test_what_does_not_fit_is_observed_with_drift(story: Story) -> None:
    """Without the whole list of Pods nothing is released: two claims on a card stay two facts."""
    with story.backup.open() as ledger:
        result = recovered(ledger, story.pods, [story.witness])
        events = [each.event for each in ledger.read_events(story.backup_head)]

        assert verify(ledger).findings == ()

    new, half = result.recreated
    assert (new.pod, new.kind, half.kind) == ("team-a/new", "observed", "granted")
    assert "gpu/1" in new.fact
    assert [each.pod for each in result.unconfirmed] == ["team-a/done"]
    assert [each.pod_uid for each in events if isinstance(each, PodObserved)] == ["uid-new"]
    drift = next(each for each in events if isinstance(each, DriftFound))
    assert (drift.kind, drift.pod_uid, drift.minor) == ("OverHeld", "uid-new", 1)


def test_a_second_recovery_changes_nothing(story: Story) -> None:
    """The same Pods and the same witnesses: the loss has its name, the holdings are there."""
    with story.backup.open() as ledger:
        first = recovered(ledger, story.pods, [story.witness], all_pods=True)
        again = recovered(ledger, story.pods, [story.witness], incarnation="i3", all_pods=True)

    assert isinstance(first.standing, Behind)
    assert isinstance(again.standing, Ahead)
    assert (again.position, again.epoch, again.incarnation) == (first.position, first.epoch, "i2")
    assert (again.opened, again.recreated, again.released) == (False, (), ())


def test_a_pod_that_is_shown_later_is_put_back_without_a_new_incarnation(story: Story) -> None:
    """A node that was away: its Pods' positions are known as lost, their holdings not yet."""
    with story.backup.open() as ledger:
        recovered(ledger, story.pods[:1], [story.witness])
        again = recovered(ledger, story.pods, [story.witness], incarnation="i3")

    assert not again.opened
    assert [each.pod for each in again.recreated] == ["team-a/new", "team-a/half"]


def test_a_later_loss_opens_the_next_incarnation(story: Story) -> None:
    """Someone saw the first incarnation go further than the recovery knew."""
    further = replace(story.witness, position=story.witness.position + 5, chain="")
    with story.backup.open() as ledger:
        recovered(ledger, story.pods, [story.witness], all_pods=True)
        again = recovered(ledger, story.pods, [further], incarnation="i3")

    lost = Lost(incarnation="first", first=further.position - 4, last=further.position)
    assert again.standing == Behind(lost=(lost,), epoch=further.epoch)
    assert (again.opened, again.incarnation) == (True, "i3")


def test_a_dry_run_finds_the_same_and_records_nothing(story: Story) -> None:
    """What is printed before is what happens after."""
    with story.backup.open() as ledger:
        before = ledger.head()
        planned = recovered(ledger, story.pods, [story.witness], dry_run=True)

        assert ledger.head() == before
        done = recovered(ledger, story.pods, [story.witness])
    assert replace(planned, position=0, epoch=0) == replace(done, position=0, epoch=0)


def test_a_ledger_that_lacks_nothing_stays_as_it_is(story: Story, store: Store) -> None:
    """The whole ledger with witnesses of the morning and of now: not one event more."""
    with store.open() as ledger:
        before = ledger.head()
        result = recovered(ledger, story.pods, [story.morning, story.witness])

        assert ledger.head() == before
    assert isinstance(result.standing, InStep)


def test_a_foreign_ledger_is_refused(story: Story) -> None:
    """By a witness, and by a Pod that runs here and is signed by our key for another ledger."""
    other = replace(story.witness, origin="ledger/other")
    with story.backup.open() as ledger:
        before = ledger.head()
        with pytest.raises(InputError, match="another origin"):
            recovered(ledger, story.pods, [other])
        for each in ledger.read_events():
            if each.envelope.event_type == "pod.reserved.v1":
                foreign = seen_pod(allocation(ledger, each, origin="ledger/other"))
        with pytest.raises(InputError, match="another origin"):
            recovered(ledger, [foreign])
        assert ledger.head() == before


def test_a_ledger_of_another_history_is_refused(story: Story) -> None:
    """The same position with another chain value is a fork, not a loss."""
    other = replace(story.morning, chain="00" * 32)
    with story.backup.open() as ledger, pytest.raises(InputError, match="another history"):
        recovered(ledger, story.pods, [other, story.witness])


def test_what_does_not_check_is_listed_and_not_believed(story: Story) -> None:
    """Forged, borrowed, moved or unreadable annotations make no holding."""
    new, half = story.pods[1:]
    assert new.allocation is not None
    cases = {
        "the signature does not hold": replace(
            new, allocation=new.allocation.replace('"core_percent":100', '"core_percent":10')
        ),
        "signed for another Pod UID": replace(half, uid="uid-other"),
        "signed for another node": replace(half, node_name="n-2"),
        "not valid JSON": replace(half, allocation="{"),
        "must be an object": replace(half, allocation="[]"),
    }
    with story.backup.open() as ledger:
        for fact, pod in cases.items():
            result = recovered(ledger, [pod], [story.witness], dry_run=True)

            assert result.recreated == ()
            assert [each.pod for each in result.disbelieved] == [f"team-a/{pod.name}"]
            assert fact in result.disbelieved[0].fact


def test_an_allocation_for_a_node_that_was_made_anew_is_not_believed(story: Story) -> None:
    """Same name, another UID: other machines' cards are meant."""
    with story.backup.open() as ledger:
        text = story.pods[2]
        for each in ledger.read_events():
            if each.envelope.event_type == "pod.reserved.v1":
                signed = allocation(
                    ledger, each, node_uid="uid-before", position=99, pod_uid="u", pod_name="x"
                )
        result = recovered(ledger, [seen_pod(signed), text], [story.witness], dry_run=True)

    assert "another node of that name" in result.disbelieved[0].fact


def test_a_signed_allocation_of_a_position_that_the_ledger_has_is_not_believed(
    story: Story,
) -> None:
    """The ledger has that position, with another event: the annotation is no evidence of a loss."""
    with story.backup.open() as ledger:
        for each in ledger.read_events():
            if each.envelope.event_type == "pod.reserved.v1":
                signed = allocation(ledger, each, pod_uid="u", pod_name="x")
        result = recovered(ledger, [seen_pod(signed)], [story.witness], dry_run=True)

    assert "another event at the position" in result.disbelieved[0].fact


def test_a_pod_that_ended_is_not_held_again(story: Story) -> None:
    """Its annotation still tells of the loss."""
    ended = [replace(pod, running=False) for pod in story.pods]
    with story.backup.open() as ledger:
        result = recovered(ledger, ended, all_pods=True)

        assert open_holdings(ledger) == set()
    assert isinstance(result.standing, Behind)
    assert result.recreated == ()


def test_a_second_attempt_that_was_lost_takes_the_place_of_the_first(
    store: Store, tmp_path: Path
) -> None:
    """The Pod was voided and reserved again after the backup: it holds once, where it runs."""
    clock = Clock()
    with store.open() as ledger:
        start(ledger).append(clock.all(node("n-1"), node("n-2"), reserved("p", share(0, 100))))
    backup = store.copy(tmp_path / "backup.db")
    with store.open() as ledger:
        gone = PodVoided(pod_uid="uid-p", attempt=1, node_uid="uid-n-1", reason="late")
        again = reserved("p", share(1, 100, node="n-2"), node="n-2", attempt=2)
        start(ledger).append(clock.all(gone, again))
        pods, held = live_pods(ledger), open_holdings(ledger)
    with backup.open() as ledger:
        recovered(ledger, pods)

        assert open_holdings(ledger) == held
        assert verify(ledger).findings == ()
    _drop(backup)


@pytest.mark.parametrize("fits", [True, False], ids=["it fits", "another has its card"])
def test_what_containers_are_shown_is_known_again(
    store: Store, tmp_path: Path, *, fits: bool
) -> None:
    """They see the cards of their group whatever a ledger has lost, and nobody else gets these."""
    clock = Clock()
    with store.open() as ledger:
        start(ledger).append(clock.all(node("n-1"), reserved("q", share(0, 100))))
    backup = store.copy(tmp_path / "backup.db")
    with store.open() as ledger:
        start(ledger).append(clock.all(released("q"), reserved("p", share(0, 100))))
        *_, last = ledger.read_events()
        pods = [seen_pod(allocation(ledger, last, shown=("GPU-0", "GPU-1")))]
    with backup.open() as ledger:
        recovered(ledger, pods, all_pods=fits)
        [held] = [each for each in held_now(ledger) if each.pod_uid == "uid-p"]

        assert held.kind == ("granted" if fits else "observed")
        assert held.shown == ("GPU-0", "GPU-1")
        assert verify(ledger).findings == ()
    _drop(backup)


def held_now(ledger: Ledger) -> list[Holding]:
    """Return what Pods hold."""
    nodes = load_state(ledger).state.nodes.values()
    return [held for each in nodes for held in each.holdings.values()]


def test_without_any_backup_every_signed_pod_is_known_again(
    story: Story,
) -> None:
    """No inventory yet: what runs is observed, and its cards are closed once they are known."""
    with story.empty.open() as ledger:
        result = recovered(ledger, story.pods, [story.witness])

        assert ledger.head().origin == story.witness.origin
        assert verify(ledger).findings == ()
    assert [each.kind for each in result.recreated] == ["observed"] * 3
    assert result.standing == Behind(
        lost=(Lost(incarnation="first", first=1, last=story.witness.position),),
        epoch=story.witness.epoch,
    )


def test_the_name_of_an_incarnation_is_used_once(story: Story) -> None:
    """Two lives of one name would make their positions mean two things."""
    with story.backup.open() as ledger, pytest.raises(InputError, match="name is taken"):
        recovered(ledger, story.pods, [story.witness], incarnation="first")


def test_a_pod_without_an_annotation_is_no_evidence(story: Story) -> None:
    """It confirms what the ledger holds for it, and nothing else."""
    plain = [
        SeenPod(uid=pod.uid, namespace=pod.namespace, name=pod.name, node_name=pod.node_name)
        for pod in story.pods
    ]
    with story.backup.open() as ledger:
        result = recovered(ledger, plain)

    assert (result.recreated, result.disbelieved) == ((), ())
    assert [each.pod for each in result.unconfirmed] == ["team-a/done"]
