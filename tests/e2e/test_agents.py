"""Refusals, agents, orders and webhooks at the live service, by tokens of a real API server."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.domain.log.events import (
    PodAssigned,
    PodObserved,
    PodReleased,
    PodReserved,
    RequestRefused,
)
from ledger.store.open import open_ledger
from scheduler.service.leading import NOT_LEADER
from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.kube.service_api import AGENT, OURS, Service, agents_token, token_of
from tests.support.kube.webhooks import apply, remove
from tests.support.process import tenure
from tests.support.relay import Relay, relay_to

NODE: Final = "confirmed"
RBAC: Final = "rbac.authorization.k8s.io"
WEBHOOK, OPERATOR = "tenure-webhook", "operator"
GPU: Final = {"koordinator.sh/gpu": "100"}


@pytest.fixture
def node(plane: ControlPlane) -> Iterator[str]:
    """A node with a single card, with the Pod of its agent."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_gpu_node(plane, NODE, gpus=1)
    yield NODE
    remove_node(plane, NODE)


def accounts() -> list[dict[str, Any]]:
    """Return the ServiceAccounts of others, and who may force a release by the printed role."""
    made: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": OURS},
        }
        for name in (WEBHOOK, OPERATOR)
    ]
    made.append(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "may-force"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "tenure-force-release"},
            "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": OURS}],
        }
    )
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A namespace, and who is ordered there."""

    team: str
    service: Service
    folder: Path

    def force(self, name: str, token: str) -> subprocess.CompletedProcess[str]:
        """Order a release by the command line."""
        (self.folder / "token").write_text(token)
        order = ("release", f"{self.team}/{name}", "--force", "--reason", "its node is burnt")
        server = f"https://127.0.0.1:{self.service.port}"
        where = ("--server", server, "--server-ca", str(self.service.authority))
        return tenure(*order, *where, "--token-file", "token", cwd=self.folder)

    def check_forced(self, uid: str, url: str, *, nobody: str, operator: str) -> None:
        """Who may orders it, in their own name; who may not is told so."""
        refused = self.force("second", nobody)
        assert (refused.returncode, "may not force-release" in refused.stderr) == (2, True)
        done = self.force("second", operator)
        assert done.stdout == f"released: name={self.team}/second, uid={uid}\n", done.stderr
        actor, released = events_of(url, PodReleased)[uid]
        assert actor == f"user/system:serviceaccount:{OURS}:{OPERATOR}"
        assert released.reason == "forced: its node is burnt"


def events_of(url: str, kind: type[Any]) -> dict[str, tuple[str, Any]]:
    """Return actor and event of the last of a kind for each Pod."""
    with open_ledger(url, mode="read") as ledger:
        found = [(one.envelope.actor, one.event) for one in ledger.read_events()]
    return {each.pod_uid: (actor, each) for actor, each in found if isinstance(each, kind)}


def test_the_node_confirms_and_what_waits_has_its_reason(
    plane: ControlPlane,
    namespace: Callable[..., str],
    node: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """A Pod waits with its reasons; the card is free on the agent's word, or by an order."""
    team, port = namespace(managed=False), free_port()
    where, url = pods_in(team), f"sqlite:///{tmp_path / 'live.db'}"
    made = tenure("ledger", "init", "--ledger", url, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    service = Service(port=port, authority=identities.server / "ca.crt")
    with (
        extender(plane, url, identities, api=port, forked=True) as served,
        relay_to(port) as link,
    ):
        apply(plane, accounts())
        token = agents_token(plane, node)
        with plane.scheduler(asking(plane, served, identities)):
            first = ask(plane, where, "first")
            eventually(lambda: bound_to(plane, f"{where}/first") == node)
            status, held = service.call("/agents/v1/holdings", token)
            assert status == 200, held
            [holding] = held["holdings"]
            assert holding["pod_uid"] == first
            given = {key: holding[key] for key in ("pod_uid", "attempt", "containers")}
            eventually(lambda: confirmed(service, token, given))
            assert first in events_of(url, PodAssigned)

            second = ask(plane, where, "second")
            _, refused = eventually(lambda: events_of(url, RequestRefused).get(second))
            assert "Insufficient gpu devices" in refused.message
            why_waits(plane, team, url, tmp_path)
            remove_pods(plane, where, ["first"])
            unconfirmed = 'tenure_scheduler_view{what="unconfirmed"} 1.0'
            eventually(lambda: unconfirmed in served.probe("metrics"))
            assert not events_of(url, PodReleased)
            answers = [
                service.call("/agents/v1/confirmations", each, {"gone": [first]})
                for each in (token_of(plane, AGENT), token_of(plane, OPERATOR))
            ]
            assert [each for each, _ in answers] == [403, 403]
            check_waits_without_link(service, link, token, first)
            assert unconfirmed in served.probe("metrics")
            assert not events_of(url, PodReleased)
            status, body = service.call("/agents/v1/confirmations", token, {"gone": [first]})
            assert (status, body["gone"][0]["result"]) == (200, "noted")
            eventually(lambda: bound_to(plane, f"{where}/second") == node)

        place = Place(team=team, service=service, folder=tmp_path)
        nobody, operator = token, token_of(plane, OPERATOR)
        runs = place.force("second", operator)
        assert (runs.returncode, runs.stdout) == (1, ""), runs.stderr
        remove_pods(plane, where, ["second"])
        eventually(lambda: unconfirmed in served.probe("metrics"))
        place.check_forced(second, url, nobody=nobody, operator=operator)
        tell_refusals(plane, service, url, token)
        lose_lease(plane)
        eventually(lambda: served.probe("readyz").strip() == NOT_LEADER)
        answer = service.call("/agents/v1/holdings", token)
        assert answer[0] == 200, f"whoever records hears agents: {answer}"
    remove_pods(plane, pods_in(OURS), ["agent"])
    remove(plane, accounts())


def test_a_card_from_before_tenure_is_named_by_its_node_and_given_to_nobody(
    plane: ControlPlane, namespace: Callable[..., str], identities: Identities, tmp_path: Path
) -> None:
    """
    A Pod that a plain device plugin gave a whole card says nowhere which: its agent does.

    What the agent keeps of the ledger shows an older copy that is put back under the service.
    """
    team, port, name = namespace(managed=False), free_port(), "before"
    where, url = pods_in(team), f"sqlite:///{tmp_path / 'live.db'}"
    for kind, title in ((DEVICES, "Device"), (TOPOLOGIES, "NodeResourceTopology")):
        know(plane, kind, title)
    add_gpu_node(plane, name, gpus=2)
    made = plane.api().create(where, pod("old", {"nvidia.com/gpu": "1"}, nodeName=name))
    assert made.ok, made.message
    old = str(made.body["metadata"]["uid"])
    assert tenure("ledger", "init", "--ledger", url, cwd=tmp_path).returncode == 0
    service = Service(port=port, authority=identities.server / "ca.crt")
    with extender(plane, url, identities, api=port, forked=True) as served:
        apply(plane, accounts())
        token = agents_token(plane, name)
        with plane.scheduler(asking(plane, served, identities)):
            devices = [
                {"container": "main", "resource": "nvidia.com/gpu", "ids": [f"GPU-{name}-1"]}
            ]
            seen = {"pod_uid": old, "namespace": team, "pod_name": "old", "devices": devices}
            eventually(lambda: observed(service, token, seen) == "observed")
            event = events_of(url, PodObserved)[old][1]
            assert [each.device_id for each in event.shares] == [f"GPU-{name}-1"]
            with (
                closing(sqlite3.connect(tmp_path / "live.db")) as now,
                closing(sqlite3.connect(tmp_path / "early.db")) as copy,
            ):
                now.backup(copy)
            first, second = (ask(plane, where, each) for each in ("first", "second"))
            eventually(lambda: {first, second} & events_of(url, RequestRefused).keys())
            given = events_of(url, PodReserved)
            assert [[card.device_id for card in one.shares] for _, one in given.values()] == [
                [f"GPU-{name}-0"]
            ]
            remove_pods(plane, where, ["old"])
            unconfirmed = 'tenure_scheduler_view{what="unconfirmed"} 1.0'
            eventually(lambda: unconfirmed in served.probe("metrics"))
            assert len(events_of(url, PodReserved)) == 1
            assert observed(service, token, seen) == "observed"
            assert service.call("/agents/v1/confirmations", token, {"gone": [old]})[0] == 200
            eventually(lambda: len(events_of(url, PodReserved)) == 2)
        status, shown = service.call("/agents/v1/checkpoint", token, {"kept": ""})
        assert (status, shown["consistency"]) == (200, None)
        kept = {"kept": shown["checkpoint"]}
        assert service.call("/agents/v1/checkpoint", token, kept)[1]["consistency"] is not None
        put_back(tmp_path / "early.db", tmp_path / "live.db")
        eventually(
            lambda: service.call("/agents/v1/checkpoint", token, kept)[1].get("consistency") is None
        )
        lacks = "LedgerRecovering: the ledger lacks positions"
        eventually(lambda: lacks in served.probe("readyz"))
        status, answer = service.call("/agents/v1/holdings", token)
        assert (status, lacks in answer["message"]) == (503, True)
    remove_pods(plane, where, ["first", "second"])
    remove_pods(plane, pods_in(OURS), ["agent"])
    remove(plane, accounts())
    remove_node(plane, name)


def put_back(copy: Path, ledger: Path) -> None:
    """Let an older copy be where the ledger is, which the service writes to."""
    for suffix in ("-wal", "-shm"):
        ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)
    copy.replace(ledger)


