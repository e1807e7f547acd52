"""AdmissionReview v1 on the wire: bounded reading of the request, writing of the response."""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Final, Never

from ledger.domain.annotations.wire import a_flag, an_object
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import found_in, metadata_of, text_at, text_in
from ledger.domain.typed import read
from webhook.decide.answers import FORBIDDEN, AdmissionAnswer, PatchOperation, warning

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

CREATE: Final = "CREATE"
UPDATE: Final = "UPDATE"
DELETE: Final = "DELETE"
CONNECT: Final = "CONNECT"

_OPERATIONS: Final = frozenset({CREATE, UPDATE, DELETE, CONNECT})
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_CODES: Final = {FORBIDDEN: 403}
_CODE_INVALID: Final = 422
_POD_LISTS: Final = ("containers", "initContainers", "ephemeralContainers")
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
"""Made once: `json.loads` with hooks, `json.dumps` with separators make one for each call."""
_UNNAMED: Final = "unnamed"
CONTAINERS_MAX: Final = 250
"""Entries in one list of a Pod's containers."""


class LimitError(InputError):
    """More than is read of a request. Its user is told, where it says whose it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewLimits:
    """
    How much of a request is read at most.

    Attributes:
        bytes_max: of the body; an UPDATE carries two objects of up to 1.5 MiB each.
        values_max: commas and opening brackets of the body; the densest objects of that size that
            the API server stores have fewer.
        depth_max: levels of nesting of the body.
        text_length_max: characters of one text; all annotations together may have 256 KiB.
    """

    bytes_max: int = 8 * 2**20
    values_max: int = 2**20
    depth_max: int = 64
    text_length_max: int = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who asks, as the API server has authenticated it."""

    name: Annotated[str, "username"] = ""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """
    One request to admit a change.

    Attributes:
        operation: `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
        group, version, kind: of the object, `""`, `v1`, `Pod`.
        resource, subresource: `pods`, `binding`.
        namespace: empty for objects that have none.
        name: empty for a CREATE with `generateName`.
        obj: the object after the change; None for DELETE.
        old: the object before it; None for CREATE.
        options: of the operation, such as CreateOptions.
        dry_run: nothing will be stored.
    """

    uid: str
    operation: str
    kind: str
    group: str = ""
    version: str = "v1"
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    user: User = User()
    obj: Mapping[str, object] | None = None
    old: Mapping[str, object] | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    dry_run: bool = False

    @property
    def shown_name(self) -> str:
        """Return the object's name as messages show it: `generateName` while it has no other."""
        written = (text_in(self.obj, "metadata", key) for key in ("name", "generateName"))
        return self.name or next(filter(None, written), "")


DEFAULT_LIMITS: Final = ReviewLimits()


def decode_review(source: object, limits: ReviewLimits = DEFAULT_LIMITS) -> AdmissionRequest:
    """
    Read an AdmissionReview v1 request: the body's bytes, or the JSON value they hold.

    Time and memory are bounded by the limits; keys that are not known are ignored.

    Raises:
        InputError: not such a request, or beyond a limit; nothing else is raised.
    """
    if isinstance(source, bytes | bytearray | str):
        review = _load(source, limits)
    else:
        review = source
        _check_depth(review, limits)
        _check_texts(review, limits)
    return request_of(review, limits)


def request_of(review: object, limits: ReviewLimits = DEFAULT_LIMITS) -> AdmissionRequest:
    """
    Return the request of an AdmissionReview out of the JSON value of its body.

    For callers whose parser has refused what `decode_review` refuses of a body: its size, texts
    that are too long or no UTF-8, keys that are there twice, numbers that are none.

    Raises:
        InputError: as `decode_review`.
    """
    _check_depth(review, limits)
    if not isinstance(review, dict):
        raise InputError("expected an AdmissionReview")
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if review.get(key) != expected:
            raise InputError(f"expected {expected}: value={_shown(review.get(key))}", field=key)
    request = _request(an_object(review.get("request"), "request"))
    if request.old is not None:
        expect_few(request.old)
    return request


def request_beyond(body: bytes) -> AdmissionRequest:
    """
    Return the request of a body that is not read, without its object.

    The API server writes who asks for what in front of it. What an update found stored may be
    beyond a limit and has to change still, so that no update is one.

    Raises:
        InputError: it does not say, or is an update.
    """
    head, _, _ = body.partition(b',"userInfo":')
    return decode_review(head + b',"object":{}}}')


def encode_review(request: AdmissionRequest, answer: AdmissionAnswer) -> dict[str, object]:
    """
    Return the AdmissionReview v1 response to a request.

    Rule: Kubernetes API, AdmissionResponse: a refusal has a metav1.Status with code, reason and
    causes; a patch is a JSONPatch in base64.
    """
    response: dict[str, object] = {"uid": request.uid, "allowed": answer.allowed}
    if not answer.allowed:
        response["status"] = _status(request, answer)
    elif answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(patch_text(answer.patch).encode()).decode("ascii")
    if answer.warnings:
        response["warnings"] = [warning(text) for text in answer.warnings]
    if answer.audit:
        response["auditAnnotations"] = dict(answer.audit)
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def patch_text(patch: tuple[PatchOperation, ...]) -> str:
    """Return the JSON text of a patch."""
    return _ENCODER.encode([operation.as_json() for operation in patch])


