"""One number for one thing: GPU-hours and what became of cards, in every view and command."""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from ledger.domain.devices import DeviceShare
from ledger.domain.errors import CapacityError
from ledger.domain.log.events import (
    LedgerEvent,
    LedgerRecovered,
    NodeInventoried,
    NodeLost,
    PodObserved,
    TimeCorrected,
)
from ledger.domain.log.recorded_node import recorded_node
from ledger.domain.request.card_names import stands_for_cards
from ledger.domain.request.requests import PodSnapshot
from ledger.store.ddl.audit_views import is_card_name
from ledger.store.ddl.words import Database
from ledger.store.mending.correcting import correct
from ledger.store.open import Ledger
from ledger.store.reading import report_queries as queries
from ledger.store.reading.gpu_hours import GpuGroup, capacity_changes
from ledger.store.reading.query import run_sql
from scheduler.cluster.mending import cluster_as_far_as_read
from scheduler.cluster.model import Cluster
from scheduler.decide.settings import SchedulingSettings
from scheduler.record import events
from scheduler.usage.capacity import capacity_at, capacity_between
from scheduler.usage.picture import (
    Many,
    Picture,
    Units,
    counted_percent,
    exactly,
    shared_out,
    sums_of,
)
from tenure.asking import EVERYBODY
from tenure.manifests import read_manifests
from tenure.output import OutputFormat
from tenure.picture import picture_of_ledger
from tenure.query.top import TopGroup, TopQuestion, answer_top
from tenure.query.usage import UsageQuestion, answer_usage
from tenure.report.build import read_report
from tests.support.archives import move
from tests.support.cards_of_others import a_cluster, claim, running, sliced
from tests.support.examples import examples, seeds
from tests.support.objects import Object
from tests.support.objects import node as object_node
from tests.support.stores import (
    HOUR_US,
    MONDAY_US,
    Clock,
    Store,
    gpu,
    health,
    node,
    observed,
    refused,
    released,
    reserved,
    share,
    start,
)

DAY_US = 24 * HOUR_US
PARTS = ("used", "idle", "stranded", "closed", "unknown")
GROUPS: tuple[GpuGroup, ...] = ("namespace", "owner", "labels", "model")


