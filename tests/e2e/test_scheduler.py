"""A stock kube-scheduler asks, Tenure decides and binds, the ledger remembers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.log.events import (
    LedgerEvent,
    PodBound,
    PodObserved,
    PodReleased,
    PodReserved,
)
from ledger.store.open import open_ledger
from scheduler.service.beginning import told_refusals
from tests.support.kube.bursts import DIALECTS, burst, eventually, remove_pods, settled
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    CARD_GIB,
    GIB,
    Identities,
    add_gpu_node,
    ask,
    asking,
    extender,
    remove_node,
)
from tests.support.process import tenure
from tests.support.recount import ALLOCATED, differences, held_by_ledger, held_by_pods, most

NODES = tuple(f"gpu-{number}" for number in range(6))
RETRIED_US = 5_000_000
WOKEN_SECONDS = 120.0
"""kube-scheduler asks by itself after 300."""
GIVEN = (
    '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100",'
    '"koordinator.sh/gpu-memory-ratio":"100"}}]}'
)
MGPU_CARDS = "vke.volcengine.com/gpu-index-container-main"
SPREAD = '{"preferredCPUBindPolicy":"SpreadByPCPUs"}'
STATUS = "scheduling.koordinator.sh/resource-status"


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[tuple[str, ...]]:
    """Nodes with eight cards each."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    for name in NODES:
        add_gpu_node(plane, name)
    yield NODES
    for name in NODES:
        remove_node(plane, name)


@pytest.fixture
def single(plane: ControlPlane) -> Iterator[str]:
    """A node with a single card."""
    yield from few_cards(plane, "single", 1)


@pytest.fixture
def pair(plane: ControlPlane) -> Iterator[str]:
    """A node with two cards."""
    yield from few_cards(plane, "pair", 2)