def _status(request: AdmissionRequest, answer: AdmissionAnswer) -> dict[str, object]:
    causes = [
        {"reason": cause.reason, "message": cause.message, "field": cause.field}
        for cause in answer.causes
    ]
    return {
        "status": "Failure",
        "message": answer.message,
        "reason": answer.reason,
        "code": _CODES.get(answer.reason, _CODE_INVALID),
        "details": {
            "name": request.shown_name,
            "group": request.group,
            "kind": request.kind,
            "causes": causes,
        },
    }


def _load(source: bytes | bytearray | str, limits: ReviewLimits) -> object:
    if len(source) > limits.bytes_max:
        raise LimitError(f"too large: bytes_max={limits.bytes_max}")
    try:
        text = source if isinstance(source, str) else source.decode()
        value: object = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: byte={error.start}") from error
    except RecursionError as error:
        raise LimitError(f"too deep: depth_max={limits.depth_max}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error}") from error
    except ValueError as error:
        raise LimitError("a number has too many digits") from error
    if len(text) > limits.text_length_max or _SURROGATE_ESCAPE.search(text):
        _check_texts(value, limits)
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; a key that is there twice means two things to two readers."""
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise InputError(f"a key is there twice: key={_shown(counts.most_common(1)[0][0])}")
    return result


def _refuse_constant(name: str) -> Never:
    raise InputError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise LimitError(f"a number is out of range: value={text[:80]}")
    return number


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite
)


def _check_depth(value: object, limits: ReviewLimits) -> None:
    """Refuse what is nested too deep, level by level, so that the check itself is not."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limits.depth_max):
        level = [
            child
            for item in level
            for child in (item.values() if type(item) is dict else item)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    if level:
        raise LimitError(f"too deep: depth_max={limits.depth_max}")


def _check_texts(value: object, limits: ReviewLimits) -> None:
    """Refuse texts that are too long or that no UTF-8 text can hold."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            _check_text(item, limits)
        elif isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise InputError(f"expected a text as key: value={_shown(key)}")
                _check_text(key, limits)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _check_text(text: str, limits: ReviewLimits) -> None:
    if len(text) > limits.text_length_max:
        raise LimitError(
            f"a text is too long: length={len(text)}, text_length_max={limits.text_length_max}"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError("not valid text: half a surrogate pair") from error


def _request(request: Mapping[str, object]) -> AdmissionRequest:
    path = "request"
    uid = text_at(request, "uid", path)
    if not uid:
        raise InputError("missing; expected a uid", field=f"{path}.uid")
    operation = text_at(request, "operation", path)
    if operation not in _OPERATIONS:
        raise InputError(
            f"not one of CREATE, UPDATE, DELETE, CONNECT: value={_shown(operation)}",
            field=f"{path}.operation",
        )
    kind = an_object(request.get("kind"), f"{path}.kind")
    resource = an_object(request.get("resource"), f"{path}.resource")
    name_of_kind = text_at(kind, "kind", f"{path}.kind")
    if not name_of_kind:
        raise InputError("missing; expected a kind", field=f"{path}.kind.kind")
    return AdmissionRequest(
        uid=uid,
        operation=operation,
        kind=name_of_kind,
        group=text_at(kind, "group", f"{path}.kind"),
        version=text_at(kind, "version", f"{path}.kind"),
        resource=text_at(resource, "resource", f"{path}.resource"),
        subresource=text_at(request, "subResource", path),
        namespace=text_at(request, "namespace", path),
        name=text_at(request, "name", path),
        user=read(User, request.get("userInfo"), f"{path}.userInfo"),
        obj=_whole(request, "object", needed=operation in {CREATE, UPDATE}),
        old=_whole(request, "oldObject", needed=operation == UPDATE),
        options=an_object(request.get("options"), f"{path}.options"),
        dry_run=a_flag(request.get("dryRun"), f"{path}.dryRun", default=False),
    )


def _whole(request: Mapping[str, object], key: str, *, needed: bool) -> Mapping[str, object] | None:
    value = request.get(key)
    if value is None:
        if needed:
            raise InputError("missing; expected an object", field=f"request.{key}")
        return None
    return an_object(value, f"request.{key}")


def lists_of_containers(pod: Mapping[str, object]) -> dict[str, list[object]]:
    """Return the lists of a Pod's containers that are lists, by name."""
    found = {name: found_in(pod, "spec", name) for name in _POD_LISTS}
    return {name: items for name, items in found.items() if isinstance(items, list)}


def expect_few(pod: Mapping[str, object], old: Mapping[str, object] = MappingProxyType({})) -> None:
    """Raise InputError for more containers in a list than are decided on and were there before."""
    before = lists_of_containers(old)
    for section, items in lists_of_containers(pod).items():
        if len(items) > max(CONTAINERS_MAX, len(before.get(section, ()))):
            fact = f"admission decides on Pods of at most {CONTAINERS_MAX} in one list"
            raise InputError(f"{len(items)} entries: {fact}", field=f"spec.{section}")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def readable_pod(pod: Mapping[str, object], namespace: str = "") -> Mapping[str, object]:
    """
    Return a Pod with the name and the namespace that it has only once it is stored.

    On CREATE a Pod may carry a `generateName` alone, and no namespace: the request names that.

    Raises:
        InputError: `metadata` is no object.
    """
    metadata = metadata_of(pod)
    missing: dict[str, object] = {}
    if not metadata.get("name"):
        missing["name"] = metadata.get("generateName") or _UNNAMED
    if namespace and not metadata.get("namespace"):
        missing["namespace"] = namespace
    return {**pod, "metadata": {**metadata, **missing}} if missing else pod
