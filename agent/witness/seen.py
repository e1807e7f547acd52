"""
Who is on which card, by all that was read of this node, as one value.

A holder is whoever kubelet gave a card to while the Pod lives, whoever was made with it, and
whoever has a process on it. What was shown all cards, as monitoring is, holds none by that alone.
Whose a process is, `/proc/PID/cgroup` tells: kubelet's names of cgroups, v1 and v2, by the drivers
`cgroupfs` and `systemd`, with the containers of containerd, CRI-O and cri-dockerd. Pure.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from agent.checkpoint import DeviceCheckpoint
from agent.discover.machine import Card, Fault
from agent.witness.said import EXITED, Given, Inside, Listed
from agent.witness.visible import Shown, card_of, shown

RECORDS_DIFFER: Final = "RecordsDiffer"
"""Kubelet's file and kubelet's answer say different things of one container."""
ENVIRONMENT_DIFFERS: Final = "EnvironmentDiffers"
"""A container was made with other cards than kubelet gave it."""
FOREIGN_PROCESS: Final = "ForeignProcess"
"""A process is on a card that nobody gave its container."""
PROCESS_OUTSIDE: Final = "ProcessOutside"
"""A process of no container of a Pod is on a card, or nobody can tell whose it is."""
CARD_UNKNOWN: Final = "CardUnknown"
"""Somebody was given a card that this machine does not have."""
POD_UNKNOWN: Final = "PodUnknown"
"""Kubelet's answer names a Pod, and nothing tells its UID."""
SOURCE_AWAY: Final = "SourceAway"
"""A source, or a part of one, could not be read: what is not seen may be there."""
_UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_CONTAINER: Final = r"(?:(?:cri-containerd|crio|docker)[-:])?([0-9a-f]{64})(?:\.scope)?"
_POD: Final = re.compile(rf"(?:^|[/-])pod({_UID})(?:\.slice)?[/:]{_CONTAINER}(?:/|$)")
"""In a cgroup namespace of our own the path may begin anywhere below kubelet's root."""


class Source(StrEnum):
    """Who says that a container is on a card."""

    CHECKPOINT = "checkpoint"
    POD_RESOURCES = "podresources"
    ENVIRONMENT = "environment"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """A container of a Pod; UID and container are empty where nothing tells them."""

    pod_uid: str
    container: str = ""
    namespace: str = ""
    pod_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCard:
    """Who is on one card: holders with their sources, and processes of no known container."""

    uuid: str
    holders: tuple[tuple[Whose, frozenset[Source]], ...] = ()
    outside: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """
    What was read. None = it could not be, and its silence says nothing.

    Attributes:
        checkpoint: kubelet's file; `given`: kubelet's answer.
        containers: those of Pods that the runtime has, in whatever state.
        inside: container id -> what it was made with, of those that could be asked.
        places: process -> whose it is; missing = could not be read.
        driver: it told all cards; else some of them are those that it told before, without
            processes, and there may be others.
        all_known: it told all cards once, so that there is none that never had a name.
    """

    checkpoint: DeviceCheckpoint | None = None
    given: tuple[Given, ...] | None = None
    containers: tuple[Listed, ...] | None = None
    inside: Mapping[str, Inside] = field(default_factory=dict)
    places: Mapping[int, Place | None] = field(default_factory=dict)
    driver: bool = True
    all_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """
    What is known of the cards.

    Attributes:
        cards: all of the machine's, in their order.
        live: UIDs of the Pods of which a container or a process is there.
        complete: kubelet and the runtime told all of their Pods. One that is not live has nothing
            here then but maybe a process, on a card that hides it.
        unread: cards of which it is not known who is on them.
        every_card: there is no card beside `cards`.
        disagreements: by reason and words, each once.
    """

    cards: tuple[OnCard, ...]
    live: frozenset[str]
    complete: bool
    unread: frozenset[str] = frozenset()
    every_card: bool = True
    disagreements: tuple[Fault, ...] = ()

    @property
    def blind(self) -> bool:
        """Tell whether somebody may be on a card and is not seen."""
        return bool(self.unread) or not self.every_card

    def hides(self, uuid: str) -> bool:
        """Tell whether somebody may be on this card and is not seen."""
        if uuid in self.unread:
            return True
        return not self.every_card and all(card.uuid != uuid for card in self.cards)


def seen(cards: Sequence[Card], read: Read, *, is_card: Callable[[str], bool]) -> Seen:
    """Combine what was read; `is_card` tells whether a resource's ids are those of cards."""
    return _Look(cards, read, is_card).result()


