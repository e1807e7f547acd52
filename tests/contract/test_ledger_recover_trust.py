"""Whom a recovery believes: signatures of trusted keys, each for its time, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from ledger.domain.log.events import KeyRotated, PodReserved
from ledger.signing import PrivateKey, PublicKey, rotation_text, sign_note
from ledger.store.mending.recover import Recovery, SeenPod
from ledger.store.open import Ledger
from ledger.store.proving.checkpoints import trusted_keys
from tests.support.recovery import allocation, open_holdings, recovered, seen_pod
from tests.support.stores import ORIGIN, Clock, PostgresStore, Store, node, reserved, share, start

FIRST, SECOND = PrivateKey.new("tenure"), PrivateKey.new("tenure")
OUTSIDER = PrivateKey.new("tenure")


def rotation(old: PrivateKey, new: PrivateKey, *signers: PrivateKey) -> KeyRotated:
    """Return the event of a rotation, signed by both keys or by whoever is named."""
    text = rotation_text(ORIGIN, old.public, new.public)
    note = sign_note(text, *(signers or (old, new)))
    return KeyRotated(old_key=str(old.public), new_key=str(new.public), note=note)


def recover_with(
    ledger: Ledger, pods: Sequence[SeenPod], *keys: PublicKey, dry_run: bool = False
) -> Recovery:
    """Recover believing these keys, and what the ledger's rotations join to them."""
    trusted = trusted_keys(ledger, keys)
    return recovered(ledger, pods, check=trusted.check, doubt=trusted.doubt, dry_run=dry_run)


class Scene:
    """A backup that lacks the reservations of `lost` and `other`, and what was signed for them."""

    def __init__(self, store: Store, places: Path) -> None:
        clock = Clock()
        self.clock = clock
        with store.open() as ledger:
            start(ledger, "first")
            writer = start(ledger, "second")
            writer.append(clock.all(node("n-1", gpus=4), reserved("kept", share(0, 50))))
        self.backup = store.copy(places / "backup.db")
        with store.open() as ledger:
            writer = start(ledger, "third")
            writer.append(clock.all(reserved("lost", share(1, 100)), reserved("other", share(2))))
            signed = {
                each.event.pod_name: allocation(ledger, each)
                for each in ledger.read_events()
                if isinstance(each.event, PodReserved)
            }
        self.kept, self.lost, self.other = (signed[name] for name in ("kept", "lost", "other"))

    def rotated(self, *events: KeyRotated) -> None:
        """Record rotations in the backup, as if they had been before it was made."""
        with self.backup.open() as ledger:
            start(ledger, "rotating").append(self.clock.all(*events))
            moved = ledger.head().position - self.kept.position
        position, epoch = self.lost.position + moved, self.lost.epoch + 1
        self.lost = replace(self.lost, position=position, epoch=epoch)


@pytest.fixture
def scene(store: Store, tmp_path: Path) -> Iterator[Scene]:
    """The scene, with its backup in place of the ledger."""
    made = Scene(store, tmp_path)
    yield made
    if isinstance(made.backup, PostgresStore):
        made.backup.server.drop(made.backup.database)


def text_of(pod: SeenPod) -> str:
    """Return the annotation."""
    assert pod.allocation is not None
    return pod.allocation


def edited(pod: SeenPod, old: str, new: str) -> SeenPod:
    """Return the Pod with a part of its annotation written anew."""
    return replace(pod, allocation=text_of(pod).replace(old, new))


def signature_of(pod: SeenPod) -> str:
    """Return the end of the annotation, from the signature on."""
    return text_of(pod).rpartition('"signature":')[2]


def forged(scene: Scene, how: str) -> SeenPod:
    """Return a Pod whose annotation somebody without our key made or moved."""
    lost, true = scene.lost, seen_pod(scene.lost, FIRST)
    abroad = replace(lost, origin="ledger/theirs")
    ours, theirs = (key.public.key_id for key in (FIRST, OUTSIDER))
    ways: dict[str, Callable[[], SeenPod]] = {
        "another key under our key's name": lambda: seen_pod(lost, OUTSIDER),
        "another key that says it is ours": lambda: edited(seen_pod(lost, OUTSIDER), theirs, ours),
        "another origin": lambda: seen_pod(abroad, OUTSIDER),
        "our origin in one of ours": lambda: edited(seen_pod(abroad, FIRST), abroad.origin, ORIGIN),
        "another card": lambda: edited(true, '"minor":1', '"minor":3'),
        "less of the card": lambda: edited(true, '"core_percent":100', '"core_percent":1'),
        "the signature of another Pod": lambda: edited(
            true, signature_of(true), signature_of(seen_pod(scene.other, FIRST))
        ),
        "copied to a Pod with another UID": lambda: replace(true, uid="uid-thief"),
        "copied to a Pod of another name": lambda: replace(true, name="thief"),
        "a position that the ledger has": lambda: seen_pod(
            replace(lost, position=scene.kept.position, epoch=scene.kept.epoch), FIRST
        ),
        "an older epoch": lambda: seen_pod(replace(lost, epoch=1), FIRST),
    }
    return ways[how]()