def memory(minor: int, percent: int, on: str = "n-1") -> DeviceShare:
    """A share by memory alone."""
    return share(minor, 0, node=on, gib=80 * percent // 100, memory_ratio_percent=percent)


def unnamed(pod: str, cards: int, on: str = "n-1") -> LedgerEvent:
    """A Pod on so many cards that nobody can name."""
    return observed(pod, node=on, unknown_types=("gpu",), counted={"gpu": cards})


def hours_of(store: Store, *told: tuple[float, LedgerEvent]) -> None:
    """Record events, each at an hour of Monday."""
    clock = Clock()
    with store.open() as ledger:
        start(ledger).append([clock.new(e, at_us=MONDAY_US + int(h * HOUR_US)) for h, e in told])


END: tuple[float, LedgerEvent] = (24, node("n-9", gpus=0))


def asked(store: Store, sql: str) -> list[tuple[Any, ...]]:
    """What a query answers."""
    with store.open("read") as ledger:
        return run_sql(ledger, sql)[1]


def by_namespace(store: Store) -> dict[str, float]:
    """GPU-hours by namespace, which `usage` and both views say alike."""
    with store.open("read") as ledger, ledger.connection.begin():
        span = queries.span(ledger.connection)
        window = span.first_at_us, span.last_at_us
        said = {
            by: sum(row.gpu_hours for row in queries.usage(ledger.connection, by, *window))
            for by in GROUPS
        }
        rows = queries.usage(ledger.connection, "namespace", *window)
        found = {row.group: row.gpu_hours for row in rows if row.gpu_hours}
    assert all(hours == pytest.approx(said["namespace"], abs=1e-7) for hours in said.values())
    sql = "SELECT namespace, sum(gpu_hours) FROM audit_usage_days GROUP BY namespace"
    assert {ns: h for ns, h in asked(store, sql) if h} == pytest.approx(found, abs=1e-7)
    (used,) = asked(store, "SELECT sum(used_gpu_hours) FROM audit_capacity_days")[0]
    assert used == pytest.approx(said["namespace"], abs=1e-7)
    return found


def parts_of_days(store: Store) -> dict[str, float]:
    """The hours of capacity and its parts, of all nodes and days."""
    names = ", ".join(f"sum({name}_gpu_hours)" for name in ("capacity", *PARTS))
    (row,) = asked(store, f"SELECT {names} FROM audit_capacity_days")
    found = dict(zip(("capacity", *PARTS), row, strict=True))
    assert sum(found[name] for name in PARTS) == pytest.approx(found["capacity"])
    return found


def test_a_card_is_never_billed_beyond_itself(store: Store) -> None:
    """60 % by memory beside 85 % of core: 60/145 and 85/145 of the card for the hours of both."""
    hours_of(
        store,
        (0, node(gpus=1)),
        (1, reserved("memory", memory(0, 60), namespace="a")),
        (2, reserved("core", share(0, 85, gib=8), namespace="b")),
        (12, released("memory")),
        END,
    )

    assert by_namespace(store) == pytest.approx(
        {"a": 0.6 + 10 * 60 / 145, "b": 10 * 85 / 145 + 0.85 * 12}, abs=1e-9
    )
    assert parts_of_days(store) == pytest.approx(
        {
            "capacity": 24.0,
            "used": 0.6 + 10 + 0.85 * 12,
            "idle": 1.0,
            "stranded": 0.4 + 0.15 * 12,
            "closed": 0.0,
            "unknown": 0.0,
        },
        abs=1e-9,
    )


def test_an_observed_holder_beside_a_granted_one_halves_the_card(store: Store) -> None:
    """Both have the whole card by their words, and there is one."""
    hours_of(
        store,
        (0, node(gpus=1)),
        (2, reserved("ours", share(0, 100), namespace="a")),
        (4, observed("theirs", share(0, 100), namespace="b")),
        END,
    )

    assert by_namespace(store) == pytest.approx({"a": 2 + 10, "b": 10}, abs=1e-9)


def test_a_holder_that_counts_nothing_strands_his_card(store: Store) -> None:
    """Nobody can have it whole: in the views as on the map."""
    hours_of(store, (0, node(gpus=1)), (1, observed("p", share(0, 0, gib=0), namespace="a")), END)

    found = parts_of_days(store)
    assert (found["used"], found["idle"], found["stranded"]) == pytest.approx((0, 1, 23))
    with store.open("read") as ledger:
        assert picture_of_ledger(ledger, None).parts.stranded == 100


def test_cards_held_by_count_are_in_every_view(store: Store) -> None:
    """One of eight is held, which is not known: one card is used and seven are idle."""
    hours_of(store, (0, node(gpus=8)), (4, unnamed("x", 1)), END)

    assert by_namespace(store) == pytest.approx({"kube": 20.0})
    found = parts_of_days(store)
    assert (found["used"], found["idle"]) == pytest.approx((20.0, 8 * 24 - 20.0))
    (row,) = asked(store, "SELECT gpu_count, gpu_core_percent FROM audit_reservations")
    assert row == (1, 100)


def test_those_on_unknown_cards_get_what_others_leave(store: Store) -> None:
    """Of one card that is half held the other half, whoever else asks, by what they ask."""
    hours_of(
        store,
        (0, node(gpus=1)),
        (0, reserved("half", share(0, 50), namespace="a")),
        (0, unnamed("x", 1)),
        (12, observed("y", namespace="b", unknown_types=("gpu",), counted={"gpu": 3})),
        END,
    )

    assert by_namespace(store) == pytest.approx(
        {"a": 12.0, "kube": 6 + 6 / 4, "b": 6 * 3 / 4}, abs=1e-9
    )
    assert parts_of_days(store)["used"] == pytest.approx(24.0)


def test_a_card_that_shrinks_or_leaves_is_billed_for_what_it_still_is(store: Store) -> None:
    """Half a card from 6:00, none from 12:00, a whole one again from 18:00."""
    hours_of(
        store,
        (0, node(gpus=1)),
        (0, reserved("p", share(0, 100), namespace="a")),
        (6, node(devices=(gpu(0, core_percent=50),))),
        (12, node(gpus=0)),
        (18, node(gpus=1)),
        END,
    )

    assert by_namespace(store) == pytest.approx({"a": 6 + 3 + 6})
    found = parts_of_days(store)
    assert (found["capacity"], found["used"]) == pytest.approx((15.0, 15.0))


def test_a_card_that_gets_another_minor_keeps_its_holder(store: Store) -> None:
    """It is one card by its id."""
    first, second = gpu(0), gpu(1)
    hours_of(
        store,
        (0, node(devices=(first,))),
        (0, reserved("p", share(0, 100), namespace="a")),
        (12, node(devices=(gpu(0, device_id=second.device_id), gpu(1, device_id=first.device_id)))),
        END,
    )

    assert by_namespace(store) == pytest.approx({"a": 24.0})
    assert parts_of_days(store) == pytest.approx(
        {"capacity": 36, "used": 24, "idle": 12, "stranded": 0, "closed": 0, "unknown": 0}
    )


@pytest.mark.parametrize("said", [{}, {"device_id": ""}], ids=["with ids", "without ids"])
def test_two_nodes_of_one_machine_have_its_cards_once(store: Store, said: dict[str, Any]) -> None:
    """Whichever Node lists them; the loss of one of both ends nothing of the other."""
    cards = tuple(gpu(minor, **said) for minor in range(2))
    same: dict[str, Any] = {"machine_id": "m", "system_uuid": "s", "devices": cards}
    hours_of(
        store,
        (0, node("n-1", **same)),
        (0, node("n-2", **same)),
        (0, reserved("p", share(0, 50, **said), node="n-2")),
        (12, NodeLost(node_uid="uid-n-1", node_name="n-1", reason="deleted")),
        END,
    )

    assert by_namespace(store) == pytest.approx({"team-a": 12.0})
    found = parts_of_days(store)
    assert (found["capacity"], found["used"]) == pytest.approx((48.0, 12.0))


def test_a_lost_node_ends_the_bill_and_has_no_cards(store: Store) -> None:
    """What its Pods held is counted to the loss."""
    hours_of(
        store,
        (0, node(gpus=1)),
        (0, reserved("p", share(0, 50))),
        (6, NodeLost(node_uid="uid-n-1", node_name="n-1", reason="deleted")),
        END,
    )

    assert by_namespace(store) == pytest.approx({"team-a": 3.0})
    assert parts_of_days(store)["capacity"] == pytest.approx(6.0)
    with store.open("read") as ledger:
        assert picture_of_ledger(ledger, None).parts.capacity == 0
        assert '"gpus": 0.0' in answer_of_top(ledger)


def answer_of_top(ledger: Ledger) -> str:
    """`tenure top -o json`."""
    return answer_top(ledger, TopQuestion(output=OutputFormat.JSON), EVERYBODY).out.getvalue()


def test_an_empty_ledger_and_a_time_before_the_first_event_have_no_hours(store: Store) -> None:
    """Nothing, rather than an error."""
    with store.open("read") as ledger, ledger.connection.begin():
        for by in GROUPS:
            assert queries.usage(ledger.connection, by, 0, MONDAY_US) == []
        assert list(capacity_changes(ledger.connection)) == []
    hours_of(store, (0, node(gpus=1)), (1, reserved("p", share(0, 50))), END)
    with store.open("read") as ledger, ledger.connection.begin():
        for by in GROUPS:
            assert queries.usage(ledger.connection, by, 0, MONDAY_US) == []


def test_a_hole_is_unknown_and_not_idle(store: Store) -> None:
    """What was held before goes on; the rest of the card is nobody's to say."""
    hours_of(
        store,
        (0, node(gpus=1)),
        (0, reserved("p", share(0, 25))),
        (
            8,
            LedgerRecovered(
                lost_from=4, lost_to=9, incarnation="b", lost_incarnation="a", began_at=4
            ),
        ),
        END,
    )

    found = parts_of_days(store)
    assert (found["used"], found["unknown"], found["stranded"]) == pytest.approx((6, 6, 12))


def test_hours_of_a_corrected_clock_are_those_of_the_true_times(store: Store) -> None:
    """A reading ten hours ahead, of a card that two share, tells 12:00 where it was 2:00."""
    hours_of(
        store,
        (0, node(gpus=1)),
        (1, reserved("memory", memory(0, 60), namespace="a")),
        (12, reserved("core", share(0, 85, gib=8), namespace="b")),
        (13, released("memory")),
        END,
    )
    words = TimeCorrected(first=4, last=4, shift_seconds=-10 * 3600, reason="ahead")
    with store.open() as ledger:
        correct(start(ledger), words, wall_us=0)

    assert by_namespace(store) == pytest.approx(
        {"a": 0.6 + 11 * 60 / 145, "b": 11 * 85 / 145 + 0.85 * 11}, abs=1e-7
    )
    parts_of_days(store)


# --- random ledgers ---------------------------------------------------------------------------


@dataclass(slots=True)
class Oracle:
    """The same figures by hand: every moment between two events is added up, card by card."""

    cards: dict[str, dict[int, int]] = field(default_factory=dict)
    ill: set[tuple[str, int]] = field(default_factory=set)
    named: dict[str, tuple[str, str, list[tuple[int, int]]]] = field(default_factory=dict)
    counted: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    hours: dict[tuple[str, int], Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    parts: Counter[tuple[str, int]] = field(default_factory=Counter)

    def rates(self) -> dict[str, Fraction]:
        """Pod -> what it counts, in percent of a card."""
        found: dict[str, Fraction] = {}
        for on, cards in self.cards.items():
            room = 0
            for minor, capacity in cards.items():
                asks = [
                    (pod, w)
                    for pod, (_, at, ws) in self.named.items()
                    for m, w in ws
                    if (at, m) == (on, minor)
                ]
                together = sum(w for _, w in asks)
                room += max(0, capacity - together)
                for pod, weight in asks:
                    part = Fraction(weight) * min(capacity, together) / together
                    found[pod] = found.get(pod, Fraction()) + part
            pods = {pod: 100 * n for pod, (_, at, n) in self.counted.items() if at == on}
            for pod, asks_for in pods.items():
                most = min(room, sum(pods.values()))
                found[pod] = Fraction(asks_for) * most / sum(pods.values())
        return found

    def now(self) -> Counter[str]:
        """What became of the cards."""
        found: Counter[str] = Counter()
        for on, cards in self.cards.items():
            here: Counter[str] = Counter()
            for minor, capacity in cards.items():
                held = sum(
                    w for _, at, ws in self.named.values() for m, w in ws if (at, m) == (on, minor)
                )
                here["used"] += min(capacity, held)
                left = "closed" if (on, minor) in self.ill else "stranded" if held else "idle"
                here[left] += max(0, capacity - held)
            more = sum(100 * n for _, at, n in self.counted.values() if at == on)
            for name in ("idle", "stranded", "closed"):
                taken = min(more, here[name])
                here.update({name: -taken, "used": taken})
                more -= taken
            found.update(here)
        return found

    def pass_time(self, since_us: int, until_us: int) -> None:
        """Add what passed, day by day."""
        rates, parts = self.rates(), self.now()
        while since_us < until_us:
            day = since_us // DAY_US
            end = min(until_us, (day + 1) * DAY_US)
            for pod, rate in rates.items():
                namespace = {**self.named, **self.counted}[pod][0]
                self.hours[namespace, day] += rate * (end - since_us)
            for name, percent in parts.items():
                self.parts[name, day] += percent * (end - since_us)
            since_us = end


def a_day_of(rng: Random, oracle: Oracle, number: int) -> Iterator[tuple[LedgerEvent, Any]]:
    """An event that may happen, and what it changes."""
    on, pod = rng.choice(("n-1", "n-2")), f"p{number}"
    namespace = rng.choice(("a", "b"))
    words: dict[str, Any] = {"node": on, "namespace": namespace}
    what = rng.randrange(9)
    if what < 4:
        minors = rng.sample(range(3), rng.choice((1, 1, 2)))
        shares, weights = [], []
        for minor in minors:
            percent = rng.choice((10, 25, 60, 85, 100))
            by_memory = rng.random() < 0.5
            shares.append(
                memory(minor, percent, on)
                if by_memory
                else share(minor, percent, node=on, gib=rng.choice((1, 8)))
            )
            weights.append((minor, percent))
        make = observed if what == 3 else reserved
        yield (
            make(pod, *shares, **words),
            lambda: oracle.named.update({f"uid-{pod}": (namespace, on, weights)}),
        )
    elif what == 4:
        cards = rng.randint(1, 3)
        event = observed(pod, unknown_types=("gpu",), counted={"gpu": cards}, **words)
        yield event, lambda: oracle.counted.update({f"uid-{pod}": (namespace, on, cards)})
    elif what < 7 and (oracle.named or oracle.counted):
        there = {**oracle.named, **oracle.counted}
        uid = rng.choice(sorted(there))

        def gone() -> None:
            oracle.named.pop(uid, None)
            oracle.counted.pop(uid, None)

        yield released(uid.removeprefix("uid-"), node=there[uid][1]), gone
    elif what == 7:
        minor, well = rng.randrange(3), rng.random() < 0.5
        change = oracle.ill.discard if well else oracle.ill.add
        yield health(minor, healthy=well, node=on), lambda: change((on, minor))
    else:
        yield inventory(rng, oracle, on)


def inventory(rng: Random, oracle: Oracle, on: str) -> tuple[NodeInventoried, Any]:
    """A node with cards that shrank, or that left."""
    cards = {minor: rng.choice((100, 100, 50)) for minor in range(3) if rng.random() < 0.9}
    devices = tuple(
        gpu(minor, node=on, core_percent=core, healthy=(on, minor) not in oracle.ill)
        for minor, core in cards.items()
    )
    return node(on, devices=devices), lambda: oracle.cards.update({on: cards})


def lived(ledger: Ledger, seed: int) -> Oracle:
    """A ledger of some days, and the same by hand."""
    rng, oracle, clock = Random(seed), Oracle(), Clock()
    writer, at_us = start(ledger), MONDAY_US
    for on in ("n-1", "n-2"):
        at_us += HOUR_US
        writer.append([clock.new(node(on, gpus=3), at_us=at_us)])
        oracle.cards[on] = dict.fromkeys(range(3), 100)
        oracle.pass_time(at_us, at_us + HOUR_US)
    for number in range(40):
        for event, change in a_day_of(rng, oracle, number):
            later = at_us + rng.randrange(1, 9 * HOUR_US)
            with suppress(CapacityError):
                writer.append([clock.new(event, at_us=later)])
                if number or at_us > MONDAY_US:
                    oracle.pass_time(at_us if number else at_us + HOUR_US, later)
                at_us = later
                change()
    return oracle


@pytest.mark.parametrize("seed", seeds(2, 12))
def test_every_figure_of_a_random_ledger_is_the_one_by_hand(store: Store, seed: int) -> None:
    """Of namespaces and cards, by day, in windows, and now."""
    with store.open() as ledger:
        oracle = lived(ledger, seed)
    with store.open("read") as ledger:
        days_are(ledger, oracle)
        windows_add_up(ledger, seed)
        what_is_now(ledger, oracle)
    by_namespace(store)
    parts_of_days(store)


def days_are(ledger: Ledger, oracle: Oracle) -> None:
    """Both views by day, to the microsecond."""
    epoch = "CAST(strftime('%s', day) AS integer) / 86400"
    if ledger.connection.dialect.name == "postgresql":
        epoch = "CAST(EXTRACT(EPOCH FROM CAST(day AS timestamp)) AS bigint) / 86400"
    rows = run_sql(ledger, f"SELECT namespace, {epoch}, gpu_hours FROM audit_usage_days")[1]
    assert {(ns, day): hours for ns, day, hours in rows if hours} == pytest.approx(
        {key: float(us / 100 / HOUR_US) for key, us in oracle.hours.items() if us}, abs=1e-6
    )
    for name in ("used", "idle", "stranded", "closed", "unknown"):
        sql = f"SELECT {epoch}, sum({name}_gpu_hours) FROM audit_capacity_days GROUP BY day"
        found = {day: hours for day, hours in run_sql(ledger, sql)[1] if hours}
        assert found == pytest.approx(
            {
                day: us / 100 / HOUR_US
                for (part, day), us in oracle.parts.items()
                if part == name and us
            },
            abs=1e-9,
        ), name


def windows_add_up(ledger: Ledger, seed: int) -> None:
    """Wherever a window is cut, and in whatever groups."""
    with ledger.connection.begin():
        span = queries.span(ledger.connection)
        first, last = span.first_at_us, span.last_at_us
        cut = Random(seed).randrange(first, last)

        def hours(since: int, until: int, by: GpuGroup = "namespace") -> float:
            return sum(r.gpu_hours for r in queries.usage(ledger.connection, by, since, until))

        assert hours(first, cut) + hours(cut, last) == pytest.approx(hours(first, last), abs=1e-6)
        changes = list(capacity_changes(ledger.connection))
        for since, until in ((first, cut), (cut, last)):
            used = capacity_between(changes, since, until)["allocated"] / 100 / HOUR_US
            assert used == pytest.approx(hours(since, until), abs=1e-6)


def what_is_now(ledger: Ledger, oracle: Oracle) -> None:
    """The map, the report's last moment, `status`, `top` and `usage`."""
    now, picture = oracle.now(), picture_of_ledger(ledger, None)
    assert asdict(picture.parts) == {
        "allocated": now["used"],
        **{name: now[name] for name in ("stranded", "idle", "closed")},
    }
    assert counted_percent(picture) == {pod: rate for pod, rate in oracle.rates().items() if rate}
    report = read_report(ledger, proof=None, command="")
    point = report.capacity[-1]
    assert (point.allocated, point.stranded, point.idle, point.closed) == tuple(
        asdict(picture.parts).values()
    )
    with ledger.connection.begin():
        changes = list(capacity_changes(ledger.connection))
    assert capacity_at(changes, [point.at])[0] == point
    told = answer_usage(ledger, UsageQuestion(output=OutputFormat.JSON), EVERYBODY)
    assert json.loads(told.out.getvalue())["capacity_percent"] == report.mean
    top = TopQuestion(by=TopGroup.NAMESPACE, output=OutputFormat.JSON)
    rows = json.loads(answer_top(ledger, top, EVERYBODY).out.getvalue())
    assert sum(row["gpus"] for row in rows) == pytest.approx(now["used"] / 100)


# --- every system -----------------------------------------------------------------------------


def told_of(objects: list[Object]) -> Cluster:
    """A cluster read from its objects."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    read = read_manifests(["-"], stdin=io.BytesIO(text.encode()))
    return cluster_as_far_as_read(read, SchedulingSettings())


def lived_by(store: Store, cluster: Cluster, rng: Random) -> dict[str, int]:
    """Let the Pods of a cluster come and go, and return the parts of its cards over time."""
    clock, sums = Clock(), dict.fromkeys(("allocated", "stranded", "idle", "closed"), 0)
    waiting, there = [pod for pod in cluster.adopted if pod.node_uid], list[PodObserved]()
    with store.open() as ledger:
        writer, at_us = start(ledger), MONDAY_US
        for number, each in enumerate(cluster.nodes):
            described = events.node_described(
                each, recorded_node(each), at_us, number, place=0, rank=0
            )
            writer.append([events.inventoried(each, at_us), described])
        for _ in range(2 * len(waiting) + 2):
            parts = asdict(picture_of_ledger(ledger, None).parts)
            later = at_us + rng.randrange(1, 9 * HOUR_US)
            sums = {name: sums[name] + parts[name] * (later - at_us) for name in sums}
            at_us = later
            if waiting and rng.random() < 0.7:
                there.append(waiting.pop(rng.randrange(len(waiting))))
                writer.append([events.of_pod(there[-1], at_us)])
            elif there:
                pod = there.pop(rng.randrange(len(there)))
                gone = released(pod.pod_name, node=pod.node_name)
                ended = structs.replace(gone, pod_uid=pod.pod_uid, node_uid=pod.node_uid)
                writer.append([clock.new(ended, at_us=at_us)])
            else:
                writer.append([clock.new(node("n-9", gpus=0), at_us=at_us)])
    return sums


def views_tell_as_much(store: Store, told: dict[str, float], whole: dict[str, float]) -> None:
    """What a view has is what `usage` has; what it has not is NULL and says why."""
    sql = "SELECT namespace, gpu_hours, unknown_because FROM audit_usage_days"
    found: dict[str, float] = defaultdict(float)
    unknown = set()
    for namespace, hours, why in asked(store, sql):
        assert (hours is None) == (why is not None)
        found[namespace] += hours or 0.0
        unknown |= {namespace} if why else set()
    for namespace in told.keys() - unknown:
        assert found[namespace] == pytest.approx(told[namespace], abs=1e-3)  # as `usage` rounds
    names = ", ".join(f"{name}_gpu_hours" for name in ("capacity", *PARTS))
    rows = asked(store, f"SELECT {names}, unknown_because FROM audit_capacity_days")
    assert all((hours is None) == (why is not None) for *row, why in rows for hours in row)
    if not any(row[-1] for row in rows):
        used = sum(row[1] for row in rows)
        assert used == pytest.approx(sum(told.values()), abs=2e-3)
        assert sum(row[0] for row in rows) == pytest.approx(sum(whole.values()), abs=1e-6)


@pytest.mark.parametrize("seed", [*range(examples(24) // 3), 10])  # 10: a claim's own card
def test_hours_of_every_system_are_those_of_the_map(store: Store, seed: int) -> None:
    """Replicas, slices, DRA's, Volcano's, other vendors' and ill cards, over random lives."""
    rng = Random(seed)
    objects = a_cluster(rng)
    sums = lived_by(store, told_of(objects), rng)
    whole = {name: percent / 100 / HOUR_US for name, percent in sums.items()}

    with store.open("read") as ledger:
        said = answer_usage(ledger, UsageQuestion(output=OutputFormat.JSON), EVERYBODY)
        report = read_report(ledger, proof=None, command="")
        point, parts = report.capacity[-1], asdict(picture_of_ledger(ledger, None).parts)
    record = json.loads(said.out.getvalue())
    told = {row["group"]: row["gpu_hours"] for row in record["groups"]}

    assert {name: getattr(point, name) for name in parts} == parts
    if any(sums.values()):
        together = sum(sums.values())
        assert record["capacity_percent"] == {
            **{name: round(part * 100 / together, 1) for name, part in sums.items()},
            "unknown": 0.0,
        }
        assert report.mean == record["capacity_percent"]
    assert sum(told.values()) == pytest.approx(whole["allocated"], abs=2e-3)
    views_tell_as_much(store, told, whole)


def test_replicas_of_a_card_are_parts_of_it_or_not_told(store: Store) -> None:
    """Two cards as eight units, of which one is held for six hours: a quarter of a card."""
    offered = {"cpu": "8", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": 8}
    labels = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"}
    cluster = told_of(
        [
            object_node("ts", allocatable=offered, labels=labels),
            running("p", "ts", {"nvidia.com/gpu": 1}),
        ]
    )
    with store.open() as ledger:
        writer, (each,), (held,) = start(ledger), cluster.nodes, cluster.adopted
        described = events.node_described(each, recorded_node(each), MONDAY_US, 0, place=0, rank=0)
        writer.append([events.inventoried(each, MONDAY_US), described])
        writer.append([events.of_pod(held, MONDAY_US)])
        end = Clock().new(node("n-9", gpus=0), at_us=MONDAY_US + 6 * HOUR_US)
        writer.append([end])
    with store.open("read") as ledger:
        question = UsageQuestion(output=OutputFormat.JSON)
        told = json.loads(answer_usage(ledger, question, EVERYBODY).out.getvalue())
        top = TopQuestion(output=OutputFormat.JSON)
        (row,) = json.loads(answer_top(ledger, top, EVERYBODY).out.getvalue())

    assert [each["gpu_hours"] for each in told["groups"]] == [1.5]
    percents = {"allocated": 12.5, "stranded": 0.0, "idle": 87.5, "closed": 0.0, "unknown": 0.0}
    assert told["capacity_percent"] == percents
    assert (row["gpus"], row["unknown"]) == (0.25, 1)
    why = "held of cards that no inventory has, which `tenure usage` counts"
    sql = "SELECT gpu_hours, unknown_because FROM audit_usage_days"
    assert asked(store, sql) == [(None, why)]
    sql = "SELECT capacity_percent, used_percent, unknown_because FROM audit_capacity"
    assert asked(store, sql) == [(None, None, why.removeprefix("held of "))]


def test_a_card_that_a_claim_alone_tells_of_is_there_while_somebody_holds_it(store: Store) -> None:
    """Beside one listed card: two share it from 2:00 and 4:00 to 8:00, of ten hours."""
    objects = [
        object_node("d", allocatable={"cpu": "8", "memory": "8Gi", "pods": "110"}),
        sliced("d", 1),
        claim("c", "d", "gpu-9", ("p", "q")),
        running("p", "d", {}),
        running("q", "d", {}),
    ]
    cluster = told_of(objects)
    clock, (each,) = Clock(), cluster.nodes
    with store.open() as ledger:
        writer = start(ledger)
        described = events.node_described(each, recorded_node(each), MONDAY_US, 0, place=0, rank=0)
        writer.append([events.inventoried(each, MONDAY_US), described])
        for pod, hour in zip(cluster.adopted, (2, 4), strict=True):
            writer.append([events.of_pod(pod, MONDAY_US + hour * HOUR_US)])
            now = picture_of_ledger(ledger, None).parts
            assert (now.allocated, now.idle) == (100, 100)
        for pod in cluster.adopted:
            gone = released(pod.pod_name, node="d")
            ended = structs.replace(gone, pod_uid=pod.pod_uid, node_uid=pod.node_uid)
            writer.append([clock.new(ended, at_us=MONDAY_US + 8 * HOUR_US)])
        writer.append([clock.new(node("n-9", gpus=0), at_us=MONDAY_US + 10 * HOUR_US)])
    with store.open("read") as ledger:
        said = answer_usage(ledger, UsageQuestion(by="owner", output=OutputFormat.JSON), EVERYBODY)
        report = read_report(ledger, proof=None, command="")
        parts = picture_of_ledger(ledger, None).parts
    told = json.loads(said.out.getvalue())

    assert sum(row["gpu_hours"] for row in told["groups"]) == pytest.approx(6.0)
    percents = {"allocated": 37.5, "stranded": 0.0, "idle": 62.5, "closed": 0.0, "unknown": 0.0}
    assert told["capacity_percent"] == report.mean == percents  # 6 of 16 hours
    assert (parts.capacity, report.capacity[-1].idle) == (100, 100)
    absent = [
        tuple(at and (at - MONDAY_US) // HOUR_US for at in (each.opened, each.closed))
        for each in report.history.outages
    ]
    assert absent == [(0, 2), (8, None)]


def test_what_only_an_archived_event_tells_is_said_not_to_be_known(
    store: Store, tmp_path: Path
) -> None:
    """No card that a Pod runs on is free, and no hours are left out in silence."""
    offered = {"cpu": "8", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": 8}
    labels = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"}
    sick = object_node("ill", allocatable={**offered, "nvidia.com/gpu": 3})
    sick["status"]["capacity"] = {**offered, "nvidia.com/gpu": 4}
    cluster = told_of(
        [
            object_node("ts", allocatable=offered, labels=labels),
            sick,
            object_node("plain", allocatable={**offered, "nvidia.com/gpu": 4}),
            object_node("nic", allocatable={**offered, "nvidia.com/gpu": 0, "rdma/hca": 4}),
            running("p", "ts", {"nvidia.com/gpu": 1}),
            running("q", "plain", {"nvidia.com/gpu": 2}),
        ]
    )
    nic = next(each for each in cluster.nodes if each.name == "nic")
    asks = PodSnapshot(original={"c.rdma/hca": "3"})
    ill = next(each for each in cluster.nodes if each.name == "ill")
    granted = [
        structs.replace(reserved("g", node="nic"), node_uid=nic.uid, snapshot=asks),
        structs.replace(reserved("h", share(0, 50, gib=0, device_id="")), node_uid=ill.uid),
    ]
    clock, question = Clock(), UsageQuestion(output=OutputFormat.JSON)

    def asked_now() -> tuple[Any, str, Picture]:
        with store.open("read") as ledger:
            said = answer_usage(ledger, question, EVERYBODY)
            picture = picture_of_ledger(ledger, None)
        return json.loads(said.out.getvalue()), " ".join(said.notes), picture

    with store.open() as ledger:
        writer = start(ledger)
        for number, each in enumerate(cluster.nodes):
            facts = recorded_node(each)
            described = events.node_described(each, facts, MONDAY_US, number, place=0, rank=0)
            writer.append([events.inventoried(each, MONDAY_US), described])
        for held in cluster.adopted:
            writer.append([events.of_pod(structs.replace(held, request=None), MONDAY_US)])
        writer.append([clock.new(each, at_us=MONDAY_US + 1) for each in granted])
        later = [clock.new(refused(f"r{n}"), at_us=MONDAY_US + HOUR_US) for n in range(300)]
        writer.append(later)
    before, said, picture = asked_now()
    assert (before["not_counted"], "archive" in said) == ([], False)
    assert said_of(picture) == {
        "ts": (exactly(1), {}),
        "plain": (exactly(2), {}),
        "ill": (exactly(2), {}),
        "nic": (exactly(0), {"rdma/hca": Units(allocatable=4, held=3)}),
    }
    with store.open() as ledger:
        move(ledger, tmp_path)

    told, said, picture = asked_now()

    assert said_of(picture) == {
        "ts": (Many(least=0, most=2), {}),
        "plain": (exactly(2), {}),
        "ill": (exactly(2), {}),
        "nic": (exactly(0), {"rdma/hca": Units(allocatable=4, held=0, is_least=True)}),
    }
    assert told["not_counted"] == ["ml/p"]
    assert "whose events are in an archive: ml/p; the segment files have them" in said
    assert {each.object for each in picture.contradictions} == {"Pod ml/p", "Pod ml/q"}
    (plain,) = (each for each in picture.nodes if each.name == "plain")
    assert sums_of(plain).free.exact == 2
    assert [pod.path for group in plain.groups for pod in group.unplaced] == ["ml/q"]


def said_of(picture: Picture) -> dict[str, tuple[Many, Mapping[str, Units]]]:
    """Node -> its free cards, and what nobody looked at."""
    return {node.name: (sums_of(node).free, node.not_looked_at) for node in picture.nodes}


def test_what_was_held_before_an_archive_is_told_of_that_time(store: Store, tmp_path: Path) -> None:
    """Of cards held by number, on the page and by the map of then, though the Pod is gone."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(gpus=4), at_us=MONDAY_US)])
        writer.append([clock.new(unnamed("x", 2), at_us=MONDAY_US + HOUR_US)])
        later = [clock.new(refused(f"r{n}"), at_us=MONDAY_US + 2 * HOUR_US) for n in range(300)]
        writer.append([*later, clock.new(released("x"), at_us=MONDAY_US + 3 * HOUR_US)])
    asked_for = MONDAY_US + 2 * HOUR_US

    def told() -> tuple[Any, ...]:
        with store.open("read") as ledger:
            report = read_report(ledger, proof=None, command="")
            picture = picture_of_ledger(ledger, asked_for)
        history = report.history
        holds = [(hold.card, hold.opened, hold.closed) for hold in history.holds]
        return holds, history.pods, report.usage, picture.nodes

    before = told()
    assert [card for card, *_ in before[0]] == [2, 3]
    with store.open() as ledger:
        move(ledger, tmp_path)

    holds, pods, usage, nodes = told()

    assert (holds, pods, usage) == before[:3]
    assert [sums_of(each).free for each in nodes] == [exactly(2)]
    assert [pod.amount for each in nodes for pod in each.groups[0].unplaced] == [2]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_views_know_the_names_of_cards(database: Database, request: pytest.FixtureRequest) -> None:
    """The same names as the readers of Node objects."""
    fixture = "sqlite_store" if database == "sqlite" else "postgres_store"
    store: Store = request.getfixturevalue(fixture)
    names = [
        *("nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.me"),
        *("amd.com/gpu", "habana.ai/gaudi", "habana.ai/gaudi2", "huawei.com/Ascend910"),
        *("huawei.com/ascend310P", "huawei.com/ascend310P-2c", "rdma/hca", "google.com/tpu"),
        *("gpu.intel.com/i915", "gpu.intel.com/i915_monitoring", "example.com/gpus"),
        *("volcano.sh/vgpu-number", "aws.amazon.com/neuroncore", "cambricon.com/mlu370"),
    ]
    for name in names:
        condition = is_card_name(f"'{name}'")
        ((found,),) = asked(store, f"SELECT CASE WHEN {condition} THEN 1 ELSE 0 END AS found")
        assert bool(found) == stands_for_cards(name), name


@pytest.mark.parametrize(
    ("asks", "room", "parts"),
    [
        ((60, 85), 100, (Fraction(6000, 145), Fraction(8500, 145))),
        ((60, 40), 100, (60, 40)),
        ((10, 20), 100, (10, 20)),
        ((100, 100), 0, (0, 0)),
        ((0, 0), 0, (0, 0)),
        ((), 100, ()),
    ],
)
def test_what_there_is_is_shared_by_what_was_asked(
    asks: Sequence[int], room: int, parts: Sequence[Fraction]
) -> None:
    """Exactly, and never more than there is."""
    assert tuple(shared_out(asks, room)) == tuple(parts)
