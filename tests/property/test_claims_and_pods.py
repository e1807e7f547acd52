"""Claims and Pods on cards with partitions: never over capacity, and everybody says the same."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.domain.devices import DeviceShare
from ledger.domain.dialects.dra.accounts import accounts_of
from ledger.domain.dialects.dra.objects import read_claim
from ledger.domain.dialects.dra.shares import Shares, first_taken, shares_of
from ledger.domain.errors import CapacityError
from ledger.domain.log.events import LedgerEvent
from ledger.domain.log.state import Folding
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from ledger.store.writing.append import Writer
from tests.support.dra import (
    card,
    consumes,
    counters,
    part,
    pools,
    resource_claim,
    resource_slice,
    result,
)
from tests.support.examples import examples
from tests.support.stores import (
    GIB,
    Clock,
    SqliteStore,
    claim,
    claim_ended,
    node,
    observed,
    released,
    reserved,
    seen_claim,
    start,
)

SLICES = 4
"""Two cards of four memory slices each; a partition is one slice or two of them."""
OTHERS = "shares.example"


def _cut(minor: int) -> list[dict[str, Any]]:
    every = {f"slice_{i}": 1 for i in range(SLICES)}
    cut = [
        card(
            f"gpu-{minor}",
            f"GPU-{minor}",
            **consumes(f"set-{minor}", memory="80Gi", multiprocessors=100, **every),
        )
    ]
    for first in range(SLICES):
        for long in (1, 2):
            if first % long == 0:
                of = {f"slice_{i}": 1 for i in range(first, first + long)}
                amounts: dict[str, str | int] = {"memory": f"{20 * long}Gi", **of}
                amounts["multiprocessors"] = 25 * long
                name = f"gpu-{minor}-{first}-{long}"
                cut.append(
                    part(name, f"GPU-{minor}", gib=20 * long, **consumes(f"set-{minor}", **amounts))
                )
    return cut


def _shared(minor: int) -> dict[str, Any]:
    shared = card(f"s-{minor}", f"GPU-{minor}", allowMultipleAllocations=True)
    shared["capacity"]["cores"] = {"value": "100"}
    return shared


SETS = {
    f"set-{minor}": counters(
        memory="80Gi", multiprocessors=100, **{f"slice_{i}": 1 for i in range(SLICES)}
    )
    for minor in range(2)
}
POOLS = pools(
    resource_slice([each for minor in range(2) for each in _cut(minor)], sets=SETS),
    resource_slice([_shared(0), _shared(1)], driver=OTHERS),
)
ACCOUNTS = accounts_of("n-1", POOLS)
NAMES = [device.name for pool in POOLS for device in pool.devices if pool.driver != OTHERS]
HOLDERS = [f"h{i}" for i in range(6)]

whole_or_part = st.sampled_from(NAMES).map(result)
fractions = st.builds(
    lambda minor, gib, cores: result(
        f"s-{minor}",
        driver=OTHERS,
        shareID="s",
        consumedCapacity={"memory": f"{gib}Gi", "cores": str(cores)},
    ),
    st.integers(0, 1),
    st.sampled_from([1, 20, 40, 80]),
    st.sampled_from([1, 25, 60, 100]),
)


def _claimed(results: list[dict[str, Any]]) -> tuple[DeviceShare, ...]:
    found = shares_of(read_claim(resource_claim("c", *results)).results, ACCOUNTS)
    assert isinstance(found, Shares)
    return found.shares


allocations = st.lists(whole_or_part | fractions, min_size=1, max_size=2).map(_claimed)
pod_shares = st.builds(
    lambda minor, core, gib, exclusive: (
        DeviceShare(
            device_type="gpu",
            minor=minor,
            device_id=f"GPU-{minor}",
            core_percent=core,
            memory_bytes=gib * GIB,
            exclusive=exclusive,
        ),
    ),
    st.integers(0, 1),
    st.sampled_from([0, 25, 50, 100]),
    st.sampled_from([0, 20, 80]),
    st.booleans(),
)
STEPS = st.one_of(
    st.tuples(st.just("claim"), st.sampled_from(HOLDERS), allocations),
    st.tuples(st.just("claim"), st.sampled_from(HOLDERS), allocations),
    st.tuples(st.just("seen"), st.sampled_from(HOLDERS), allocations),
    st.tuples(st.just("pod"), st.sampled_from(HOLDERS), pod_shares),
    st.tuples(st.just("other"), st.sampled_from(HOLDERS), pod_shares),
    st.tuples(st.just("end"), st.sampled_from(HOLDERS), st.just(())),
)


MAKERS: dict[str, Callable[..., LedgerEvent]] = {
    "claim": claim,
    "seen": seen_claim,
    "pod": reserved,
    "other": observed,
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A migrated ledger without events."""
    store = SqliteStore(path=tmp_path_factory.mktemp("claims") / "empty.db")
    store.open("create").close()
    return store


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, max_size=25))
def test_what_fits_is_one_answer_and_never_over_capacity(
    empty: SqliteStore, tmp_path: Path, steps: list[tuple[str, str, tuple[DeviceShare, ...]]]
) -> None:
    """`first_taken` foretells the constraint; tables, fold and a recount are the same."""
    path = tmp_path / "ledger.db"
    for old in tmp_path.iterdir():
        old.unlink()
    shutil.copy(empty.path, path)
    with SqliteStore(path=path).open() as ledger:
        scene = _Scene(start(ledger))
        for step in steps:
            scene.take(*step)
        rows = ledger.connection.exec_driver_sql(
            "SELECT device_type, device_id, core_used, memory_used FROM ledger_devices"
            " WHERE tenants > 0 ORDER BY device_type, device_id"
        ).all()
        ledger.connection.rollback()
        assert verify(ledger).findings == ()
        assert rebuild(ledger).equal

    counted = scene.recount()
    assert counted == [tuple(row) for row in rows]
    for device_type, device_id, core, memory in counted:
        assert core <= 100
        assert "slice-" not in device_id or memory <= 1
        assert device_type != "gpu" or memory <= 80 * GIB


