"""What the gate stores instead of a written allocation satisfies all that the written one did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Final

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ledger.domain.cpuset import EMPTY
from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.log.events import ClaimResult
from ledger.domain.log.state import GRANTED, OBSERVED, Holding, NodeState
from scheduler.decide.claims import place_claim
from scheduler.decide.settings import SchedulingSettings
from scheduler.gate.claims import claim_seen
from scheduler.gate.decide import DEVICE_TAKEN, Barred, Through, Write, decide
from scheduler.gate.selectors import exchangeable
from scheduler.service.slices import LiveAccounts, SliceBook
from scheduler.service.wakeups import Wakeups
from tests.support.dra import DRIVER, GIB, resource_claim, resource_slice
from tests.support.examples import examples

NODE: Final = "n-1"
Said = Mapping[str, Any]
"""A device as its slice tells of it."""


def _attribute(name: str) -> Callable[[Said], object]:
    return lambda device: device["attributes"].get(name)


_OWN: Final = f'device.attributes["{DRIVER}"]'
_STANDARD: Final = 'device.attributes["resource.kubernetes.io"]'
ROOT: Final = "resource.kubernetes.io/pcieRoot"
Selector = tuple[str, Callable[[Said], bool]]
SELECTORS: Final[tuple[Selector, ...]] = (
    ("true", lambda _: True),
    (f'{_OWN}.productName == "T4"', lambda it: it["attributes"]["productName"]["string"] == "T4"),
    (f'{_STANDARD}.pcieRoot == "p0"', lambda it: it["attributes"][ROOT]["string"] == "p0"),
    (f'{_OWN}.uuid != "GPU-0"', lambda it: it["attributes"]["uuid"]["string"] != "GPU-0"),
    (f"{_OWN}['index'] < 2", lambda it: it["attributes"]["index"]["int"] < 2),
    (
        f'{_OWN}.exists(k, k == "index") && [device].all(d, d.attributes["{DRIVER}"].index > 0)',
        lambda it: it["attributes"]["index"]["int"] > 0,
    ),
    (
        f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("16Gi"))',
        lambda it: it["capacity"]["memory"]["value"] != "16Gi",
    ),
    (f'"odd" in {_OWN}', lambda it: "odd" in it["attributes"]),
)
_SELECTS: Final[st.SearchStrategy[Selector]] = st.sampled_from((*SELECTORS[:1] * 12, *SELECTORS))
CONSTRAINED: Final = {
    f"{DRIVER}/uuid": "uuid",
    f"{DRIVER}/index": "index",
    f"{DRIVER}/productName": "productName",
    ROOT: ROOT,
}


@st.composite
def devices(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return the cards of a pool, many of them like others."""
    found = []
    for number in range(draw(st.integers(2, 6))):
        mostly = st.sampled_from([False] * 8 + [True])
        device: dict[str, Any] = {
            "name": f"gpu-{number}",
            "attributes": {
                "uuid": {"string": f"GPU-{number}"},
                "index": {"int": number},
                "productName": {"string": "H100" if draw(mostly) else "T4"},
                ROOT: {"string": "p1" if draw(mostly) else "p0"},
            },
            "capacity": {"memory": {"value": "24Gi" if draw(mostly) else "16Gi"}},
        }
        if draw(mostly):
            device["attributes"]["odd"] = {"bool": True}
        if draw(mostly):
            device["taints"] = [{"key": "a", "value": "b", "effect": "NoSchedule"}]
        if draw(mostly):
            device["bindingConditions"] = ["ready"]
        if draw(mostly):
            device["somethingNew"] = 1
        if not draw(mostly):
            device["allowMultipleAllocations"] = True
        found.append(device)
    return found


