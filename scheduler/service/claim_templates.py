"""
The templates of the claims that admission names: made when a Pod waits for one, else taken away.

Rule: docs/adr/0031. A template is named by what it asks for, so that Pods of one request share it,
and there is nothing to take back where a Pod was refused.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from certs.ports import ApiError, ConflictError, Object, Objects, api_path
from ledger.domain.dialects.dra.asking import (
    CLAIM,
    TEMPLATE_PREFIX,
    Giver,
    claim_spec,
    says_the_same,
)
from ledger.domain.errors import InputError
from ledger.domain.request.claimed import asked_by_claim, is_claimed, template_named
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from scheduler.service.ports import Clock, PendingPod, WhyNot

AGAIN_SECONDS: Final = 5.0
"""A template is looked at again while a Pod waits for its claim: somebody may have deleted it."""
UNUSED_SECONDS: Final = 24 * 3_600.0
"""For so long no Pod has named a template that is taken away."""
_NAME: Final = re.compile(rf"{TEMPLATE_PREFIX}[0-9a-f]{{32}}")
_LABEL: Final = "app.kubernetes.io/managed-by"
_OURS: Final = "tenure"
_TEMPLATES: Final = "resourceclaimtemplates"
_PATH: Final = api_path("resource.k8s.io/v1", _TEMPLATES)
ALL_TEMPLATES: Final = f"{_PATH}?labelSelector={_LABEL}%3D{_OURS}"

_log: Final = logging.getLogger("tenure.scheduler.claim_templates")

Place = tuple[str, str]
"""Namespace and name of a template."""


def templates_in(namespace: str, *name: str) -> str:
    """Return the path of a namespace's templates, or of one of them."""
    return api_path("resource.k8s.io/v1", "namespaces", namespace, _TEMPLATES, *name)


@dataclass(slots=True, kw_only=True)
class ClaimTemplates:
    """A sink of Pods that keeps the templates that they name, for the cards of `giver`."""

    api: Objects
    clock: Clock
    pod: PendingPod
    giver: Callable[[], Giver]
    why_not: WhyNot
    vocabulary: Vocabulary = DEFAULT_VOCABULARY
    _named: dict[str, Place] = field(default_factory=dict)  # by UID of the Pods that are there
    _users: Counter[Place] = field(default_factory=Counter)
    _waiting: dict[str, float] = field(default_factory=dict)  # without a claim: not before when
    _looked: dict[Place, float] = field(default_factory=dict)
    _unused: dict[Place, float] = field(default_factory=dict)

    def put(self, uid: str, item: Object) -> None:
        """Take a Pod that came or changed."""
        self.drop(uid)
        try:
            name = template_named(item) if is_claimed(item) else ""
        except InputError:
            return
        if not name.startswith(TEMPLATE_PREFIX):
            return
        place = self._named[uid] = (str(item["metadata"]["namespace"]), name)
        self._users[place] += 1
        if not item["spec"].get("nodeName") and not _has_claim(item):
            self._waiting[uid] = float("-inf")

    def drop(self, uid: str) -> None:
        """Forget a Pod that is gone."""
        place = self._named.pop(uid, None)
        self._waiting.pop(uid, None)
        if place is not None:
            self._users[place] -= 1
            if not self._users[place]:
                del self._users[place]

    async def make(self) -> None:
        """Make the templates that Pods wait for. Raises ApiError: the API server is away."""
        now = self.clock.monotonic()
        for uid, begins in list(self._waiting.items()):
            place = self._named.get(uid)
            if place is None or now < begins or self.why_not():
                continue
            if now - self._looked.get(place, now - AGAIN_SECONDS) < AGAIN_SECONDS:
                continue
            spec = self._spec(uid)
            if spec is None and uid in self._waiting:
                self._waiting[uid] = now + AGAIN_SECONDS  # of this Pod alone: reading it takes time
            elif spec is not None:
                self._looked[place] = now  # also where it fails: others wait, too
                await self._make(place, spec)

    def _spec(self, uid: str) -> dict[str, object] | None:
        """
        Return what the claim of a Pod is to ask for, None where no claim of ours is, or not yet.

        A claim keeps what it was made with, so no part is asked for before a card tells of what.
        """
        pod = self.pod(uid)
        try:
            asking = None if pod is None else asked_by_claim(pod, self.vocabulary)
        except InputError:
            return None
        giver = self.giver()
        if asking is None or not (
            giver.sizes or giver.has_cores or all(one.is_whole for one in asking.requests)
        ):
            return None
        return claim_spec(asking, giver)

    async def _make(self, place: Place, spec: dict[str, object]) -> None:
        namespace, name = place
        path = templates_in(namespace, name)
        there = await self.api.read(path)
        if there is not None:
            if says_the_same((there.get("spec") or {}).get("spec") or {}, spec):
                return
            await self.api.remove(path)  # of other cards, or somebody else's
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": namespace, "labels": {_LABEL: _OURS}},
            "spec": {"spec": spec},
        }
        try:
            await self.api.create(templates_in(namespace), body)
        except ConflictError:
            return  # it is looked at again
        _log.info("template made", extra={"namespace": namespace, "template": name})

    async def clean(self) -> None:
        """Remove templates unused for a day. Raises ApiError: the API server does not answer."""
        if self.why_not():
            return
        listed = await self.api.read(ALL_TEMPLATES)
        there = {
            (str(item["metadata"]["namespace"]), str(item["metadata"]["name"]))
            for item in (listed or {}).get("items", ())
            if _NAME.fullmatch(str(item["metadata"]["name"]))
        }
        now = self.clock.monotonic()
        self._looked = {place: at for place, at in self._looked.items() if place in self._users}
        unused = {place for place in there if place not in self._users}
        self._unused = {place: self._unused.get(place, now) for place in unused}
        for place, since in list(self._unused.items()):
            if now - since < UNUSED_SECONDS or place in self._users:
                continue
            namespace, name = place
            try:
                await self.api.remove(templates_in(namespace, name))
            except (ApiError, ConflictError) as error:
                _log.warning("template stays", extra={"template": name, "reason": str(error)})


def _has_claim(pod: Object) -> bool:
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return any(one.get("name") == CLAIM and one.get("resourceClaimName") for one in statuses)