class _Scene:
    """A ledger with the cards, its fold, and what was granted, each by its own way."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._clock = Clock()
        self._fold = Folding()
        self._held: dict[str, str] = {}  # who holds something -> as what
        self._granted: dict[str, tuple[DeviceShare, ...]] = {}
        self._append(node(devices=ACCOUNTS.records))

    def _append(self, event: LedgerEvent) -> None:
        self._fold.add(self._writer.append([self._clock.new(event)]), event)

    def take(self, kind: str, name: str, shares: tuple[DeviceShare, ...]) -> None:
        """Do one thing; what `first_taken` foretells is what the ledger does."""
        if kind == "end" and name in self._held:
            is_claim = self._held.pop(name) in {"claim", "seen"}
            self._append(claim_ended(name) if is_claim else released(name))
            self._granted.pop(name, None)
        if kind == "end" or name in self._held:
            return
        event = MAKERS[kind](name, *shares)
        state = self._fold.node("uid-n-1")
        assert state is not None
        if kind in {"claim", "pod"}:
            if first_taken(state, shares) is not None:
                with pytest.raises(CapacityError):
                    self._append(event)
                return
            self._granted[name] = shares
        self._append(event)
        self._held[name] = kind

    def recount(self) -> list[tuple[str, str, int, int]]:
        """Add up what was granted, by account."""
        core: Counter[tuple[str, str]] = Counter()
        memory: Counter[tuple[str, str]] = Counter()
        for shares in self._granted.values():
            for share in shares:
                core[share.device_type, share.device_id] += share.core_percent
                memory[share.device_type, share.device_id] += share.memory_bytes
        return sorted((*each, core[each], memory[each]) for each in memory)


def test_the_scene_has_cards_partitions_and_fractions_on_the_same_accounts() -> None:
    """Else the property would say little."""
    cards = [each for each in ACCOUNTS.records if each.device_type == "gpu"]
    assert [each.device_id for each in cards] == ["GPU-0", "GPU-1"]
    [alone] = [each for each in _claimed([result("gpu-0")]) if each.exclusive]
    cut = _claimed([result("gpu-0-2-2")])
    [fraction] = _claimed(
        [
            result(
                "s-0", driver=OTHERS, shareID="s", consumedCapacity={"memory": "1Gi", "cores": "1"}
            )
        ]
    )
    assert alone.device_id == fraction.device_id == cut[-1].device_id
    assert (cut[-1].core_percent, cut[-1].memory_bytes) == (50, 40 * GIB)
