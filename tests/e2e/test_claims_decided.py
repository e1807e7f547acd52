"""What the gate decides of single claims, before a real API server and stock kube-schedulers."""

from __future__ import annotations

import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.domain.log.events import RequestRefused
from ledger.domain.log.state import Holding
from ledger.store.open import open_ledger
from ledger.store.reading.kept import events_of
from ledger.store.reading.timetravel import load_state
from tests.support.kube.api import Api, Reply
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ADMIN, CALLING, ControlPlane, free_port
from tests.support.kube.dra import (
    DRIVER,
    GROUP,
    SCHEDULERS,
    add_claim_node,
    add_class,
    asked,
    bound_in,
    claiming,
    claims_in,
    forged,
    held,
    remove_claims,
    request,
    settled_claims,
    slice_of,
    stock_schedulers,
    submit,
)
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import binding, pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    extender,
    remove_node,
)
from tests.support.process import tenure

PARTS: Final = 4
CUT_NODES: Final = 3
NODES: Final = ("plain", "shared-with-pods", *(f"cut-{number}" for number in range(CUT_NODES)))
Namespace = Callable[..., str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A cluster with a gate that is asked."""

    plane: ControlPlane
    ledger: str
    served: Served
    gate: int
    authority: Path

    def review(self, claim: Mapping[str, Any], **words: object) -> bool | int:
        """Return whether a card may be stored for a claim of these words, or an HTTP status."""
        old = {**claim, "metadata": {**claim["metadata"], **words}}
        request = {"uid": "r", "oldObject": old, "object": {**old, "status": forged("plain", 0)}}
        tls = ssl.create_default_context(cafile=str(self.authority))
        tls.load_cert_chain(self.plane.folder / CALLING)
        body, kind = json.dumps({"request": request}).encode(), {"Content-Type": "application/json"}
        asking = urllib.request.Request(f"https://127.0.0.1:{self.gate}/claims", body, kind)
        try:
            with urllib.request.urlopen(asking, timeout=20, context=tls) as said:
                return bool(json.loads(said.read())["response"]["allowed"])
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code

    @property
    def api(self) -> Api:
        """Return an administrator's client."""
        return self.plane.api()

    def claim(self, where: str, name: str, **what: Any) -> None:  # noqa: ANN401 - as `request`
        """Make a claim."""
        made = self.api.create(
            claims_in(where), {"metadata": {"name": name}, "spec": request(**what)}
        )
        assert made.ok, made.message

    def write(self, where: str, name: str, status: Mapping[str, object]) -> Reply:
        """Write a claim's status, as an administrator."""
        path = f"{claims_in(where)}/{name}"
        body = {**self.api.get(path).body, "status": status}
        return self.api.replace(f"{path}/status", body)

    def holders(self, where: str) -> dict[str, Holding]:
        """Return what a namespace's claims hold by the ledger, by name."""
        with open_ledger(self.ledger, mode="read") as opened:
            state = load_state(opened).state
        return {
            one.pod_name: one
            for node in state.nodes.values()
            for one in node.claims.values()
            if one.namespace == where
        }

    def cards(self, where: str) -> dict[str, list[str]]:
        """Return the cards that a namespace's claims hold by the ledger, by name."""
        return {
            name: [each.device_id for each in one.shares if each.device_type == "gpu"]
            for name, one in self.holders(where).items()
        }


@pytest.fixture(scope="module")
def scene(
    plane: ControlPlane, identities: Identities, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """Nodes of each kind, two stock schedulers, and the gate."""
    folder = tmp_path_factory.mktemp("decided")
    ledger = f"sqlite:///{folder / 'live.db'}"
    made = tenure("ledger", "init", "--ledger", ledger, cwd=folder)
    assert made.returncode == 0, made.stderr
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_class(plane)
    for kind in ("gpu", "mig"):
        add_kind(plane, kind)
    add_claim_node(plane, "plain")
    add_gpu_node(plane, "shared-with-pods")
    add_slices(plane, slice_of("shared-with-pods"))
    for number in range(CUT_NODES):
        add_cut_node(plane, f"cut-{number}")
    with contextlib.ExitStack() as stack:
        port = free_port()
        served = stack.enter_context(
            extender(plane, ledger, identities, gate=port, drivers=[DRIVER])
        )
        stack.enter_context(asked(plane, identities, port))
        stack.enter_context(stock_schedulers(plane))
        authority = identities.server / "ca.crt"
        yield Scene(plane=plane, ledger=ledger, served=served, gate=port, authority=authority)
    for name in NODES:
        remove_node(plane, name)
    for one in plane.api().get(f"{GROUP}/resourceslices").body["items"]:
        plane.api().delete(f"{GROUP}/resourceslices/{one['metadata']['name']}")


def add_kind(plane: ControlPlane, kind: str) -> None:
    """Make a class of the driver's devices of one type that are cut, or may be."""
    wanted = f'device.driver == "{DRIVER}" && "cut" in device.attributes["{DRIVER}"]'
    wanted += f' && device.attributes["{DRIVER}"].type == "{kind}"'
    body = {
        "metadata": {"name": f"{kind}.example.com"},
        "spec": {"selectors": [{"cel": {"expression": wanted}}]},
    }
    made = plane.api().create(f"{GROUP}/deviceclasses", body)
    assert made.status in (201, 409), made.message


def add_slices(plane: ControlPlane, *slices: Mapping[str, Any]) -> None:
    """Make slices."""
    for one in slices:
        made = plane.api().create(f"{GROUP}/resourceslices", one)
        assert made.ok, made.message


def add_cut_node(plane: ControlPlane, name: str) -> None:
    """Make a Node with one card that is given whole or in parts, by counters."""
    add_claim_node(plane, name, cards=0)
    plane.api().delete(f"{GROUP}/resourceslices/{name}-{DRIVER}")

    def device(called: str, kind: str, memory: range, **attributes: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
        said = {"type": {"string": kind}, "cut": {"bool": True}, **attributes}
        counters = {f"memory-{number}": {"value": "1"} for number in memory}
        return {
            "name": called,
            "attributes": said,
            "capacity": {"memory": {"value": f"{4 * len(memory)}Gi"}},
            "consumesCounters": [{"counterSet": "card", "counters": counters}],
        }

    card = f"GPU-{name}-0"
    devices = [device("gpu-0", "gpu", range(PARTS), uuid={"string": card})]
    devices += [
        device(
            f"part-{number}",
            "mig",
            range(number, number + 1),
            uuid={"string": f"MIG-{name}-{number}"},
            parentUUID={"string": card},
        )
        for number in range(PARTS)
    ]
    counters = {f"memory-{number}": {"value": "1"} for number in range(PARTS)}
    shared = {"sharedCounters": [{"name": "card", "counters": counters}]}
    for suffix, content in (("counters", shared), ("devices", {"devices": devices})):
        body = slice_of(name)
        body["metadata"]["name"] = f"{name}-{suffix}"
        del body["spec"]["devices"]
        body["spec"] |= content
        body["spec"]["pool"]["resourceSliceCount"] = 2
        add_slices(plane, body)


def test_a_claim_that_pods_share_is_one_holder(scene: Scene, namespace: Namespace) -> None:
    """It holds once, for both, until the last of them has ended."""
    where = namespace()
    scene.claim(where, "both")
    submit(scene.plane, where, [claiming(name, claim="both") for name in "ab"])
    eventually(lambda: len(bound_in(scene.api, where)) == 2)
    eventually(lambda: users(scene, where) == {"a", "b"})
    assert len(scene.cards(where)["both"]) == 1

    scene.api.delete(f"{pods_in(where)}/a")
    eventually(lambda: users(scene, where) == {"b"})
    scene.api.delete(f"{pods_in(where)}/b")
    eventually(lambda: not scene.holders(where))


def users(scene: Scene, where: str) -> set[str]:
    """Return who uses the claim `both`, by the ledger."""
    held = scene.holders(where).get("both")
    return set() if held is None else {one.name for one in held.consumers}


def test_one_claim_of_several_refused_holds_what_the_others_have(
    scene: Scene, namespace: Namespace
) -> None:
    """Its Pod waits; the claim that was stored holds on when the Pod is gone, till it goes too."""
    where, node = namespace(managed=False), "shared-with-pods"
    card = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
    words = json.dumps({"gpu": [{"minor": 0, "resources": card}]})
    said = {"scheduling.koordinator.sh/device-allocated": words}
    old = pod("old", {"nvidia.com/gpu": "1"}, annotations=said, schedulerName="nobody")
    assert scene.api.create(pods_in(where), old).ok
    assert scene.api.create(f"{pods_in(where)}/old/binding", binding("old", node)).ok
    scene.claim(where, "free", uuid=f"GPU-{node}-1")
    scene.claim(where, "taken", uuid=f"GPU-{node}-0")
    wants = claiming("train", claim="free")
    wants["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": "taken"})
    wants["spec"]["containers"][0]["resources"]["claims"].append({"name": "more"})
    eventually(lambda: f"{where}/old" in ask(scene, "who", f"{node}/0"))
    submit(scene.plane, where, [wants])

    eventually(lambda: f"held by Pod {where}/old" in refusals(scene))
    assert not bound_in(scene.api, where)[1:]
    eventually(lambda: scene.cards(where) == {"free": [f"GPU-{node}-1"]})
    scene.api.delete(f"{pods_in(where)}/train")
    eventually(lambda: not scene.holders(where)["free"].consumers)
    assert scene.cards(where) == {"free": [f"GPU-{node}-1"]}

    scene.claim(where, "any")  # its first fit is the card of the Pod that claims know nothing of
    placed = claiming("next", claim="any")
    placed["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    submit(scene.plane, where, [placed])
    eventually(lambda: len(bound_in(scene.api, where)) == 2)
    assert scene.cards(where)["any"] not in ([f"GPU-{node}-0"], [f"GPU-{node}-1"])
    scene.api.delete(f"{pods_in(where)}/old")
    remove_claims(scene.plane, where)
    eventually(lambda: not scene.holders(where))


def refusals(scene: Scene) -> str:
    """Return what the ledger has of what was refused, as it is recorded."""
    with open_ledger(scene.ledger, mode="read") as opened, opened.connection.begin():
        return str([one.message for one in events_of(opened.connection, RequestRefused)])


def ask(scene: Scene, *words: str) -> str:
    """Return what the ledger answers to a question."""
    return tenure(*words, "--ledger", scene.ledger, cwd=Path(scene.plane.folder)).stdout


def test_a_pool_counts_by_its_newest_whole_generation(scene: Scene, namespace: Namespace) -> None:
    """Renumbered, being replaced, gone: a name means the card that it names now, or none."""
    where, api = namespace(), scene.api
    for name in ("between", "renumbered", "gone"):
        scene.claim(where, name)
    place = f"{GROUP}/resourceslices/plain-{DRIVER}"
    first = api.get(place).body
    newer = slice_of("plain", generation=2)
    for one, uuid in zip(newer["spec"]["devices"], ("1", "0"), strict=False):
        one["attributes"]["uuid"]["string"] = f"GPU-plain-{uuid}"
    newer["spec"]["pool"]["resourceSliceCount"] = 2
    newer["metadata"]["name"] = "plain-newer"
    rest = {**newer, "metadata": {"name": "plain-rest"}, "spec": {**newer["spec"], "devices": []}}
    add_slices(scene.plane, newer)
    eventually(lambda: "DeviceUnlisted" in dry(scene, where, "between").message)
    refused = scene.write(where, "between", forged("plain", 0))
    assert (refused.status, "DeviceUnlisted" in refused.message) == (409, True)

    add_slices(scene.plane, rest)
    api.delete(place)
    eventually(lambda: dry(scene, where, "between").ok)
    assert scene.write(where, "renumbered", forged("plain", 0)).ok
    (card,) = eventually(partial(scene.cards, where))["renumbered"]
    assert card == given_name(api, where, "renumbered", newer)

    for name in ("plain-newer", "plain-rest"):
        api.delete(f"{GROUP}/resourceslices/{name}")
    eventually(lambda: "DeviceUnlisted" in dry(scene, where, "gone").message)
    assert scene.write(where, "gone", forged("plain", 1)).status == 409
    assert scene.cards(where) == {"renumbered": [card]}, "what is held stays held"
    assert scene.write(where, "renumbered", {}).ok
    eventually(lambda: not scene.holders(where))
    made = {key: first["metadata"][key] for key in ("name",)}
    add_slices(scene.plane, {**first, "metadata": made})


def test_forged_reviews_take_no_card_and_bar_no_claim(scene: Scene, namespace: Namespace) -> None:
    """Of no claim, or of one at a version that it has not come to; whoever sends them may call."""
    where = namespace()
    scene.claim(where, "real")
    real = scene.api.get(f"{claims_in(where)}/real").body

    for word, names in {
        "name": ("UPPER_CASE%zz", "../../../../../../api/v1/nodes/plain"),
        "namespace": ("../nodes", ""),
        "uid": ("../x",),
        "resourceVersion": ("9" * 5_000, "-1"),
    }.items():
        assert {scene.review(real, **{word: name}) for name in names} == {400}, word
    for words in ({"name": "none"}, {"uid": "none"}, {"resourceVersion": str(10**15)}):
        assert scene.review(real, **words) is False

    assert scene.holders(where) == {}
    assert scene.write(where, "real", forged("plain", 0)).ok
    eventually(lambda: list(scene.cards(where)) == ["real"])
    assert scene.write(where, "real", {}).ok
    eventually(lambda: not scene.holders(where))


def dry(scene: Scene, where: str, name: str) -> Reply:
    """Return what would be answered to a card's allocation."""
    path = f"{claims_in(where)}/{name}"
    body = {**scene.api.get(path).body, "status": forged("plain", 0)}
    return scene.api.replace(f"{path}/status?dryRun=All", body)


def given_name(api: Api, where: str, name: str, told: Mapping[str, Any]) -> str:
    """Return the id of the card that a claim was given, by the slice that names it."""
    status = api.get(f"{claims_in(where)}/{name}").body["status"]
    device = status["allocation"]["devices"]["results"][0]["device"]
    ids = {one["name"]: one["attributes"]["uuid"]["string"] for one in told["spec"]["devices"]}
    return str(ids[device])


def test_more_than_a_card_has_is_refused_whoever_writes_it(
    scene: Scene, namespace: Namespace
) -> None:
    """Two shares of one claim that are more than the card, and a share of nothing."""
    where = namespace()
    scene.claim(where, "twice")
    status = forged("shared-with-pods", 3)
    results = status["allocation"]["devices"]["results"]
    other = {**results[0], "shareID": "c3803050-d2e8-4c9d-9dff-44bd85bb3b82"}
    status["allocation"]["devices"]["results"] = [*results, other]
    refused = scene.write(where, "twice", status)
    assert (refused.status, "DeviceClosed" in refused.message) == (409, True), refused.message

    status = forged("shared-with-pods", 3)
    status["allocation"]["devices"]["results"][0]["consumedCapacity"]["memory"] = "0"
    refused = scene.write(where, "twice", status)
    assert (refused.status, "ZeroShare" in refused.message) == (409, True), refused.message
    assert not scene.holders(where)


def test_the_doctor_proves_the_way_by_a_dry_run(scene: Scene) -> None:
    """Through the API server and back, reserving nothing; and says what is not as it should be."""
    config = str(scene.plane.kubeconfig(ADMIN))
    words = ("doctor", "--kubeconfig", config, "-o", "json")
    done = tenure(*words, "--driver", DRIVER, cwd=scene.plane.folder)
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the gate answered: NodeUnknown" in found["dry run"]["says"]
    assert {found[each]["state"] for each in ("configuration", "authority", "own Pods")} == {"ok"}
    assert found["callers"]["state"] == "not known"
    assert not scene.api.get(claims_in("tenure-system")).body["items"]

    other = tenure(*words, "--driver", "gpu.nvidia.com", cwd=scene.plane.folder)
    assert (other.returncode, "the service guards gpu.nvidia.com" in other.stdout) == (1, True)


def test_a_card_and_its_partitions_are_never_both_given(scene: Scene, namespace: Namespace) -> None:
    """Two schedulers give out the same cards, one whole and one in parts."""
    where = namespace()
    for kind in ("gpu", "mig"):
        body = {
            "metadata": {"name": kind},
            "spec": {"spec": request(driver=f"{kind}.example.com")},
        }
        path = f"{GROUP}/namespaces/{where}/resourceclaimtemplates"
        assert scene.api.create(path, body).ok
    pods = [
        claiming(f"{kind}-{number}-{place}", template=kind, scheduler=name)
        for number in range(CUT_NODES)
        for kind in ("gpu", "mig")
        for place, name in enumerate(SCHEDULERS)
    ]
    submit(scene.plane, where, pods)
    settled_claims(scene.plane, where, most=len(pods))
    found: dict[str, list[str]] = {}
    for claim in scene.api.get(claims_in(where)).body["items"]:
        allocation = claim.get("status", {}).get("allocation", {})
        for one in allocation.get("devices", {}).get("results", ()):
            found.setdefault(one["pool"], []).append(one["device"])
    assert found
    for pool, devices in found.items():
        assert len(devices) == len(set(devices)), found
        if pool.startswith("cut-"):  # others have more cards than one
            assert devices == ["gpu-0"] or "gpu-0" not in devices, found
    remove_claims(scene.plane, where)
    eventually(lambda: not held(scene.ledger))