def observed(service: Service, token: str, seen: dict[str, Any]) -> str:
    """Say what a Pod has that others gave it; return what came of it."""
    status, body = service.call("/agents/v1/confirmations", token, {"observed": [seen]})
    return str(body["observed"][0]["result"]) if status == 200 else ""


def check_waits_without_link(service: Service, link: Relay, token: str, gone: str) -> None:
    """The node can't say what it has to, over a link that ends calls and one that swallows them."""
    near = replace(service, port=link.port)
    for fault, seconds in ((link.cut, 30.0), (link.fallen_silent, 1.0)):
        with fault(), pytest.raises(OSError, match=r"refused|reset|closed|EOF|timed out"):
            near.call("/agents/v1/confirmations", token, {"gone": [gone]}, seconds=seconds)


def why_waits(plane: ControlPlane, team: str, url: str, folder: Path) -> None:
    """Ask the ledger, and look at what the Pods were told."""
    why = tenure("why", f"{team}/second", "--ledger", url, cwd=folder)
    assert why.returncode == 0, why.stderr
    assert "Insufficient gpu devices" in why.stdout
    told = f"/apis/events.k8s.io/v1/namespaces/{team}/events"
    wanted = {"DevicesRefused", "DevicesBound"}
    eventually(lambda: wanted <= reasons(plane.api().get(told).body))


