"""The fields that every Kubernetes object has: names, texts, times, and maps of them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ledger.domain.annotations.wire import a_list, an_object, wrong
from ledger.domain.bounds import NAME_MAX, bounds_of
from ledger.domain.errors import InputError

Object = Mapping[str, object]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VERSION_DIGITS: Final = 19
"""Of a resourceVersion: etcd counts in 63 bits."""


def default_uid(kind: str, namespace: str, name: str) -> str:
    """
    Return the UID of an object that has none: a UUIDv5 of its kind, namespace and name.

    Rule: cli.md, Defaults. An object without a namespace has an empty one: `tenure:Node//n-17`.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"tenure:{kind}/{namespace}/{name}"))


def name_of(metadata: Mapping[str, object]) -> str:
    """Return `metadata.name`. Raises InputError: missing, no text, or with a slash (`NS/POD`)."""
    name = text_at(metadata, "name", "metadata")
    if not name:
        raise InputError("missing; expected a name", field="metadata.name")
    if "/" in name:
        raise InputError(f"a name holds no slash: value={name!r}", field="metadata.name")
    return name


def metadata_of(thing: Object | None) -> dict[str, object]:
    """Return an object's metadata, empty when it has none. Raises InputError: it is no object."""
    return {} if thing is None else an_object(thing.get("metadata"), "metadata")


def annotations_of(thing: Object | None) -> Mapping[str, str]:
    """Return an object's annotations, empty when it has none. Raises InputError as `text_map`."""
    return text_map(metadata_of(thing).get("annotations"), "metadata.annotations")


def labels_of(thing: Object | None) -> Mapping[str, str]:
    """Return an object's labels, empty when it has none. Raises InputError as `text_map`."""
    return text_map(metadata_of(thing).get("labels"), "metadata.labels")


def spec_of(thing: Object | None) -> dict[str, object]:
    """Return an object's spec, empty when it has none. Raises InputError: it is no object."""
    return {} if thing is None else an_object(thing.get("spec"), "spec")


def found_in(thing: object, *path: str) -> Any:  # noqa: ANN401 - JSON
    """Return what is at a path inside of an object; None where nothing is, or something else."""
    for key in path:
        thing = thing.get(key) if isinstance(thing, dict) else None
    return thing


def section(thing: object, *path: str) -> dict[str, Any]:
    """Return an object inside of an object, empty where there is none: decoding refuses others."""
    value = found_in(thing, *path)
    return value if isinstance(value, dict) else {}


def items_in(thing: object, *path: str) -> list[dict[str, Any]]:
    """Return the objects of a list, such as conditions; none where it is no list."""
    value = found_in(thing, *path)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text_in(thing: object, *path: str) -> str:
    """Return a text inside of an object, empty where there is none, or something else."""
    value = found_in(thing, *path)
    return value if isinstance(value, str) else ""


def text_at(parent: Mapping[str, object], key: str, path: str) -> str:
    """Return a text, empty when absent. Raises InputError: no text, or one that no UTF-8 holds."""
    value = parent.get(key)
    if value is None:
        return ""
    return _plain(value, f"{path}.{key}")


def named(value: object, path: str) -> dict[str, object]:
    """
    Return an object whose keys are names, such as a resource list, empty when absent.

    Raises:
        InputError: no object, or a key that is no text (YAML reads `1: 2` as a number).
    """
    items = an_object(value, path)
    for key in items:
        if not (isinstance(key, str) and key.isascii()):
            _plain(key, path)
    return items


def text_map(value: object, path: str) -> Mapping[str, str]:
    """
    Return labels, annotations or the like, empty when absent; null is an empty text, as in Go.

    Raises:
        InputError: no object, or a value that is no text (YAML reads `replica: 2` as a number).
    """
    items = an_object(value, path)
    if None in items.values():
        items = {key: "" if item is None else item for key, item in items.items()}
    for key, item in items.items():
        if not (isinstance(item, str) and item.isascii() and isinstance(key, str)):
            _plain(key, path)
            _plain(item, f"{path}[{key}]")
    return items  # type: ignore[return-value]  # every value was just seen to be a text


def time_us(value: object, path: str) -> int:
    """
    Return an RFC 3339 time in microseconds since the epoch, 0 when absent.

    YAML may have made a date and time of it already; one without an offset is UTC.

    Raises:
        InputError: no such time, or one that no object of a cluster has.
    """
    if value is None:
        return 0
    try:
        moment = (
            value if isinstance(value, datetime) else datetime.fromisoformat(_plain(value, path))
        )
    except ValueError as error:
        raise InputError(
            f"not a time such as 2026-01-31T14:05:00Z: value={value!r}", field=path
        ) from error
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    at_us = (aware - _EPOCH) // _MICROSECOND
    low, high = bounds_of("created_at_us")
    if not low <= at_us <= high:
        raise InputError(f"not a time between 1970 and 2255: value={value!r}", field=path)
    return at_us


def owner_of(metadata: Mapping[str, object]) -> str:
    """Return a controller, `<lower-case kind>/<name>`, or "". Raises InputError: bad reference."""
    path = "metadata.ownerReferences"
    for number, item in enumerate(a_list(metadata.get("ownerReferences"), path)):
        at = f"{path}[{number}]"
        one = an_object(item, at)
        if one.get("controller") is True:
            return f"{text_at(one, 'kind', at).lower()}/{text_at(one, 'name', at)}"
    return ""


def is_label(text: str) -> bool:
    """Tell whether a namespace may be called so, or be the UID of an object (RFC 1123, label)."""
    return _LABEL.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Tell whether a Node, a Pod or a claim may be called so (RFC 1123, subdomain)."""
    return len(text) <= NAME_MAX and _NAME.fullmatch(text) is not None


def is_full_name(namespace: str, name: str) -> bool:
    """Tell whether a Pod or a claim may be called so: the API server stores none else."""
    return is_label(namespace) and is_name(name)


def version_number(text: str) -> int | None:
    """Return a resourceVersion as a number, None for another text; in one etcd they only grow."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _VERSION_DIGITS
    return int(text) if is_number else None


def _plain(value: object, path: str) -> str:
    """Return a text that every UTF-8 file can hold: half a surrogate pair can't be stored."""
    if not isinstance(value, str):
        wrong("a text", value, path)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"not valid text: value={value!r}", field=path) from error
    return value
