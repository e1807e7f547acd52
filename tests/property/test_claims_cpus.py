"""CPUs by claims, by the extender and by others: whatever comes and goes, one account for each."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from ledger.domain.cpuset import CpuSet, cpuset_of, union
from ledger.domain.dialects.dra.cpus import cpu_config
from ledger.domain.errors import CapacityError
from ledger.domain.log.events import ClaimBound, ClaimObserved, ClaimReserved, LedgerEvent
from ledger.domain.log.state import NodeState
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from ledger.store.writing.append import Writer
from scheduler.gate.claims import claim_seen
from scheduler.gate.cpus import patch_of
from scheduler.gate.decide import Barred, Standing, Write, decide
from scheduler.gate.follow import follow
from tests.support.examples import examples
from tests.support.gated import (
    CPUS,
    DRIVERS,
    KEPT_BACK,
    NODE,
    FoldedAccounts,
    MachineCpus,
    claim,
    cpus,
    seen,
)
from tests.support.stores import Clock, SqliteStore, node, observed, released, reserved, start

HOLDERS = [f"h{i}" for i in range(6)]
UID = "node-1"
SOME = st.sets(st.integers(0, len(CPUS) - 1), min_size=1, max_size=5).map(cpuset_of)
STEPS = st.one_of(
    st.tuples(st.just("claim"), st.sampled_from(HOLDERS), st.integers(1, 8), st.none() | SOME),
    st.tuples(st.just("claim"), st.sampled_from(HOLDERS), st.integers(1, 8), st.none()),
    st.tuples(st.just("stored"), st.sampled_from(HOLDERS), st.integers(1, 8), st.none() | SOME),
    st.tuples(st.just("pod"), st.sampled_from(HOLDERS), st.just(0), SOME),
    st.tuples(st.just("other"), st.sampled_from(HOLDERS), st.just(0), SOME),
    st.tuples(st.just("end"), st.sampled_from(HOLDERS), st.just(0), st.none()),
)
Step = tuple[str, str, int, CpuSet | None]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A migrated ledger without events."""
    store = SqliteStore(path=tmp_path_factory.mktemp("claims") / "empty.db")
    store.open("create").close()
    return store


@settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, max_size=16), refs=st.integers(1, 2))
@example(steps=[("claim", "h0", 8, None), ("pod", "h1", 0, cpuset_of(range(1, 9)))], refs=2).via(
    "CPUs that Pods may share"
)
@example(steps=[("other", "h0", 0, cpuset_of([9])), ("claim", "h1", 8, None)], refs=2).via(
    "a holder that others brought"
)
def test_no_cpu_of_a_claim_has_another_holder(
    empty: SqliteStore, tmp_path: Path, steps: list[Step], refs: int
) -> None:
    """What the gate lets through the ledger takes, and what is granted is nobody else's."""
    path = tmp_path / "ledger.db"
    for old in tmp_path.iterdir():
        old.unlink()
    shutil.copy(empty.path, path)
    with SqliteStore(path=path).open() as ledger:
        scene = _Scene(start(ledger), refs)
        for step in steps:
            scene.take(*step)
            scene.check()
        assert verify(ledger).findings == ()
        assert rebuild(ledger).equal


class _Scene:
    """A ledger with the machine, what a gate knows of it, and who holds what."""

    def __init__(self, writer: Writer, refs: int) -> None:
        self._writer = writer
        self._clock = Clock()
        self._accounts = FoldedAccounts(devices=())
        self._version = 0
        self._claims: dict[str, Standing] = {}
        self._attempts: Counter[str] = Counter()
        self._pods: set[str] = set()
        self._append(node(NODE, gpus=0, cpus=len(CPUS), refs=refs, node_uid=UID))

    def _append(self, event: LedgerEvent) -> None:
        self._writer.append([self._clock.new(event)])
        self._accounts.events.append(event)

    def _now(self) -> NodeState:
        state = self._accounts.node(NODE)
        assert state is not None
        return state

    def take(self, kind: str, name: str, count: int, written: CpuSet | None) -> None:
        """Do one thing, if who does it is free to."""
        self._version += 1
        if kind == "end":
            self._end(name)
        elif name in self._claims or name in self._pods:
            return
        elif kind in {"claim", "stored"}:
            config = [] if written is None else [cpu_config("g", written)]
            item = claim(name, self._version, cpus(count), config=config)
            (self._ask if kind == "claim" else self._store)(name, item, count)
        else:
            make = reserved if kind == "pod" else observed
            with suppress(CapacityError):
                self._append(make(name, cpus=tuple(written or ()), node_uid=UID))
                self._pods.add(name)

    def _ask(self, name: str, item: dict[str, Any], count: int) -> None:
        """Ask the gate; what it lets through the ledger takes, and the watch shows as recorded."""
        write = Write(old=seen(name, self._version), new=claim_seen(item, DRIVERS))
        assert write.new.allocated is not None
        answer = decide(
            write, self._accounts, None, attempts=self._attempts[name], cpus=MachineCpus()
        )
        if isinstance(answer, Barred):
            there = list(self._now().everyone())
            free = cpuset_of(cpu.id for cpu in CPUS) - KEPT_BACK - union(x.cpuset for x in there)
            is_untold = any(each.unknown_types for each in there)
            assert item["status"]["allocation"]["devices"].get("config") or (
                is_untold or len(free) < count
            )
            return
        [opening] = answer.events
        assert isinstance(opening, ClaimReserved)
        before = union(each.cpuset for each in self._now().everyone())
        assert opening.cpuset.isdisjoint(before | KEPT_BACK)
        assert len(opening.cpuset) == count
        for one in patch_of(
            item, write.new.allocated.results, answer.results or opening.results, DRIVERS
        ):
            devices = item["status"]["allocation"]["devices"]
            if one["path"].endswith("/-"):
                devices["config"].append(one["value"])
            else:
                devices["config"] = one["value"]
        self._append(opening)
        self._attempts[name] += 1
        stored = claim_seen(item, DRIVERS)
        standing = Standing(opening=opening, stored=False)
        [bound] = follow(
            replace(stored, version=self._version + 1),
            standing,
            (),
            self._accounts,
            attempts=self._attempts[name],
        )
        assert isinstance(bound, ClaimBound)
        self._append(bound)
        self._claims[name] = replace(standing, stored=True)

    def _store(self, name: str, item: dict[str, Any], _count: int) -> None:
        """Store an allocation past the gate: it is adopted."""
        [adopted] = follow(
            claim_seen(item, DRIVERS), None, (), self._accounts, attempts=self._attempts[name]
        )
        assert isinstance(adopted, ClaimObserved)
        self._append(adopted)
        self._attempts[name] += 1
        self._claims[name] = Standing(opening=adopted, stored=True)

    def _end(self, name: str) -> None:
        standing = self._claims.pop(name, None)
        if standing is not None:
            gone = seen(name, self._version + 1)
            for event in follow(gone, standing, (), self._accounts, attempts=1):
                self._append(event)
        elif name in self._pods:
            self._pods.remove(name)
            self._append(structs.replace(released(name), node_uid=UID))

    def check(self) -> None:
        """Of what is granted, a claim's CPUs have no second holder."""
        granted = [each for each in self._now().everyone() if each.kind == "granted"]
        times = Counter(cpu for each in granted for cpu in each.cpuset)
        claimed = {cpu for each in granted if each.holder == "claim" for cpu in each.cpuset}
        assert all(times[cpu] == 1 for cpu in claimed)