class _Look:
    """One look, while it is put together."""

    def __init__(self, cards: Sequence[Card], read: Read, is_card: Callable[[str], bool]) -> None:
        self._cards = cards
        self._read = read
        self._is_card = is_card
        self._faults: dict[Fault, None] = {}
        self._on: dict[str, dict[tuple[str, str], set[Source]]] = {card.uuid: {} for card in cards}
        self._whose: dict[tuple[str, str], Whose] = {}
        self._unread = {card.uuid for card in cards if card.processes is None}
        self._there = [one for one in read.containers or () if one.state != EXITED]
        for one in read.containers or ():
            whose = Whose(
                pod_uid=one.pod_uid,
                container=one.name,
                namespace=one.namespace,
                pod_name=one.pod_name,
            )
            self._whose[one.pod_uid, one.name] = whose

    def result(self) -> Seen:
        outside: dict[str, list[int]] = defaultdict(list)
        self._sources()
        recorded, answered = self._recorded(), self._answered()
        self._compare(recorded, answered)
        made = dict(self._made())
        given = {**answered, **recorded}
        for source, found in (
            (Source.CHECKPOINT, recorded),
            (Source.POD_RESOURCES, answered),
            (Source.ENVIRONMENT, {key: one.cards for key, one in made.items()}),
        ):
            for key, uuids in found.items():
                for uuid in uuids:
                    self._on[uuid].setdefault(key, set()).add(source)
        self._differing(given, made)
        for card in self._cards:
            for process in card.processes or ():
                self._process(card.uuid, process.pid, outside)
        live = {one.pod_uid for one in self._there}
        live |= {place.pod_uid for place in self._read.places.values() if place is not None}
        live |= {key[0] for holders in self._on.values() for key in holders}
        read = self._read  # what a container was made with says nothing of other Pods
        told = None not in (read.checkpoint, read.given, read.containers)
        return Seen(
            cards=tuple(self._card(card.uuid, outside[card.uuid]) for card in self._cards),
            live=frozenset(live - {""}),
            complete=told and not any(one.reason == POD_UNKNOWN for one in self._faults),
            unread=frozenset(self._unread),
            every_card=self._read.driver,
            disagreements=tuple(sorted(self._faults, key=lambda one: (one.reason, one.message))),
        )

    def _card(self, uuid: str, outside: Iterable[int]) -> OnCard:
        holders = (
            (self._whose.get(key) or Whose(pod_uid=key[0], container=key[1]), frozenset(sources))
            for key, sources in sorted(self._on[uuid].items())
        )
        return OnCard(uuid=uuid, holders=tuple(holders), outside=tuple(outside))

    def _fault(self, reason: str, message: str) -> None:
        self._faults[Fault(reason=reason, message=message)] = None

    def _sources(self) -> None:
        for name, there in (
            ("kubelet's checkpoint", self._read.checkpoint is not None),
            ("kubelet's podresources", self._read.given is not None),
            ("the container runtime", self._read.containers is not None),
            ("the driver", self._read.driver),
        ):
            if not there:
                self._fault(SOURCE_AWAY, name)
        for card in self._cards:
            if card.processes is None:
                self._fault(SOURCE_AWAY, f"the driver's processes of {card.uuid}")
        for one in self._there:
            if one.container_id not in self._read.inside:
                words = f"what a container was made with: {one.namespace}/{one.pod_name}/{one.name}"
                self._fault(SOURCE_AWAY, words)

    # --- kubelet --------------------------------------------------------------------------------

    def _recorded(self) -> dict[tuple[str, str], frozenset[str]]:
        """
        Return the cards of each container by kubelet's file, of Pods that live.

        An entry stays until the next container is admitted, so it alone is no holder; where
        nobody can say who lives, it counts.
        """
        found: dict[tuple[str, str], frozenset[str]] = {}
        if self._read.checkpoint is None:
            return found
        live = self._alive()
        for entry in self._read.checkpoint.entries:
            if not self._is_card(entry.resource):
                continue
            if live is not None and entry.pod_uid not in live:
                continue
            key = (entry.pod_uid, entry.container)
            found[key] = found.get(key, frozenset()) | self._named(key, entry.ids())
        return found

    def _alive(self) -> set[str] | None:
        """Return the UIDs of the Pods that kubelet or the runtime has; None = nobody can say."""
        if self._read.containers is None or self._read.given is None:
            return None
        live = {one.pod_uid for one in self._there}
        for pod in {one.pod for one in self._read.given}:
            uids = self._uids_of(pod)
            if not uids:
                return None  # it is admitted, and has no container yet
            live |= uids
        return live

    def _uids_of(self, pod: tuple[str, str]) -> set[str]:
        """Return the UIDs of the Pods of a name, of those that ended where no other one is."""
        for containers in (self._there, self._read.containers or ()):
            found = {one.pod_uid for one in containers if (one.namespace, one.pod_name) == pod}
            if found:
                return found
        return set()

    def _answered(self) -> dict[tuple[str, str], frozenset[str]]:
        found: dict[tuple[str, str], frozenset[str]] = {}
        for one in self._read.given or ():
            if not self._is_card(one.resource) or not one.ids:
                continue
            uids = self._uids_of(one.pod) or self._by_record(one)
            if len(uids) != 1:
                self._fault(POD_UNKNOWN, f"{one.pod[0]}/{one.pod[1]}/{one.container}")
                continue
            (uid,) = uids
            key = (uid, one.container)
            self._whose.setdefault(
                key,
                Whose(
                    pod_uid=uid,
                    container=one.container,
                    namespace=one.pod[0],
                    pod_name=one.pod[1],
                ),
            )
            found[key] = found.get(key, frozenset()) | self._named(key, one.ids)
        return found

    def _by_record(self, one: Given) -> set[str]:
        """Return whose entries of kubelet's file are exactly what its answer says."""
        entries = () if self._read.checkpoint is None else self._read.checkpoint.entries
        return {
            entry.pod_uid
            for entry in entries
            if (entry.resource, entry.container) == (one.resource, one.container)
            and entry.ids() == one.ids
        }

    def _named(self, key: tuple[str, str], ids: Iterable[str]) -> frozenset[str]:
        found = set()
        for each in sorted(ids):
            uuid = card_of(each, self._cards, all_known=self._read.all_known)
            if uuid is None:
                self._fault(CARD_UNKNOWN, f"{_words(key)}: {each}")
            else:
                found.add(uuid)
        return frozenset(found)

    def _compare(
        self,
        recorded: Mapping[tuple[str, str], frozenset[str]],
        answered: Mapping[tuple[str, str], frozenset[str]],
    ) -> None:
        if self._read.checkpoint is None or self._read.given is None:
            return
        for key in sorted(recorded.keys() & answered.keys()):
            if recorded[key] != answered[key]:
                words = f"file={_cards(recorded[key])}, answer={_cards(answered[key])}"
                self._fault(RECORDS_DIFFER, f"{_words(key)}: {words}")

    # --- containers and processes ---------------------------------------------------------------

    def _made(self) -> Iterator[tuple[tuple[str, str], Shown]]:
        for one in self._there:
            inside = self._read.inside.get(one.container_id)
            if inside is None:
                continue
            found = shown(inside, self._cards, all_known=self._read.all_known)
            for word in found.unknown:
                self._fault(CARD_UNKNOWN, f"{_words((one.pod_uid, one.name))}: {word[:80]}")
            yield (one.pod_uid, one.name), found

    def _differing(
        self,
        given: Mapping[tuple[str, str], frozenset[str]],
        made: Mapping[tuple[str, str], Shown],
    ) -> None:
        for key in sorted(given.keys() & made.keys()):
            one = made[key]
            if one.cards and one.cards != given[key]:
                words = f"given={_cards(given[key])}, made with={_cards(one.cards)}"
                self._fault(ENVIRONMENT_DIFFERS, f"{_words(key)}: {words}")

    def _process(self, uuid: str, pid: int, outside: dict[str, list[int]]) -> None:
        place = self._read.places.get(pid)
        if place is None:
            outside[uuid].append(pid)
            self._fault(PROCESS_OUTSIDE, f"{uuid}: pid={pid}")
            if pid not in self._read.places:
                self._unread.add(uuid)
                self._fault(SOURCE_AWAY, f"whose a process is: pid={pid}")
            return
        names = {
            one.name
            for one in self._read.containers or ()
            if one.container_id == place.container_id and one.pod_uid == place.pod_uid
        }
        key = (place.pod_uid, next(iter(names), ""))
        if key not in self._on[uuid]:
            self._fault(FOREIGN_PROCESS, f"{uuid}: pid={pid}, {_words(key)}")
        self._on[uuid].setdefault(key, set()).add(Source.PROCESS)


def _words(key: tuple[str, str]) -> str:
    return f"pod_uid={key[0]}, container={key[1] or '?'}"


def _cards(uuids: Iterable[str]) -> str:
    return ",".join(sorted(uuids)) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The container that a process runs in."""

    pod_uid: str
    container_id: str


def place_of(text: str) -> Place | None:
    """
    Return the Pod's container of a process; None where it is in none, or its lines disagree.

    What a container makes below its own cgroup counts for nothing: the outermost name does.
    """
    found = {place for line in text.splitlines() if (place := _place(line)) is not None}
    return found.pop() if len(found) == 1 else None


def _place(line: str) -> Place | None:
    _, _, rest = line.partition(":")
    _, colon, path = rest.partition(":")
    match = _POD.search(path) if colon else None
    if match is None:
        return None
    return Place(pod_uid=match[1].replace("_", "-"), container_id=match[2])