def few_cards(plane: ControlPlane, name: str, gpus: int) -> Iterator[str]:
    """Let a node be there until whoever has its name is done."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_gpu_node(plane, name, gpus=gpus)
    yield name
    remove_node(plane, name)


def node_of(plane: ControlPlane, path: str) -> str:
    """Return the node that a Pod is bound to, empty without one."""
    return str(plane.api().get(path).body["spec"].get("nodeName") or "")


def is_refused(plane: ControlPlane, path: str) -> bool:
    """Tell whether kube-scheduler has said of a Pod that no node takes it."""
    conditions = plane.api().get(path).body["status"].get("conditions") or ()
    return any(
        one["type"] == "PodScheduled" and one["status"] == "False" and one["message"]
        for one in conditions
    )


def moments(url: str, kind: type[LedgerEvent]) -> dict[str, tuple[int, LedgerEvent]]:
    """Return when and how events of a kind were recorded last, by UID of the Pod."""
    with open_ledger(url, mode="read") as ledger:
        recorded = ledger.read_events()
        found = [(one.envelope.wall_us, one.event) for one in recorded if type(one.event) is kind]
    return {getattr(event, "pod_uid", ""): (at_us, event) for at_us, event in found}


def check(url: str, bound: list[dict[str, Any]], folder: Path) -> None:
    """Compare ledger, events and Pods: each bound once, with its annotations, no card twice."""
    with open_ledger(url, mode="read") as ledger:
        recorded = [one.event for one in ledger.read_events()]
    held = {event.pod_uid: event for event in recorded if isinstance(event, PodReserved)}
    ended = Counter(event.pod_uid for event in recorded if isinstance(event, PodBound))
    assert ended == Counter(one["metadata"]["uid"] for one in bound), "each is bound once"
    for one in bound:
        event = held[one["metadata"]["uid"]]
        assert event.node_name == one["spec"]["nodeName"]
        annotations = one["metadata"]["annotations"]
        assert event.annotations.items() <= annotations.items()
        assert "tenure.sh/proof" in annotations
        key = STATUS if one["metadata"]["name"].startswith("cpuset") else ALLOCATED
        assert key in event.annotations, one["metadata"]["name"]
        assert annotations.get(MGPU_CARDS, "0").isdecimal(), "mGPU names cards by index"
    assert differences(bound, url) == []
    assert most(held_by_pods(bound), "memory") <= CARD_GIB * GIB
    verified = tenure("verify", "--ledger", url, cwd=folder)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.usefixtures("nodes")
def test_a_burst_of_every_dialect_is_bound_recorded_and_annotated_alike(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """Every Pod has a node and our annotations; ledger and Pods say the same, none is twice."""
    where = pods_in(namespace(managed=False))
    with extender(plane, ledger, identities) as served:
        with plane.scheduler(asking(plane, served, identities)):
            names = burst(plane, where, 6)
            bound = settled(plane, where, len(names))
        words = f"{served.words()}\n{(plane.folder / 'scheduler.log').read_text()[-3_000:]}"
    missing = set(names) - {one["metadata"]["name"] for one in bound}
    assert not missing, f"{sorted(missing)}\n{words}"
    check(ledger, bound, tmp_path)
    remove_pods(plane, where, names)


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_a_scheduler_that_is_killed_in_a_burst_goes_on_from_its_ledger(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """SIGKILL between two effects: what was reserved is settled, and no card is given twice."""
    where = pods_in(namespace(managed=False))
    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        names = burst(plane, where, 6)
        settled(plane, where, len(names) // 4)
        served.kill()
        with extender(plane, ledger, identities, port=served.port, forked=True) as again:
            bound = settled(plane, where, len(names))
            words = again.words()
    missing = set(names) - {one["metadata"]["name"] for one in bound}
    assert not missing, f"{sorted(missing)}\n{words}"
    check(ledger, bound, tmp_path)
    remove_pods(plane, where, names)


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_who_waits_is_woken_at_a_start_where_only_memory_kept_the_room(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    single: str,
    identities: Identities,
) -> None:
    """A hold that no bind followed ends with its process; kube-scheduler would ask in minutes."""
    where, api = pods_in(namespace(managed=False)), plane.api()
    holder = pod("holder", schedulerName="tenure", **DIALECTS["nvidia"])
    holder["metadata"] |= {"uid": "holder", "namespace": "default"}
    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        answer = ask(served, identities, "filter", {"Pod": holder, "NodeNames": [single]})
        assert answer["NodeNames"] == [single], answer
        assert api.create(where, pod("waits", schedulerName="tenure", **DIALECTS["nvidia"])).ok
        eventually(lambda: is_refused(plane, f"{where}/waits"))
        served.kill()
        with extender(plane, ledger, identities, port=served.port, forked=True, remembered=True):
            until = time.monotonic() + WOKEN_SECONDS
            while not node_of(plane, f"{where}/waits"):
                assert time.monotonic() < until
                time.sleep(0.1)
    remove_pods(plane, where, ["waits"])


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_every_pod_is_asked_about_however_alike_they_are(
    plane: ControlPlane, namespace: Callable[..., str], ledger: str, identities: Identities
) -> None:
    """OpportunisticBatching would give Pods alike the nodes that an earlier one was told."""
    where, count = pods_in(namespace(managed=False)), 12
    names = [f"alike-{number}" for number in range(count)]
    with extender(plane, ledger, identities, forked=True) as served:
        for name in names:
            made = plane.api().create(
                where, pod(name, schedulerName="tenure", **DIALECTS["nvidia"])
            )
            assert made.ok, made.message
        config = asking(plane, served, identities)
        with plane.scheduler(config, "--feature-gates", "OpportunisticBatching=true"):
            bound = settled(plane, where, count)
        assert len(bound) == count, (plane.folder / "scheduler.log").read_text()[-3_000:]
        [line] = [
            line
            for line in served.probe("metrics").splitlines()
            if line.startswith('tenure_extender_duration_seconds_count{verb="filter"}')
        ]
    assert float(line.split()[-1]) >= count
    remove_pods(plane, where, names)


@pytest.mark.usefixtures("single")
@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("as_proposed", "cores"), [("false", 16), ("true", 20)])
def test_the_service_reads_cpu_policies_as_the_proposal_does_when_it_is_set(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
    *,
    as_proposed: str,
    cores: int,
) -> None:
    """20 CPUs of 2 times 16 cores: of one NUMA node as released, each of another core if set."""
    where, api = pods_in(namespace(managed=False)), plane.api()
    bound = {"metadata": {"labels": {"tenure.sh/cpu-managed": "true"}}}
    assert api.patch("/api/v1/nodes/single", bound).ok
    config = tmp_path / "scheduler.yaml"
    head = "apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\n"
    config.write_text(f"{head}cpu: {{asProposed: {as_proposed}}}\n", "utf-8")
    words = {"scheduling.koordinator.sh/resource-spec": SPREAD}
    labels = {"koordinator.sh/qosClass": "LSR"}
    body = pod("spread", {"cpu": "20", "memory": "1Gi"}, labels=labels, annotations=words)
    body["spec"]["schedulerName"] = "tenure"
    with (
        extender(plane, ledger, identities, forked=True, config=config) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        made = api.create(where, body)
        assert made.ok, made.message
        eventually(lambda: node_of(plane, f"{where}/spread"))
        given = json.loads(api.get(f"{where}/spread").body["metadata"]["annotations"][STATUS])
    cpus = parse_cpuset(given["cpuset"])
    assert (len(cpus), len({cpu // 2 for cpu in cpus})) == (20, cores)
    remove_pods(plane, where, ("spread",))


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_restricted_by_a_node_takes_no_more_numa_nodes_than_a_pod_needs(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    nodes: tuple[str, ...],
    identities: Identities,
) -> None:
    """Kubernetes' word: 16 CPUs are of one NUMA node of 32, or of no node; 8 still are."""
    where, api = pods_in(namespace(managed=False)), plane.api()
    for name in nodes[1:]:
        remove_node(plane, name)
    labels = {"node.koordinator.sh/numa-topology-policy": "Restricted"}
    assert api.patch(f"/api/v1/nodes/{nodes[0]}", {"metadata": {"labels": labels}}).ok

    def ask(name: str, cpus: int, *, refused: bool = False) -> str:
        amounts = {"koordinator.sh/gpu": "100", "cpu": str(cpus)}
        made = api.create(where, pod(name, amounts, schedulerName="tenure"))
        assert made.ok, made.message
        path = f"{where}/{name}"
        eventually(lambda: (is_refused if refused else node_of)(plane, path))
        return path

    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        ask("twenty-0", 20)
        ask("twenty-1", 20)
        refused = ask("sixteen", 16, refused=True)
        told = str(api.get(refused).body["status"]["conditions"])
        assert "Unaligned NUMA Hint cause cpu" in told
        ask("eight", 8)
    remove_pods(plane, where, ("twenty-0", "twenty-1", "sixteen", "eight"))


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_a_pod_in_hamis_words_is_placed_by_the_policies_that_it_wishes(
    plane: ControlPlane, namespace: Callable[..., str], ledger: str, identities: Identities
) -> None:
    """One that we have is followed, one that we have not is refused; the settings come after."""
    where, api = pods_in(namespace(managed=False)), plane.api()

    def ask(name: str, **wishes: str) -> str:
        annotations = {f"hami.io/{key.replace('_', '-')}": wish for key, wish in wishes.items()}
        amounts = {"nvidia.com/gpumem": "2048"}
        body = pod(name, amounts, annotations=annotations, schedulerName="tenure")
        made = api.create(where, body)
        assert made.ok, made.message
        return f"{where}/{name}"

    def placed(name: str, **wishes: str) -> tuple[str, str]:
        path = ask(name, **wishes)
        node = str(eventually(lambda: node_of(plane, path)))
        given = api.get(path).body["metadata"]["annotations"]["tenure.sh/visible.0"]
        return node, str(given)

    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        first = placed("first")
        beside = placed("beside", node_scheduler_policy="binpack", gpu_scheduler_policy="spread")
        assert beside[0] == first[0]
        assert beside[1] != first[1]
        assert placed("away", node_scheduler_policy="spread")[0] != first[0]
        full = placed("full", node_scheduler_policy="binpack", gpu_scheduler_policy="binpack")
        assert full in {first, beside}
        refused = ask("refused", gpu_scheduler_policy="topology-aware")
        eventually(lambda: is_refused(plane, refused))
        told = str(api.get(refused).body["status"]["conditions"])
        assert "links between shares of cards" in told
    remove_pods(plane, where, ("first", "beside", "away", "full", "refused"))


