"""
What a name means to the container runtime, in the words of CDI.

A card is shown as the vendor's own CDI specification shows it: libraries, device nodes, hooks. Ours
adds the edits of a container's cards together under the name that was given for it.

Rule: CDI specification 0.6 to 1.0 (tags.cncf.io/container-device-interface).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent.decide.slots import KIND
from ledger.domain.errors import InputError

VERSION: Final = (0, 6, 0)
"""The least that says what ours say; a vendor's own may be newer."""
LISTS: Final = ("env", "deviceNodes", "mounts", "hooks", "additionalGids")
"""What edits consist of and can be added up. Any other edit is refused, not left out."""

_DEVICES: Final = "tenure.sh/devices"
"""The annotation of a CDI device that names what it shows."""

Edits = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardEdits:
    """How one card is shown; `of_all`: what the vendor does once, whichever cards are shown."""

    edits: Edits
    of_all: Edits = field(default_factory=dict)
    version: tuple[int, ...] = VERSION


def read_cards(specification: object) -> dict[str, CardEdits]:
    """Return each device's edits by its name. Raises InputError: unusable; with the place."""
    if not isinstance(specification, Mapping):
        raise InputError("expected an object")
    version = _version(specification.get("cdiVersion"))
    of_all = _edits(specification.get("containerEdits"), "containerEdits")
    devices = specification.get("devices")
    if not isinstance(devices, list):
        raise InputError("expected a list", field="devices")
    result = {}
    for number, device in enumerate(devices):
        place = f"devices[{number}]"
        name = device.get("name") if isinstance(device, Mapping) else None
        if not isinstance(name, str) or not name:
            raise InputError("expected a name", field=f"{place}.name")
        if name in result:
            raise InputError(f"the name is there twice: name={name}", field=f"{place}.name")
        edits = _edits(device.get("containerEdits"), f"{place}.containerEdits")
        result[name] = CardEdits(edits=edits, of_all=of_all, version=version)
    return result


def specification_of(
    name: str,
    cards: Iterable[CardEdits],
    more: Edits | None = None,
    *,
    devices: Iterable[str] = (),
) -> str:
    """
    Return the CDI specification of one name: its cards' edits, one after the other.

    What two cards say alike is said once.

    Args:
        more: what else is done for the container, after its cards' edits.
        devices: ids of what is shown, for whoever asks later what a name means.

    Raises:
        InputError: the cards have no edits, so that the container would start without them.
    """
    shown = list(cards)
    edits: dict[str, list[Any]] = {}
    for each in (*(one.of_all for one in shown), *(one.edits for one in shown)):
        for kind in LISTS:
            known = edits.setdefault(kind, [])
            known += [item for item in each.get(kind, ()) if item not in known]
    if not any(edits.values()):
        raise InputError(f"nothing shows its cards: name={name}")
    for kind, items in (more or {}).items():
        edits[kind] += items
    said = {kind: items for kind, items in edits.items() if items}
    version = max([VERSION, *(one.version for one in shown)])
    device: dict[str, Any] = {"name": name, "containerEdits": said}
    if ids := sorted(devices):
        device["annotations"] = {_DEVICES: ",".join(ids)}
    whole = {"cdiVersion": ".".join(map(str, version)), "kind": KIND, "devices": [device]}
    return json.dumps(whole, sort_keys=True)


def devices_shown(content: str) -> frozenset[str]:
    """Return the ids that a specification of ours shows. Raises InputError: it is not ours."""
    try:
        [device] = json.loads(content)["devices"]
        ids = device["annotations"][_DEVICES]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError("not a specification of ours") from error
    return frozenset(str(ids).split(","))


def _version(said: object) -> tuple[int, ...]:
    parts = said.split(".") if isinstance(said, str) else []
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"expected a version such as 0.6.0: value={said!r}", field="cdiVersion")
    return tuple(int(part) for part in parts)


def _edits(said: object, place: str) -> Edits:
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        raise InputError("expected an object", field=place)
    for kind, items in said.items():
        if kind not in LISTS:
            raise InputError("an edit that can't be added up", field=f"{place}.{kind}")
        if not isinstance(items, list):
            raise InputError("expected a list", field=f"{place}.{kind}")
    return {kind: tuple(said[kind]) for kind in LISTS if kind in said}
