"""
Decisions about new Pods that are alike, such as those of one ReplicaSet: made once, given again.

The API server writes the same Pod again and again, with other names, uids and times. Cut out of a
request's bytes, they leave its skeleton. Before an answer is kept for a skeleton, the request is
read once more with other values in the same places: only if then exactly the fields differ that no
decision looks at, every request with that skeleton is known to be the same but for them. What is
kept is plain consent that shows none of these values. Whatever refuses, or is counted or recorded,
is decided and worded anew each time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import orjson

from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import found_in, items_in
from webhook.decide.answers import AdmissionAnswer
from webhook.decide.facts import NamespaceFacts
from webhook.decide.review import CREATE, AdmissionRequest, ReviewLimits, encode_review, patch_text
from webhook.decide.settings import AdmissionSettings
from webhook.server.reading import Needs, read_review

ENTRIES_MAX: Final = 1024
SEEN_MAX: Final = 1024
BODY_BYTES_MAX: Final = 32 * 1024
"""A larger request is decided anew each time. With `ENTRIES_MAX` it bounds the memory."""

_CUT: Final = b"\xff"
"""Stands where something was cut out. No UTF-8 text holds this byte."""

_HEAD: Final = re.compile(
    rb'\{"kind":"AdmissionReview","apiVersion":"admission\.k8s\.io/v1",'
    rb'"request":\{"uid":"([A-Za-z0-9-]{1,64})"'
)
_POD: Final = re.compile(
    rb'"object":\{"kind":"Pod","apiVersion":"v1","metadata":\{'
    rb'(?:"name":"([a-z0-9.-]{1,253})",)?'
    rb'(?:"generateName":"[^"\\]*",)?(?:"namespace":"[^"\\]*",)?'
    rb'(?:"uid":"([A-Za-z0-9-]{1,64})",)?'
    rb'(?:"creationTimestamp":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)",)?'
)
_TIME_KEY: Final = b'"time":"'
_NAME_KEY: Final = b'"name":"'
_TIME: Final = re.compile(rb'[0-9TZ:.+-]{1,40}(?=")')
_TOKEN_PREFIX: Final = b"kube-api-access-"
_TOKEN: Final = re.compile(rb"kube-api-access-[a-z0-9]{5}")

_OTHER: Final[Mapping[str, str]] = {
    "uid": "another-request",
    "name": "another-name",
    "pod_uid": "another-pod",
    "created": "2001-02-03T04:05:06Z",
    "time": "2001-02-03T04:05:07Z",
    "token": "kube-api-access-other",
}
"""Values of no real request, to see which fields the places that were cut out are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """
    A request's bytes without what tells Pods alike apart.

    Attributes:
        skeleton: hook and bytes, with a mark in every place that was cut out.
        places: which of `_OTHER` was cut out, in order.
        uid, name: of the request and of the Pod; the name is empty when the Pod has none yet.
        token: the random name of the Pod's volume with the token, empty when it has none.
    """

    skeleton: bytes
    places: tuple[str, ...]
    uid: str
    name: str
    token: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """
    A decision that allowed a request, and that no rule had anything against.

    Attributes:
        request: the one that was decided on, without its objects, which are large.
        name: the Pod's name as messages show it, for requests that none was cut out of.
        needs, facts: what else it was decided by.
        tail: the response from behind the request's uid on.
    """

    request: AdmissionRequest
    name: str
    needs: Needs
    facts: NamespaceFacts
    answer: AdmissionAnswer
    tail: bytes

    def response(self, uid: str) -> bytes:
        """Return the response to another request that is alike."""
        return _head(uid) + self.tail


class Memory:
    """The last decisions, all made with the same settings; the ones not needed make room."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries: dict[bytes, Remembered] = {}
        self._entries_max = entries_max
        self._seen: set[int] = set()
        self._settings: AdmissionSettings | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, cut: Cut | None, settings: AdmissionSettings) -> Remembered | None:
        """Return what was decided with these very settings; others make everything forgotten."""
        if settings is not self._settings:
            self._entries.clear()
            self._settings = settings
        if cut is None:
            return None
        found = self._entries.pop(cut.skeleton, None)
        if found is not None:
            self._entries[cut.skeleton] = found
        return found

    def keep(
        self,
        cut: Cut | None,
        request: AdmissionRequest,
        decided: Remembered,
        settings: AdmissionSettings,
        limits: ReviewLimits,
    ) -> None:
        """Remember a decision, if it is one that every request with that skeleton gets."""
        if cut is None or settings is not self._settings:
            return
        known = hash(cut.skeleton)
        if known not in self._seen:  # one of a kind is not worth the second look
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()
            self._seen.add(known)
        elif _is_plain(request, decided, cut) and _is_what_it_seems(cut, request, limits):
            while len(self._entries) >= self._entries_max:
                del self._entries[next(iter(self._entries))]
            self._entries[cut.skeleton] = decided


def cut_of(hook: str, body: bytes) -> Cut | None:
    """Return a request's skeleton; None when the bytes are not as the API server writes them."""
    head = _HEAD.match(body) if len(body) <= BODY_BYTES_MAX else None
    pod = None if head is None else _POD.search(body, head.end())
    if head is None or pod is None or _CUT in body:
        return None
    name, uid, created = pod.groups()
    spans = [(*head.span(1), "uid"), *_times(body, pod.end())]
    if name is not None:
        spans.append((*pod.span(1), "name"))
        at = body.find(_NAME_KEY + name + b'"', head.end(), pod.start())
        if at >= 0:
            at += len(_NAME_KEY)
            spans.append((at, at + len(name), "name"))
    if uid is not None:
        spans.append((*pod.span(2), "pod_uid"))
    if created is not None:
        if not _is_time(created.decode()):
            return None
        spans.append((*pod.span(3), "created"))
    token = _token_in(body)
    if token:
        spans += _tokens(body, token)
    spans.sort()
    pieces, end = [hook.encode()], 0
    for start, stop, _ in spans:
        if start < end:
            return None  # one within another, such as a token's name in a Pod's
        pieces.append(body[end:start])
        end = stop
    pieces.append(body[end:])
    return Cut(
        skeleton=_CUT.join(pieces),
        places=tuple([place for _, _, place in spans]),
        uid=head[1].decode(),
        name="" if name is None else name.decode(),
        token=token,
    )