def test_a_pod_that_is_deleted_while_it_waits_waits_no_more_by_the_ledger(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    single: str,
    identities: Identities,
) -> None:
    """Whether the service runs meanwhile, or starts after it."""
    where, api = pods_in(namespace(managed=False)), plane.api()

    def ask(name: str) -> str:
        made = api.create(where, pod(name, schedulerName="tenure", **DIALECTS["nvidia"]))
        assert made.ok, made.message
        return str(made.body["metadata"]["uid"])

    def waiting() -> set[str]:
        with open_ledger(ledger, mode="read") as opened:
            return set(told_refusals(opened, None))

    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        ask("first")
        eventually(lambda: node_of(plane, f"{where}/first") == single)
        now, later = ask("now"), ask("later")
        eventually(lambda: waiting() == {now, later})
        assert api.delete(f"{where}/now").ok
        eventually(lambda: waiting() == {later})
    assert api.delete(f"{where}/later").ok
    with extender(plane, ledger, identities, forked=True):
        eventually(lambda: waiting() == set())
    remove_pods(plane, where, ("first",))


def test_who_waits_for_a_card_has_it_within_five_seconds_of_its_release(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    single: str,
    identities: Identities,
) -> None:
    """A Pod ends: it is released with its reason, and who was refused is woken and bound."""
    team = namespace(managed=False)
    where, api = pods_in(team), plane.api()

    def ask(name: str) -> str:
        made = api.create(where, pod(name, schedulerName="tenure", **DIALECTS["nvidia"]))
        assert made.ok, made.message
        return str(made.body["metadata"]["uid"])

    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        first = ask("first")
        eventually(lambda: node_of(plane, f"{where}/first") == single)
        second = ask("second")
        eventually(lambda: is_refused(plane, f"{where}/second"))
        labels = f"/api/v1/namespaces/{team}"
        holding = eventually(
            lambda: api.get(labels).body["metadata"]["labels"].get("tenure.sh/holding")
        )
        ended = api.patch(f"{where}/first/status", {"status": {"phase": "Succeeded"}})
        assert ended.ok, ended.message
        eventually(lambda: node_of(plane, f"{where}/second") == single)
        bound_us, _ = eventually(lambda: moments(ledger, PodBound).get(second))
        remove_pods(plane, where, ["first", "second"])
        eventually(lambda: len(moments(ledger, PodReleased)) == 2)
        eventually(lambda: "tenure.sh/holding" not in api.get(labels).body["metadata"]["labels"])
        woken = api.get(f"/api/v1/nodes/{single}").body["metadata"]["annotations"]
    released = moments(ledger, PodReleased)
    (released_us, event), (_, last) = released[first], released[second]
    assert isinstance(event, PodReleased)
    assert isinstance(last, PodReleased)
    assert (event.reason, last.reason) == ("completed", "deleted")
    assert 0 < bound_us - released_us < RETRIED_US
    assert holding == "true"
    assert "tenure.sh/released-at" in woken
    assert not held_by_ledger(ledger)