@dataclass(frozen=True, kw_only=True)
class Case:
    """
    A pool, a claim with what was written for it, and who holds what.

    Attributes:
        asks: by request: its own selectors' and its class's predicates.
        constraints: (`matchAttribute` or `distinctAttribute`, attribute, requests).
    """

    pool: list[dict[str, Any]]
    spec: dict[str, Any]
    classes: dict[str, tuple[str, ...]]
    asks: dict[str, list[Callable[[Said], bool]]]
    constraints: list[tuple[str, str, list[str]]]
    results: list[dict[str, Any]]
    held: list[Holding]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return an allocation that satisfies its claim, on cards that others hold something of."""
    pool = draw(devices())
    chosen = draw(_SELECTS)
    classes: dict[str, tuple[str, ...]] = {"c": (chosen[0],)}
    requests, results, asks = [], [], {}
    taken: dict[str, int] = {}
    for number in range(draw(st.integers(1, 3))):
        name = f"r{number}"
        own = draw(st.lists(_SELECTS, max_size=1))
        predicates = [chosen[1], *(each[1] for each in own)]
        fitting = [one for one in pool if all(test(one) for test in predicates)]
        if not fitting:
            continue
        device = draw(st.sampled_from(fitting))
        is_shared = bool(device.get("allowMultipleAllocations"))
        if device["name"] in taken and not (is_shared and taken[device["name"]] < 2):
            continue
        taken[device["name"]] = taken.get(device["name"], 0) + (1 if is_shared else 9)
        result = {"request": name, "driver": DRIVER, "pool": NODE, "device": device["name"]}
        if is_shared:
            gib = draw(st.sampled_from([1, 4, 8]))
            result |= {"shareID": f"s{number}", "consumedCapacity": {"memory": f"{gib}Gi"}}
        selectors = [{"cel": {"expression": each[0]}} for each in own]
        exactly = {"deviceClassName": "c", "selectors": selectors}
        requests.append({"name": name, "exactly": exactly})
        results.append(result)
        asks[name] = predicates
    constraints = [
        one
        for one in draw(
            st.lists(
                st.tuples(
                    st.sampled_from(["matchAttribute", "distinctAttribute"]),
                    st.sampled_from(sorted(CONSTRAINED)),
                    st.lists(st.sampled_from(["r0", "r1", "r2"]), max_size=2, unique=True),
                ),
                max_size=1,
            )
        )
        if satisfies(one, {each["request"]: at(pool, each["device"]) for each in results})
    ]
    spec = {
        "devices": {
            "requests": requests,
            "constraints": [{how: what, "requests": who} for how, what, who in constraints],
        }
    }
    held = [
        holding(number, draw(st.sampled_from(pool)), *draw(st.sampled_from(_HELD)))
        for number in range(draw(st.integers(0, 4)))
    ]
    return Case(
        pool=pool,
        spec=spec,
        classes=classes,
        asks=asks,
        constraints=constraints,
        results=results,
        held=held,
    )


_HELD: Final = (
    (GRANTED, 16, True),
    (GRANTED, 6, False),
    (OBSERVED, 16, True),
    (OBSERVED, 2, False),
)


def holding(number: int, device: Said, kind: str, gib: int, exclusive: bool) -> Holding:  # noqa: FBT001 - drawn with the rest
    """Return that a Pod holds so much of a card."""
    minor = int(device["name"].rpartition("-")[2])
    share = DeviceShare(
        device_type=GPU,
        minor=minor,
        device_id=f"GPU-{minor}",
        core_percent=100 if exclusive else 0,
        memory_bytes=gib * GIB,
        exclusive=exclusive,
    )
    return Holding(
        pod_uid=f"p{number}",
        attempt=1,
        namespace="ml",
        pod_name=f"p{number}",
        kind=kind,
        phase="bound",
        opened_position=number + 1,
        shares=(share,),
        cpuset=EMPTY,
    )


def at(pool: Sequence[Said], name: str) -> Said:
    """Return a device by its name."""
    return next(one for one in pool if one["name"] == name)


def satisfies(constraint: tuple[str, str, list[str]], given_to: Mapping[str, Said]) -> bool:
    """Tell whether the devices of a claim's requests keep a constraint."""
    how, attribute, requests = constraint
    values = [
        str(_attribute(CONSTRAINED[attribute])(device))
        for name, device in given_to.items()
        if not requests or name in requests
    ]
    return len(set(values)) == (min(1, len(values)) if how == "matchAttribute" else len(values))


def kind_of(device: Said) -> object:
    """Return what a scheduler looks at besides attributes."""
    return [device.get(key) for key in ("capacity", "taints", "bindingConditions")]


@settings(max_examples=examples(600), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_what_is_stored_satisfies_all_that_was_written(case: Case) -> None:
    """Selectors, classes, constraints, capacity, taints, conditions, sameness; nobody is over."""
    if not case.results:
        return
    book = SliceBook([DRIVER], Wakeups())
    book.put("s", resource_slice(case.pool, node=NODE))
    records = book.records(NODE, (), ())
    node = NodeState(
        uid="u-1",
        name=NODE,
        devices=records,
        holdings={each.key: each for each in case.held},
    )
    accounts = LiveAccounts(book, lambda name: node if name == NODE else None)
    item = {**resource_claim("a", *case.results), "spec": case.spec}
    new = claim_seen(item, {DRIVER})
    old = replace(new, allocated=None, is_allocated=False)
    free = exchangeable(case.spec, case.classes)
    place = partial(place_claim, facts=None, settings=SchedulingSettings())
    write = Write(old=old, new=new, free=free)

    answer = decide(write, accounts, None, place=place)

    assert new.allocated is not None
    written = new.allocated.results
    if isinstance(answer, Barred):
        assert answer.reason == DEVICE_TAKEN
        event("refused")
        if len(written) == 1 and written[0].request in free:
            assert not any(
                isinstance(decide(_on(write, one), accounts, None), Through)
                for one in case.pool
                if _is_like(one, at(case.pool, written[0].device))
            ), "another one like it was free"
        return
    stored = written if answer.results is None else answer.results
    event("exchanged" if answer.results else "as written")
    _check(case, written, stored)
    again = decide(
        replace(write, new=replace(new, allocated=replace(new.allocated, results=stored))),
        accounts,
        None,
    )
    assert isinstance(again, Through), "what is stored is not over"


def _is_like(one: Said, other: Said) -> bool:
    """Tell by the objects themselves that two devices differ in uuid and index alone."""

    def rest(device: Said) -> object:
        attributes = {k: v for k, v in device["attributes"].items() if k not in {"uuid", "index"}}
        return {**device, "name": "", "attributes": attributes}

    return rest(one) == rest(other) and "somethingNew" not in one


def _on(write: Write, device: Said) -> Write:
    assert write.new.allocated is not None
    (one,) = write.new.allocated.results
    results = (ClaimResult(**{**_fields(one), "device": device["name"]}),)
    allocated = replace(write.new.allocated, results=results)
    return replace(write, new=replace(write.new, allocated=allocated))


def _fields(one: ClaimResult) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ClaimResult.__struct_fields__}


def _check(case: Case, written: Sequence[ClaimResult], stored: Sequence[ClaimResult]) -> None:
    pairs = list(zip(written, stored, strict=True))
    for before, now in pairs:
        assert {**_fields(now), "device": before.device} == _fields(before)
        device, was = at(case.pool, now.device), at(case.pool, before.device)
        assert all(test(device) for test in case.asks[now.request])
        assert kind_of(device) == kind_of(was)
    given_to = {now.request: at(case.pool, now.device) for now in stored}
    assert all(satisfies(one, given_to) for one in case.constraints)
    for (before, now), (other, other_now) in combinations(pairs, 2):
        assert (before.device == other.device) == (now.device == other_now.device)
