"""
Gangs and groups of random shapes on a real control plane: a script by seed, and what must hold.

A script says what happens when, whatever the cluster answers: its seed repeats it. What is reckoned
here is read off Pods as JSON and off the bodies of events by SQL; no code of the product counts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from sqlalchemy import text

from ledger.store.open import open_ledger
from tests.support.kube.pods import pod

GANG: Final = "gang.scheduling.koordinator.sh"
GROUP: Final = "gputopology.scheduling.koordinator.sh"
SEEN: Final = "topology.scheduling.koordinator.sh/gpu"
VISIBLE: Final = "tenure.sh/visible.0"
ALLOCATED: Final = "tenure.sh/allocated.0"
HOST: Final = "kubernetes.io/hostname"
QUOTA: Final = "example.org/quota"
"""A scheduling gate of somebody else."""
OURS: Final = "tenure.sh/gang"
CARDS_MAX: Final = 8
"""Of a topology group, which is to fit one node."""
CREATE, DELETE, LIFT, END = "create", "delete", "lift", "end"
KILLS: Final = ("kill service", "kill scheduler", "kill both", "kill service at a point")
POINTS: Final = (
    ("before:create pods/binding", 1),
    ("before:create pods/binding", 2),
    ("after:create pods/binding", 2),
    ("before:record pod.reserved", 1),
    ("after:record pod.reserved", 1),
    ("after:record pod.bound", 2),
    ("before:patch pods", 2),
    ("before:answer bind", 1),
    ("after:record pod.released", 1),
    ("after:record group.plan_dropped", 1),
)


def apart(gang: str) -> dict[str, Any]:
    """Return what keeps the workers of a gang on hosts of their own."""
    term = {"labelSelector": {"matchLabels": {"job": gang}}, "topologyKey": HOST}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"affinity": {"podAntiAffinity": required}}


def spread(gang: str) -> dict[str, Any]:
    """Return what spreads the workers of a gang over hosts."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": HOST,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"job": gang}},
    }
    return {"topologySpreadConstraints": [constraint]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """
    Pods that belong together, or one Pod alone.

    Where more may come than start together and kube-scheduler keeps them apart, the deadline is
    short: until then the service reserves for the others too, on nodes that they are kept off.

    Attributes:
        least: so many start together; 0 = it is no gang.
        replica: what its label says of a topology group; 0 = it is none.
        asks: what a member asks for.
        spec: what kube-scheduler's own plugins are told.
        gated: numbers of the members behind somebody else's gate.
        wait_seconds: the gang's deadline.
    """

    name: str
    size: int = 1
    least: int = 0
    replica: int = 0
    asks: Mapping[str, str]
    spec: Mapping[str, Any] = field(default_factory=dict)
    gated: Collection[int] = ()
    wait_seconds: int = 600

    def member(self, number: int) -> dict[str, Any]:
        """Return a member as admission leaves it."""
        labels, annotations = {"job": self.name}, dict[str, str]()
        gates = [OURS] if self.least else []
        if self.least:
            annotations = {
                f"{GANG}/name": self.name,
                f"{GANG}/min-available": str(self.least),
                f"{GANG}/waiting-time": f"{self.wait_seconds}s",
            }
        if self.replica:
            labels |= {f"{GROUP}/name": self.name, f"{GROUP}/replica": str(self.replica)}
        if number in self.gated:
            gates.append(QUOTA)
        spec = dict(self.spec)
        if gates:
            spec["schedulingGates"] = [{"name": gate} for gate in gates]
        return pod(
            f"{self.name}-{number}",
            self.asks,
            labels=labels,
            annotations=annotations,
            schedulerName="tenure",
            **spec,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What happens when, in seconds; `number` is a member's, or that of a point."""

    at: float
    what: str
    party: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What comes, and what happens to it."""

    parties: Mapping[str, Party]
    acts: Sequence[Act]


def script(seed: int, *, parties: int, alone: int, kills: int, seconds: float) -> Script:
    """Draw so many gangs and groups, Pods alone beside them, and kills, within these seconds."""
    rng = Random(seed)
    drawn: dict[str, Party] = {}
    acts: list[Act] = []
    for number in range(parties):
        party = _party(rng, f"p{number}")
        drawn[party.name] = party
        acts += _life(rng, party, rng.uniform(0.0, seconds * 0.8), seconds)
    for number in range(alone):
        party = Party(name=f"alone{number}", asks=_asks(rng, rng.choice((1, 1, 2, 4, 8))))
        drawn[party.name] = party
        at = rng.uniform(0.0, seconds)
        acts.append(Act(at=at, what=CREATE, party=party.name))
        if rng.random() < 0.7:
            acts.append(Act(at=at + rng.uniform(2.0, 12.0), what=END, party=party.name))
    for number, what in enumerate(rng.sample(KILLS, kills)):
        at = seconds * (number + rng.uniform(0.2, 0.8)) / kills
        acts.append(Act(at=at, what=what, number=rng.randrange(len(POINTS))))
    within = (act for act in acts if act.at <= seconds)
    return Script(parties=drawn, acts=sorted(within, key=lambda act: act.at))


def _party(rng: Random, name: str) -> Party:
    is_gang, size = rng.random() < 0.7, rng.randint(2, 6)
    has_labels = not is_gang or rng.random() < 0.3
    cards = rng.choice((1, 1, 1, 2, 2, 3, 4))
    if has_labels:
        cards = min(cards, CARDS_MAX // size)
    is_whole = has_labels or rng.random() < 0.6  # admission refuses other numbers beside labels
    least = (size if is_whole else rng.randint(2, size)) if is_gang else 0
    ways = (None, None, apart, spread) if is_gang else (None, None, None, None, apart, spread)
    way = rng.choice(ways)
    return Party(
        name=name,
        size=size,
        least=least,
        replica=size if has_labels else 0,
        asks=_asks(rng, cards, may_share=not has_labels),
        spec={} if way is None else way(name),
        gated=rng.sample(range(size), rng.choice((1, 1, 2))) if rng.random() < 0.25 else (),
        wait_seconds=rng.choice((5, 20) if way and least < size else (5, 20, 60, 600)),
    )


def _asks(rng: Random, cards: int, *, may_share: bool = True) -> dict[str, str]:
    percent = 50 if may_share and cards == 1 and rng.random() < 0.3 else 100 * cards
    if percent < 100 or rng.random() < 0.4:
        names = ("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio")
        return dict.fromkeys(names, str(percent))
    return {"nvidia.com/gpu": str(cards)}


def _life(rng: Random, party: Party, born: float, seconds: float) -> Iterator[Act]:
    """Yield how a party comes, loses members, is let go, and ends; some end by no act."""
    ends = born + rng.uniform(5.0, 16.0) if rng.random() < 0.5 else seconds + 1.0
    acts = []
    for number in range(party.size):
        late = rng.choice((0.0, 0.0, 0.0, 0.3, 1.0, 4.0))
        acts.append(Act(at=born + late, what=CREATE, party=party.name, number=number))
    for number in party.gated:
        lifted = born + rng.uniform(0.5, 14.0)
        acts.append(Act(at=lifted, what=LIFT, party=party.name, number=number))
    while rng.random() < 0.5:
        number, at = rng.randrange(party.size), born + rng.choice((0.2, 1.0, 3.0, 9.0))
        acts.append(Act(at=at, what=DELETE, party=party.name, number=number))
        if rng.random() < 0.6:
            again = at + rng.choice((0.0, 0.1, 1.0))
            acts.append(Act(at=again, what=CREATE, party=party.name, number=number))
    yield from (act for act in acts if act.at < ends)
    yield Act(at=ends, what=END, party=party.name)


# --- what must hold ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An event as the ledger has it."""

    position: int
    what: str
    body: Mapping[str, Any]

    @property
    def uid(self) -> str:
        """Return the UID of its Pod, empty without one."""
        return str(self.body.get("pod_uid", ""))


def told_by(url: str) -> list[Told]:
    """Return the events of a ledger, read by SQL."""
    query = text("SELECT position, event_type, body FROM audit_events ORDER BY position")
    with open_ledger(url, mode="read") as ledger, ledger.connection.begin():
        rows = list(ledger.connection.execute(query))
    return [
        Told(position=position, what=what.rpartition(".")[0], body=json.loads(body))
        for position, what, body in rows
    ]


def begun_in_part(log: Iterable[Told], party_of: Mapping[str, Party]) -> list[str]:
    """Return the gangs of which somebody was bound before so many of them held their cards."""
    held, begun = defaultdict[str, set[str]](set), set[str]()
    wrong: list[str] = []
    for event in log:
        party = party_of.get(event.uid)
        if party is None or not party.least:
            continue
        if event.what == "pod.reserved":
            held[party.name].add(event.uid)
        elif event.what in {"pod.released", "pod.voided"}:
            held[party.name].discard(event.uid)
        elif event.what == "pod.bound" and party.name not in begun:
            begun.add(party.name)
            if len(held[party.name]) < party.least:
                wrong.append(
                    f"bound at {event.position} while {len(held[party.name])} of {party.least}"
                    f" hold their cards: {party.name}"
                )
    return wrong


def in_part(
    log: Iterable[Told],
    party_of: Mapping[str, Party],
    bound: Collection[str],
    there: Collection[str],
) -> list[str]:
    """
    Return the gangs of which some members have been bound, and fewer than start together.

    Whoever was deleted while its cards were reserved had begun with the others.

    Args:
        bound: UIDs of Pods that were seen with a node.
        there: UIDs of Pods that exist.
    """
    begun = defaultdict[str, set[str]](set)
    reserved = {event.uid for event in log if event.what == "pod.reserved"}
    for uid, party in party_of.items():
        if uid in bound or (uid in reserved and uid not in there):
            begun[party.name].add(uid)
    parties = {party.name: party for party in party_of.values()}
    return [
        name
        for name, uids in begun.items()
        if len(uids) < parties[name].least and not uids.isdisjoint(bound)
    ]


def wrongly_seen(
    log: Sequence[Told], party_of: Mapping[str, Party], cards: Mapping[str, Mapping[int, str]]
) -> list[str]:
    """
    Return the Pods that are told to see other cards than their own and their group's on their node.

    Args:
        cards: node -> minor -> UUID, as its Device lists them.
    """
    wrong = []
    for event in log:
        party = party_of.get(event.uid)
        if event.what != "pod.reserved" or party is None:
            continue
        own = {share["minor"] for share in event.body["shares"]}
        seen = _cards_at(event, log[: event.position - 1], party_of) if party.replica else own
        ids, said = cards[event.body["node_name"]], event.body["annotations"]
        expected = {
            VISIBLE: ",".join(ids[minor] for minor in sorted(seen)),
            ALLOCATED: ",".join(ids[minor] for minor in sorted(own)),
        }
        wrong += [
            f"{event.position} {event.body['pod_name']}: {key}={said.get(key)}, not {value}"
            for key, value in expected.items()
            if said.get(key) != value
        ]
        told = json.loads(said[SEEN])["visibleGPUs"] if SEEN in said or party.replica else None
        if told is not None and set(map(int, told)) != seen:
            wrong.append(f"{event.position} {event.body['pod_name']} sees {told}, not {seen}")
    return wrong


def _cards_at(event: Told, before: Sequence[Told], party_of: Mapping[str, Party]) -> set[int]:
    """Return what a group has on the node of a reservation, by what that was decided on."""
    party, node = party_of[event.uid], event.body["node_uid"]
    decided = event.body.get("decided_on") or event.position - 1
    mine = [each for each in before if each.uid in party_of and party_of[each.uid] is party]
    coming = _coming(event, mine)

    def counts(one: Told) -> bool:
        return one.position <= decided or f"{one.uid}/{one.body.get('attempt')}" in coming

    held: dict[str, Told] = {}
    for each in mine:
        if each.what == "pod.reserved" and counts(each):
            held[each.uid] = each
        elif each.what in {"pod.released", "pod.voided"} and each.position <= decided:
            held.pop(each.uid, None)
    held[event.uid] = event
    minors = {
        share["minor"]
        for one in held.values()
        if one.body["node_uid"] == node
        for share in one.body["shares"]
    }
    group = event.body["group"]
    if group in event.body.get("dropped", ()):
        return minors
    places: list[dict[str, Any]] = []
    for each in before:
        if each.what == "group.planned" and each.body["group"] == group:
            places = each.body["members"]
        elif each.what == "group.plan_dropped" and each.body["group"] == group:
            places = places if each.position > decided else []
        elif each.what == "pod.reserved" and counts(each):
            places = [one for one in places if one["pod_uid"] != each.uid]
    left = [one for one in places if one["pod_uid"] not in held and one["node_uid"] == node]
    return minors | {minor for one in left for minor in one["minors"]}


def _coming(event: Told, before: Iterable[Told]) -> set[str]:
    """Return the reservations that were on their way: each names the one before it."""
    by_key = {
        f"{one.uid}/{one.body['attempt']}": one for one in before if one.what == "pod.reserved"
    }
    found: set[str] = set()
    more = list(event.body.get("beside") or ())
    while more:
        key = more.pop()
        if key not in found and key in by_key:
            found.add(key)
            more += by_key[key].body.get("beside") or ()
    return found
