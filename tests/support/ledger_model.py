"""
What the ledger must say, in dictionaries: a second opinion that shares no code with the first.

It reads events and nothing else of the ledger, and is slow and plain on purpose.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from ledger.domain.devices import DeviceShare
from ledger.domain.log.events import (
    ClaimBound,
    ClaimObserved,
    ClaimReleased,
    ClaimReserved,
    ClaimVoided,
    DeviceHealthChanged,
    GroupPlanned,
    LedgerEvent,
    NodeCleared,
    NodeInventoried,
    NodeLost,
    Opening,
    PlanDropped,
    PodAssigned,
    PodBound,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
)

Grant = PodReserved | ClaimReserved
"""What takes of a device, inside the constraints."""


class RefusedError(Exception):
    """The ledger must refuse this command."""


class Model:
    """
    Machines with cards by id and CPUs; Nodes by UID with what is held; and what waits for groups.

    Knows cards by their ids alone: every card of these tests has one. A Node stays on its machine.
    """

    def __init__(self) -> None:
        self.machines: dict[str, dict[str, Any]] = {}
        self.nodes: dict[str, dict[str, Any]] = {}
        self.places: dict[tuple[str, str], tuple[str, str, str]] = {}  # card -> group, Pod, Node
        self.events = 0

    def append(self, events: list[LedgerEvent]) -> bool:
        """Take the events, all or none; return whether they were taken."""
        before = deepcopy((self.machines, self.nodes, self.places))
        try:
            for event in events:
                self._take(event)
        except RefusedError:
            self.machines, self.nodes, self.places = before
            return False
        return True

    def _take(self, event: LedgerEvent) -> None:
        self.events += 1
        match event:
            case NodeInventoried():
                self._inventory(event)
            case DeviceHealthChanged():
                card = self.machine(event.node_uid)["cards"].get(event.device_id)
                if card:
                    card["healthy"] = event.healthy
            case PodReserved() | ClaimReserved():
                self._reserve(event)
            case PodObserved() | ClaimObserved():
                self._observe(event)
            case PodBound() | ClaimBound():
                self._phase(event, "bound")
            case PodAssigned():
                self._phase(event, "assigned")
            case PodReleased() | PodVoided() | ClaimReleased() | ClaimVoided():
                held = self.nodes[event.node_uid]["held"]
                key = (event.pod_uid, event.attempt)
                if held.get(key, {}).get("phase") == "lost":
                    raise RefusedError
                held.pop(key, None)
            case NodeLost():
                self._lose(event)
            case NodeCleared():
                self._clear(event)
            case GroupPlanned():
                self._drop(event.group)
                for member in event.members:
                    for minor in member.whole:
                        self._wait(event.group, member.pod_uid, member.node_uid, minor)
            case PlanDropped():
                self._drop(event.group)
            case _:
                pass

    def _inventory(self, event: NodeInventoried) -> None:
        if len({cpu.id for cpu in event.cpus}) < len(event.cpus):
            raise RefusedError
        fresh: dict[str, Any] = {"name": event.node_name, "held": {}, "agent": False}
        node = self.nodes.setdefault(event.node_uid, fresh)
        node["machine"], node["boot"] = f"{event.system_uuid}/{event.machine_id}", event.boot_id
        node["lost"], node["agent"] = False, node["agent"] or event.by_agent
        node["told"] = self.events
        machine = self.machines.setdefault(node["machine"], {"cards": {}, "cpus": {}})
        machine["boot"] = event.boot_id
        self._withdraw(event.node_uid)
        for record in event.devices:
            machine["cards"][record.device_id] = {
                "by": event.node_uid,
                "unique": record.unique_id,
                "minor": record.minor,
                "present": True,
                "healthy": record.healthy,
                "core": record.core_percent,
                "memory": record.memory_bytes,
            }
        for cpu, (by, _) in machine["cpus"].items():
            if by == event.node_uid:
                machine["cpus"][cpu] = (by, 0)
        told = (event.node_uid, event.cpu_ref_count_max)
        machine["cpus"].update({cpu.id: told for cpu in event.cpus})

    def _withdraw(self, node_uid: str) -> None:
        """Take the cards that a Node named last from the offer."""
        for card in self.machine(node_uid)["cards"].values():
            if card["by"] == node_uid:
                card.update(present=False, core=0, memory=0)

    def _lose(self, event: NodeLost) -> None:
        node = self.nodes[event.node_uid]
        node["lost"] = True
        for held in node["held"].values():
            if held["phase"] != "lost":
                boot = self.machine(event.node_uid)["boot"]
                held.update(phase="lost", lost_at=self.events, lost_boot=boot)
        self._withdraw(event.node_uid)

    def _clear(self, event: NodeCleared) -> None:
        node = self.nodes[event.node_uid]
        gone = {key: held for key, held in node["held"].items() if held["phase"] == "lost"}
        if not all(self._shows(node, held, event) for held in gone.values()):
            raise RefusedError
        for key in gone:
            del node["held"][key]

    def _shows(self, node: dict[str, Any], held: dict[str, Any], event: NodeCleared) -> bool:
        """Tell whether the evidence of a clearing is true of what was held."""
        witness = self.nodes.get(event.witness_uid)
        if event.evidence == "act" or witness is None:
            return event.evidence == "act"
        if witness["lost"] or witness["machine"] != node["machine"]:
            return False
        if witness["told"] < held["lost_at"]:
            return False
        if event.evidence == "agent":
            return bool(witness["agent"])
        reported = any(each["agent"] for each in self.neighbours(node))
        return (
            not reported
            and "" not in {witness["boot"], held["lost_boot"]}
            and bool(witness["boot"] != held["lost_boot"])
        )

    def machine(self, node_uid: str) -> dict[str, Any]:
        """Return the machine of a Node."""
        return self.machines[self.nodes[node_uid]["machine"]]

    def neighbours(self, node: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the Nodes of a Node's machine."""
        return [each for each in self.nodes.values() if each["machine"] == node["machine"]]

    def _reserve(self, event: Grant) -> None:
        node = self.nodes[event.node_uid]
        if (
            node["lost"]
            or (event.pod_uid, event.attempt) in node["held"]
            or any(
                pod == event.pod_uid and held["kind"] == "granted"
                for other in self.nodes.values()
                for (pod, _), held in other["held"].items()
            )
        ):
            raise RefusedError
        for share in event.shares:
            self._grant(event, node, share)
        for cpu in event.cpuset:
            _, most = self.machine(event.node_uid)["cpus"].get(cpu, ("", 0))
            if self.cpu_holders(node, cpu) >= most:
                raise RefusedError
        self._hold(event, "granted", "reserved")
        for key, (_, *whose) in [] if event.holder == "claim" else list(self.places.items()):
            if whose == [event.pod_uid, event.node_uid]:
                del self.places[key]

    def _grant(self, event: Grant, node: dict[str, Any], share: DeviceShare) -> None:
        card = self.machine(event.node_uid)["cards"].get(share.device_id)
        if card is None or not card["present"] or not card["healthy"] or self.unnamed(node):
            raise RefusedError
        if card["minor"] != share.minor or (card["unique"] and self.elsewhere(node, share)):
            raise RefusedError
        nobody = ("", event.pod_uid, "")
        _, waits, _ = self.places.get((node["machine"], share.device_id), nobody)
        ours, others = self.holders(node, share.device_id)
        core = card["core"] - sum(each.core_percent for each in ours + others)
        memory = card["memory"] - sum(each.memory_bytes for each in ours + others)
        nothing = not share.core_percent and not share.memory_bytes
        by_others = bool(others) and (
            sum(each.core_percent for each in others) >= card["core"]
            or 0 < card["memory"] <= sum(each.memory_bytes for each in others)
        )
        if (
            waits != event.pod_uid
            or share.core_percent > core
            or share.memory_bytes > memory
            or any(each.exclusive for each in ours)
            or (share.exclusive and (ours or others))
            or by_others
            or (nothing and (core <= 0 or (card["memory"] and memory <= 0)))
        ):
            raise RefusedError

    def _observe(self, event: PodObserved | ClaimObserved) -> None:
        node = self.nodes[event.node_uid]
        ids = [share.device_id for share in event.shares]
        if (event.pod_uid, event.attempt) in node["held"] or len(set(ids)) < len(ids):
            raise RefusedError
        for share in event.shares:
            unseen: dict[str, Any] = {
                "minor": share.minor,
                "present": False,
                "healthy": True,
                "unique": False,
            }
            unseen |= {"by": event.node_uid, "core": 0, "memory": 0}
            self.machine(event.node_uid)["cards"].setdefault(share.device_id, unseen)
        for cpu in event.cpuset:
            self.machine(event.node_uid)["cpus"].setdefault(cpu, (event.node_uid, 0))
        self._hold(event, "observed", "observed")

    def _hold(self, event: Opening, kind: str, phase: str) -> None:
        self.nodes[event.node_uid]["held"][event.pod_uid, event.attempt] = {
            "kind": kind,
            "phase": phase,
            "shares": event.shares,
            "cpus": set(event.cpuset),
            "unknown": () if isinstance(event, Grant) else event.unknown_types,
        }

    def _phase(self, event: PodBound | PodAssigned | ClaimBound, phase: str) -> None:
        held = self.nodes[event.node_uid]["held"].get((event.pod_uid, event.attempt))
        if held and held["phase"] != "lost":
            held["phase"] = phase

    def _wait(self, group: str, pod: str, node_uid: str, minor: int) -> None:
        node = self.nodes[node_uid]
        here = [
            name
            for name, card in self.machine(node_uid)["cards"].items()
            if card["by"] == node_uid and card["minor"] == minor
            if card["present"] and card["healthy"]
        ]
        if not here or self.unnamed(node) or (node["machine"], here[0]) in self.places:
            raise RefusedError
        if any(self.holders(node, here[0])):
            raise RefusedError
        self.places[node["machine"], here[0]] = (group, pod, node_uid)

    def _drop(self, group: str) -> None:
        self.places = {key: place for key, place in self.places.items() if place[0] != group}

    def holders(
        self, node: dict[str, Any], device_id: str
    ) -> tuple[list[DeviceShare], list[DeviceShare]]:
        """Return the shares of a card that were granted, and those that others hold."""
        found: dict[str, list[DeviceShare]] = {"granted": [], "observed": []}
        for held in self.held(node):
            found[held["kind"]] += [s for s in held["shares"] if s.device_id == device_id]
        return found["granted"], found["observed"]

    def held(self, node: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what is held of a Node's machine, through whichever of its Nodes."""
        return [held for each in self.neighbours(node) for held in each["held"].values()]

    def elsewhere(self, node: dict[str, Any], share: DeviceShare) -> bool:
        """Tell whether a card with this id is present or held on another machine."""
        return any(
            other["machine"] != node["machine"]
            and (
                self.machine(uid)["cards"].get(share.device_id, {}).get("present")
                or any(self.holders(other, share.device_id))
            )
            for uid, other in self.nodes.items()
        )

    def cpu_holders(self, node: dict[str, Any], cpu: int, kind: str = "") -> int:
        """Return how many holders a CPU has."""
        return sum(cpu in held["cpus"] for held in self.held(node) if kind in {"", held["kind"]})

    def unnamed(self, node: dict[str, Any]) -> bool:
        """Tell whether someone holds a GPU of the machine that nobody can name."""
        return any("gpu" in held["unknown"] for held in self.held(node))

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the rows that the tables must have, as `QUERIES` asks for them."""
        found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in QUERIES}
        for uid, node in self.nodes.items():
            for name, card in self.machine(uid)["cards"].items():
                if card["by"] == uid:
                    found["cards"].append((node["name"], name, *self._card_row(node, name, card)))
            for cpu, (by, most) in self.machine(uid)["cpus"].items():
                if by != uid:
                    continue
                ours = self.cpu_holders(node, cpu, "granted")
                others = self.cpu_holders(node, cpu, "observed")
                found["cpus"].append((node["name"], cpu, most, max(most, ours), ours, others))
            for (pod, attempt), held in node["held"].items():
                found["held"].append((node["name"], pod, attempt, held["kind"], held["phase"]))
            for (_, name), (group, pod, where) in self.places.items():
                if where == uid:
                    found["places"].append((node["name"], name, group, pod))
        return {name: sorted(rows) for name, rows in found.items()}

    def _card_row(self, node: dict[str, Any], name: str, card: dict[str, Any]) -> tuple[int, ...]:
        ours, others = self.holders(node, name)
        core, memory = sum(s.core_percent for s in ours), sum(s.memory_bytes for s in ours)
        return (
            card["minor"],
            int(card["present"]),
            int(card["healthy"]),
            card["core"],
            card["memory"],
            max(card["core"], core),
            max(card["memory"], memory),
            core,
            memory,
            len(ours),
            sum(s.exclusive for s in ours),
            sum(s.core_percent for s in others),
            sum(s.memory_bytes for s in others),
            len(others),
        )


QUERIES = {
    "cards": (
        "SELECT n.node_name, d.device_id, d.minor, d.present, d.healthy, d.core_reported,"
        " d.memory_reported, d.core_cap, d.memory_cap, d.core_used, d.memory_used, d.tenants,"
        " d.exclusive_holders, d.core_observed, d.memory_observed, d.observed_holders"
        " FROM ledger_devices AS d JOIN ledger_nodes AS n ON n.node_no = d.node_no"
    ),
    "cpus": (
        "SELECT n.node_name, c.cpu, c.ref_reported, c.ref_max, c.ref_used, c.ref_observed"
        " FROM ledger_cpus AS c JOIN ledger_nodes AS n ON n.node_no = c.node_no"
    ),
    "held": (
        "SELECT n.node_name, r.pod_uid, r.attempt, r.kind, r.phase FROM ledger_reservations AS r"
        " JOIN ledger_nodes AS n ON n.node_no = r.node_no WHERE r.closed_position IS NULL"
    ),
    "places": (
        "SELECT n.node_name, d.device_id, p.group_name, p.pod_uid FROM ledger_planned_cards AS p"
        " JOIN ledger_devices AS d ON d.device_no = p.device_no"
        " JOIN ledger_nodes AS n ON n.node_no = p.node_no WHERE p.closed_position IS NULL"
    ),
}