def decided(
    request: AdmissionRequest, needs: Needs, facts: NamespaceFacts, answer: AdmissionAnswer
) -> tuple[Remembered, bytes]:
    """Return a decision as it can be remembered, and the response to its own request."""
    response = orjson.dumps(encode_review(request, answer))
    head = _head(request.uid)
    assert response.startswith(head), "a response begins with the uid"
    remembered = Remembered(
        request=replace(request, obj=None, old=None, options={}),
        name=request.shown_name,
        needs=needs,
        facts=facts,
        answer=answer,
        tail=response[len(head) :],
    )
    return remembered, response


def _head(uid: str) -> bytes:
    return (
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":'
        + orjson.dumps(uid)
    )


def _times(body: bytes, at: int) -> list[tuple[int, int, str]]:
    """Return the places of the times from there on; whose they are is found out later."""
    found = []
    while (at := body.find(_TIME_KEY, at)) >= 0:
        at += len(_TIME_KEY)
        time = _TIME.match(body, at)
        if time is not None:
            found.append((*time.span(), "time"))
    return found


def _token_in(body: bytes) -> bytes:
    at = body.find(_TOKEN_PREFIX)
    found = _TOKEN.match(body, at) if at >= 0 else None
    return b"" if found is None else found[0]


def _tokens(body: bytes, token: bytes) -> list[tuple[int, int, str]]:
    found, at, length = [], 0, len(token)
    while (at := body.find(token, at)) >= 0:
        found.append((at, at + length, "token"))
        at += length
    return found


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_plain(request: AdmissionRequest, decided: Remembered, cut: Cut) -> bool:
    """Tell whether a decision is consent to a new Pod that shows nothing of what was cut out."""
    answer = decided.answer
    if not answer.allowed or answer.refusals or answer.audit or decided.facts.pod is not None:
        return False
    if (request.operation, request.kind, request.group, request.subresource) != (
        CREATE,
        "Pod",
        "",
        "",
    ):
        return False
    pod_uid = found_in(request.obj, "metadata", "uid")
    shown = "\n".join((patch_text(answer.patch), *answer.warnings))
    own = (cut.uid, cut.name, cut.token.decode(), pod_uid)
    return not any(isinstance(text, str) and text and text in shown for text in own)


def _is_what_it_seems(cut: Cut, request: AdmissionRequest, limits: ReviewLimits) -> bool:
    """Tell whether what was cut out is what it was taken for, and nothing else."""
    hook_and_body = cut.skeleton.split(_CUT)
    parts = [hook_and_body[1]]
    for place, piece in zip(cut.places, hook_and_body[2:], strict=True):
        parts += (_OTHER[place].encode(), piece)
    try:
        return read_review(b"".join(parts), limits) == _other(cut, request)
    except InputError:
        return False


def _other(cut: Cut, request: AdmissionRequest) -> AdmissionRequest:
    """Return the request with other values in the fields that are to be cut out."""
    text = orjson.dumps(request.obj)
    if cut.token:
        text = text.replace(cut.token, _OTHER["token"].encode())
    pod: dict[str, Any] = orjson.loads(text)
    metadata: dict[str, Any] = pod["metadata"]
    for place, key in (("name", "name"), ("pod_uid", "uid"), ("created", "creationTimestamp")):
        if place in cut.places:
            metadata[key] = _OTHER[place]
    for entry in items_in(metadata, "managedFields"):
        if "time" in entry:
            entry["time"] = _OTHER["time"]
    twice = cut.places.count("name") == 2
    return replace(
        request,
        uid=_OTHER["uid"],
        name=_OTHER["name"] if twice else request.name,
        obj=pod,
    )