def lose_lease(plane: ControlPlane) -> None:
    """Let somebody else have the Lease, who never takes the ledger over."""
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{OURS}/leases/tenure-scheduler"
    taken = plane.api().patch(lease, {"spec": {"holderIdentity": "somebody"}})
    assert taken.ok, taken.message


def tell_refusals(plane: ControlPlane, service: Service, url: str, other: str) -> None:
    """Tell of a refusal with the webhook's token, and with another."""
    violation = {"rule": "DevicePercent", "field": "spec", "message": "no"}
    words = {"uid": "review", "kind": "Pod", "namespace": "ml", "name": "x", "user": "ada"}
    body = {"refusals": [{**words, "violations": [violation]}]}
    assert service.call("/webhook/v1/refusals", other, body)[0] == 403
    webhook = token_of(plane, WEBHOOK)
    assert service.call("/webhook/v1/refusals", webhook, body)[0] == 200
    assert events_of(url, RequestRefused)["review"][1].stage == "admission"


def ask(plane: ControlPlane, where: str, name: str) -> str:
    """Create a Pod that asks for the card; return its UID."""
    made = plane.api().create(where, pod(name, GPU, schedulerName="tenure"))
    assert made.ok, made.message
    return str(made.body["metadata"]["uid"])


def bound_to(plane: ControlPlane, path: str) -> str:
    """Return the node of a Pod, empty without one."""
    return str(plane.api().get(path).body["spec"].get("nodeName") or "")


def confirmed(service: Service, token: str, given: dict[str, Any]) -> bool:
    """Say what was given; tell whether it is recorded, as once the Pod is known to be bound."""
    _, body = service.call("/agents/v1/confirmations", token, {"assigned": [given]})
    return bool(body["assigned"][0]["result"] == "assigned")


def reasons(events: dict[str, Any]) -> set[str]:
    """Return what a list of Events says."""
    return {one["reason"] for one in events["items"]}