def test_what_others_gave_is_kept_and_what_ended_meanwhile_is_released_at_the_start(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    pair: str,
    identities: Identities,
) -> None:
    """A Pod bound before Tenure came keeps its card; deleted and re-created, it is another Pod."""
    where, api = pods_in(namespace(managed=False)), plane.api()
    older = pod("older", nodeName=pair, annotations={ALLOCATED: GIVEN}, **DIALECTS["nvidia"])
    made = api.create(where, older)
    assert made.ok, made.message
    uid = made.body["metadata"]["uid"]
    ours = [pod(name, schedulerName="tenure", **DIALECTS["nvidia"]) for name in ("one", "two")]
    with extender(plane, ledger, identities, forked=True) as served:
        with plane.scheduler(asking(plane, served, identities)):
            eventually(lambda: uid in moments(ledger, PodObserved))
            for one in ours:
                assert api.create(where, one).ok
            [bound] = eventually(
                lambda: [one for one in ("one", "two") if node_of(plane, f"{where}/{one}")]
            )
            [waits] = {"one", "two"} - {bound}
            eventually(lambda: is_refused(plane, f"{where}/{waits}"))
            cards = {what.split()[1] for _, _, what in held_by_ledger(ledger)}
            assert cards == {"0", "1"}
        first = api.get(f"{where}/{bound}").body["metadata"]["uid"]
        served.kill()
    remove_pods(plane, where, ["older", "one", "two"])
    again = api.create(where, pod(bound, schedulerName="tenure", **DIALECTS["nvidia"]))
    assert again.ok, again.message
    with extender(plane, ledger, identities, forked=True) as served:
        eventually(lambda: moments(ledger, PodReleased).keys() == {uid, first})
        with plane.scheduler(asking(plane, served, identities)):
            eventually(lambda: node_of(plane, f"{where}/{bound}") == pair)
            eventually(lambda: again.body["metadata"]["uid"] in moments(ledger, PodBound))
    assert len({uid for uid, _, _ in held_by_ledger(ledger)}) == 1
    remove_pods(plane, where, [bound])
