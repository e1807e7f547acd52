"""Whether the ledger may be written: it is compared with all that was seen of it, then ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from certs.ports import ApiError, Objects
from ledger.domain.annotations.signed import Checker
from ledger.domain.errors import InputError, LedgerError
from ledger.domain.log.events import PodReserved
from ledger.domain.log.standing import Own, Witness
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION
from ledger.store.mending.recover import own_at
from ledger.store.open import open_ledger
from ledger.store.reading.kept import events_at, newest_granted
from ledger.store.threaded import in_thread
from ledger.store.writing.lane import Turn
from scheduler.service import witnesses
from scheduler.service.freshness import AWAY
from tenure.kube.reflector import Reflector
from tenure.serving.scheduling.options import SchedulerOptions
from tenure.serving.scheduling.process import Process
from tenure.serving.scheduling.signing import proof_key_of

HEAD_SECONDS: Final = 10.0
"""How often the ConfigMap is told of the head at most."""
VERSIONS: Final = 64
"""How many of the newest reservations tell which versions the API server had."""
PODS: Final = "/api/v1/pods"
_AGAIN_SECONDS: Final = 2.0

_log: Final = logging.getLogger("tenure.scheduler.standing")


class Standing:
    """
    Takes the ledger over once it has all that was seen of it.

    Attributes:
        incarnation: the one that is open, empty before it was looked at.
        disproved: why the ledger is not the one that was signed, until the process starts anew;
            empty while it is.
    """

    def __init__(self, options: SchedulerOptions) -> None:
        self._check = proof_key_of(options).check
        self._own = Own(origin="", position=0, epoch=0)
        self.incarnation = ""
        self.disproved = ""

    async def take_over(self, process: Process, turn: Callable[[], Turn], pods: Reflector) -> None:
        """
        Wait until nobody has seen more than the ledger says; start an epoch in it.

        Nothing is written before: what was lost begins behind the last event that is there. The
        cluster was listed; the feed may be behind.

        Raises:
            LedgerError: it can't be taken over now.
        """
        freshness = process.freshness
        while why := await self._why_not(process, pods):
            if why != freshness.quarantine:
                freshness.quarantine = why
                _log.error("quarantined: nothing is granted or recorded", extra={"reason": why})
            await asyncio.sleep(_AGAIN_SECONDS)
        await process.recorder.open(turn())
        process.live.proofs.close()
        if freshness.quarantine:
            freshness.quarantine = ""
            _log.info("out of quarantine", extra={"position": process.recorder.position})

    def keep_head(self, process: Process) -> None:
        """Tell the ConfigMap of the head, again and again."""

        async def tell() -> None:
            own = self._now(process)
            why = await witnesses.write_head(process.objects, process.options.namespace, own)
            process.freshness.quarantine = why or self.disproved

        process.repeat(HEAD_SECONDS, "head", tell)

    async def _why_not(self, process: Process, pods: Reflector) -> str:
        proofs, path = process.live.proofs, witnesses.config_map_path(process.options.namespace)
        try:
            there = await process.objects.read(path)
        except ApiError as error:
            return f"{witnesses.RECOVERING}: what was seen of the ledger can't be read: {error}"
        try:
            kept = None if there is None else witnesses.kept_witness(there, process.origin)
        except InputError as error:
            return witnesses.mangled(error)
        claims = tuple(proofs.claims.values())
        try:
            own, found, versions = await in_thread(
                examined, process.options.ledger, claims, kept, self._check
            )
        except LedgerError:
            process.recorder.lost()  # another replica may try
            return AWAY
        for uid, fact in (*proofs.broken.items(), *found.disbelieved.items()):
            _log.warning("a proof is not believed", extra={"pod_uid": uid, "reason": fact})
        self._own, self.incarnation = own, own.incarnation
        if found.reason:
            return found.reason
        try:
            return witnesses.set_back(
                versions, await version_now(process.objects, pods.version, versions)
            )
        except ApiError as error:
            unasked = f"whether the API server was set back can't be asked: {error}"
            return f"{witnesses.RECOVERING}: {unasked}"

    def _now(self, process: Process) -> Own:
        lane = process.recorder.lane
        assert lane is not None, "the head is told of once the ledger is ours"
        head = lane.head
        return Own(
            origin=head.origin,
            position=head.position,
            epoch=head.epoch,
            incarnations=self._own.incarnations,
            lost=self._own.lost,
            chains={head.position: head.chain_hash.hex()},
        )


async def version_now(objects: Objects, told: str, seen: Sequence[str]) -> str:
    """
    Return the version that the API server has come to, empty while its Pods are listed anew.

    What a watch told last may be behind what another replica has seen, which is no set-back: where
    it is behind, the API server is asked itself.

    Args:
        told: by our watch of Pods.
        seen: versions of Pods as they were reserved for.

    Raises:
        ApiError: it does not answer.
    """
    if not (told and witnesses.set_back(seen, told)):
        return told
    page = await objects.read(f"{PODS}?limit=1") or {}
    return str((page.get("metadata") or {}).get("resourceVersion") or "")


def examined(
    url: str, claims: Sequence[witnesses.Claim], kept: Witness | None, check: Checker
) -> tuple[Own, witnesses.Examined, list[str]]:
    """
    Compare the ledger with its witnesses.

    Returns:
        What it says of itself, how it stands, and the versions of the Pods that it reserved for
        last; without what a recovery made again.
    """
    with open_ledger(url, mode="read") as ledger:
        own = own_at(ledger, [] if kept is None else [kept.position])
        asked = {one.position for one in claims if own.has(one.incarnation, one.position)}
        with ledger.connection.begin():
            there = events_at(ledger.connection, asked)
            newest = newest_granted(ledger.connection, own.incarnations[-1].began_at, VERSIONS)
    reserved = {
        position: (event.pod_uid, event.attempt) if isinstance(event, PodReserved) else None
        for position, event in there.items()
    }
    versions = [
        each.resource_version
        for each in newest
        if ANNOTATION_TENURE_ALLOCATION not in each.annotations
    ]
    return own, witnesses.examine(own, reserved, claims, kept, check), versions