@pytest.mark.parametrize(
    ("how", "fact"),
    [
        ("another key under our key's name", "the signature does not hold: key=tenure+"),
        ("another key that says it is ours", "the signature does not hold"),
        ("another origin", "the signature does not hold"),
        ("our origin in one of ours", "the signature does not hold"),
        ("another card", "the signature does not hold"),
        ("less of the card", "the signature does not hold"),
        ("the signature of another Pod", "the signature does not hold"),
        ("copied to a Pod with another UID", "signed for another Pod UID: uid-lost"),
        ("copied to a Pod of another name", "signed for another Pod: team-a/lost"),
        ("a position that the ledger has", "the ledger has another event at the position"),
        ("an older epoch", "an epoch that had ended: epoch=1"),
    ],
)
def test_what_an_outsider_makes_or_moves_is_refused_and_named(
    scene: Scene, how: str, fact: str
) -> None:
    """Beside it the true annotations are believed; the forged Pod holds nothing."""
    pod = forged(scene, how)
    assert pod != seen_pod(scene.lost, FIRST), "nothing was forged"
    with scene.backup.open() as ledger:
        pods = [pod, seen_pod(scene.other, FIRST)]
        result = recover_with(ledger, pods, FIRST.public)
        held = {row[0] for row in open_holdings(ledger)}

    assert [(each.pod_uid, fact in each.fact) for each in result.disbelieved] == [(pod.uid, True)]
    assert held == {"uid-kept", "uid-other"}


def test_our_own_signature_for_another_ledger_stops_everything(scene: Scene) -> None:
    """It is true, and this is not the ledger of the cluster that it runs in."""
    with scene.backup.open() as ledger:
        before = ledger.head()
        with pytest.raises(InputError, match="another origin"):
            recover_with(
                ledger, [seen_pod(replace(scene.lost, origin="ledger/x"), FIRST)], FIRST.public
            )
        assert ledger.head() == before


def outcome(result: Recovery) -> tuple[list[str], list[str]]:
    """Return the Pods that hold again, and those that are not believed."""
    return [each.pod_uid for each in result.recreated], [e.pod_uid for e in result.disbelieved]


@pytest.mark.parametrize("given", [FIRST, SECOND], ids=["the first key", "the second key"])
def test_a_rotated_key_is_believed_for_its_time(scene: Scene, given: PrivateKey) -> None:
    """Whichever of the two is named: the first before the rotation, the second behind it."""
    scene.rotated(rotation(FIRST, SECOND))
    good = [seen_pod(scene.kept, FIRST), seen_pod(scene.lost, SECOND)]
    with scene.backup.open() as ledger:
        again = recover_with(ledger, good, given.public, dry_run=True)
        late = recover_with(ledger, [seen_pod(scene.lost, FIRST)], given.public, dry_run=True)

    assert outcome(again) == (["uid-lost"], [])
    assert outcome(late) == ([], ["uid-lost"])
    assert "the key did not sign any more, or not yet: key=tenure+" in late.disbelieved[0].fact
    assert not late.opened, "what is not believed is no witness either"


def test_a_rotation_that_was_lost_is_told_by_the_second_key(scene: Scene) -> None:
    """The ledger knows nothing of it; both keys are named, and both are believed."""
    pods = [seen_pod(scene.lost, FIRST), seen_pod(scene.other, SECOND)]
    with scene.backup.open() as ledger:
        one = recover_with(ledger, pods, FIRST.public, dry_run=True)
        both = recover_with(ledger, pods, FIRST.public, SECOND.public, dry_run=True)

    assert outcome(one) == (["uid-lost"], ["uid-other"])
    assert outcome(both) == (["uid-lost", "uid-other"], [])


def test_a_key_that_was_rotated_after_the_recovery_still_tells_of_what_was_lost(
    scene: Scene,
) -> None:
    """A node that was away shows its Pods later: they were signed before the rotation."""
    with scene.backup.open() as ledger:
        recover_with(ledger, [seen_pod(scene.other, FIRST)], FIRST.public)
        start(ledger, "rotating").append(scene.clock.all(rotation(FIRST, SECOND)))
        later = recover_with(ledger, [seen_pod(scene.lost, FIRST)], SECOND.public)

    assert outcome(later) == (["uid-lost"], [])


@pytest.mark.parametrize("signer", [OUTSIDER, FIRST], ids=["an outsider", "only the old key"])
def test_a_rotation_that_both_keys_did_not_sign_hands_no_trust_on(
    scene: Scene, signer: PrivateKey
) -> None:
    """Whoever can write the ledger can record one."""
    scene.rotated(rotation(FIRST, OUTSIDER, signer))
    with scene.backup.open() as ledger:
        theirs = recover_with(ledger, [seen_pod(scene.lost, OUTSIDER)], FIRST.public, dry_run=True)
        ours = recover_with(ledger, [seen_pod(scene.lost, FIRST)], FIRST.public, dry_run=True)

    assert outcome(theirs) == ([], ["uid-lost"])
    assert outcome(ours) == (["uid-lost"], [])


def test_a_key_that_was_rotated_away_names_no_other_heir(scene: Scene) -> None:
    """Its secret was stolen later: the thief's rotation comes behind the true one."""
    scene.rotated(rotation(FIRST, SECOND), rotation(FIRST, OUTSIDER))
    with scene.backup.open() as ledger:
        for given in (FIRST, SECOND):
            keys = trusted_keys(ledger, [given.public])
            assert keys.keys.keys() == {FIRST.public.key_id, SECOND.public.key_id}


def test_signing_again_with_the_first_key_gives_it_a_second_time(scene: Scene) -> None:
    """Back to the first key after the second: believed before and after, not between."""
    scene.rotated(rotation(FIRST, SECOND), rotation(SECOND, FIRST))
    with scene.backup.open() as ledger:
        away, back = (
            each.envelope.position
            for each in ledger.read_events()
            if isinstance(each.event, KeyRotated)
        )
        keys = trusted_keys(ledger, [FIRST.public])

    first, second = FIRST.public.key_id, SECOND.public.key_id
    moments = (away - 1, away, back)
    assert [not keys.doubt(first, moment) for moment in moments] == [True, False, True]
    assert [not keys.doubt(second, moment) for moment in moments] == [False, True, False]
