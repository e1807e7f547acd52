"""A cluster with dynamic resource allocation: a fake driver's cards, claims, stock schedulers."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import yaml

from ledger.store.open import open_ledger
from ledger.store.reading.timetravel import load_state
from tests.support.kube.api import Api, Reply
from tests.support.kube.control_plane import ControlPlane, Program
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import KUBE_SCHEDULER, Identities
from tests.support.kube.webhooks import apply, remove
from tests.support.manifests import printed

GROUP: Final = "/apis/resource.k8s.io/v1"
DRIVER: Final = "gpu.example.com"
OTHER_DRIVER: Final = "nic.example.com"
CARD_GIB: Final = 16
SCHEDULERS: Final = ("default-scheduler", "second-scheduler")
WHOLE: Final = "whole"
SHARE: Final = "share"
_MIB: Final = "1Mi"
_SENDERS: Final = 4
_TRIES_MAX: Final = 5
_GIVEN_BACK_SECONDS: Final = 1_200.0
"""The claim controller waits for up to 1,000 s between two tries, where calls of it fail."""


def claims_in(namespace: str) -> str:
    """Return the path of a namespace's claims."""
    return f"{GROUP}/namespaces/{namespace}/resourceclaims"


def add_claim_node(
    plane: ControlPlane, name: str, *, cards: int = 8, driver: str = DRIVER, generation: int = 1
) -> None:
    """Make a Node without a kubelet, and the slice in which a driver tells its cards."""
    made = plane.api().create("/api/v1/nodes", {"metadata": {"name": name}})
    assert made.ok, made.message
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
    assert plane.api().patch(f"/api/v1/nodes/{name}/status", status).ok
    add_slice(plane, name, cards=cards, driver=driver, generation=generation)


def add_slice(
    plane: ControlPlane, node: str, *, cards: int = 8, driver: str = DRIVER, generation: int = 1
) -> None:
    """Make the slice in which a driver tells a node's cards."""
    body = slice_of(node, cards=cards, driver=driver, generation=generation)
    made = plane.api().create(f"{GROUP}/resourceslices", body)
    assert made.ok, made.message


@contextlib.contextmanager
def some_cards(plane: ControlPlane, nodes: int, *, prefix: str) -> Iterator[None]:
    """Let there be so many Nodes with eight cards of one driver each until the block ends."""
    names = [f"{prefix}-{number}" for number in range(nodes)]
    add_class(plane)
    for name in names:
        add_claim_node(plane, name)
    try:
        yield
    finally:
        for name in names:
            plane.api().delete(f"/api/v1/nodes/{name}")
        for one in plane.api().get(f"{GROUP}/resourceslices").body["items"]:
            plane.api().delete(f"{GROUP}/resourceslices/{one['metadata']['name']}")


def slice_of(
    node: str, *, cards: int = 8, driver: str = DRIVER, generation: int = 1
) -> dict[str, Any]:
    """Return a slice with the cards of a node, which may be given in shares."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": [_card(node, number) for number in range(cards)],
        },
    }


def _card(node: str, number: int) -> dict[str, Any]:
    amounts = {"memory": (f"{CARD_GIB}Gi", _MIB), "cores": ("100", "1")}
    return {
        "name": f"gpu-{number}",
        "attributes": {
            "uuid": {"string": f"GPU-{node}-{number}"},
            "type": {"string": "gpu"},
            "productName": {"string": "T4"},
        },
        "allowMultipleAllocations": True,
        "capacity": {
            name: {
                "value": whole,
                "requestPolicy": {"default": whole, "validRange": {"min": least, "step": least}},
            }
            for name, (whole, least) in amounts.items()
        },
    }


def add_class(plane: ControlPlane, driver: str = DRIVER) -> None:
    """Make the class of a driver's devices, called as the driver."""
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    body = {"metadata": {"name": driver}, "spec": {"selectors": [selector]}}
    made = plane.api().create(f"{GROUP}/deviceclasses", body)
    assert made.status in (201, 409), made.message


def request(
    *,
    share: Mapping[str, str] | None = None,
    count: int = 1,
    driver: str = DRIVER,
    uuid: str = "",
) -> dict[str, Any]:
    """Return a claim's spec: so many cards, whole or this much of each, or the one with this id."""
    exactly: dict[str, Any] = {"deviceClassName": driver, "count": count}
    if share is not None:
        exactly["capacity"] = {"requests": dict(share)}
    if uuid:
        named = f'device.attributes["{driver}"].uuid == "{uuid}"'
        exactly["selectors"] = [{"cel": {"expression": named}}]
    return {"devices": {"requests": [{"name": "g", "exactly": exactly}]}}


def add_templates(plane: ControlPlane, namespace: str, driver: str = DRIVER) -> None:
    """Make the templates of a whole card and of a quarter."""
    quarter = {"memory": f"{CARD_GIB // 4}Gi", "cores": "25"}
    for name, spec in ((WHOLE, request(driver=driver)), (SHARE, request(share=quarter))):
        body = {"metadata": {"name": name}, "spec": {"spec": spec}}
        made = plane.api().create(f"{GROUP}/namespaces/{namespace}/resourceclaimtemplates", body)
        assert made.ok, made.message


def claiming(
    name: str, *, template: str = "", claim: str = "", scheduler: str = SCHEDULERS[0]
) -> dict[str, Any]:
    """Return a Pod that uses a claim of its own by a template, or this one."""
    source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
    made = pod(
        name,
        {},
        schedulerName=scheduler,
        resourceClaims=[{"name": "gpu", **source}],
    )
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return made


@contextlib.contextmanager
def stock_schedulers(
    plane: ControlPlane,
    names: Sequence[str] = SCHEDULERS,
    *arguments: str,
    backoff: int = 1,
    controllers: Sequence[str] = (),
) -> Iterator[list[Program]]:
    """
    Run stock kube-schedulers of these names, and the controller of claims, on one API server.

    Args:
        arguments: of each kube-scheduler.
        controllers: others that run beside that of claims.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(plane.claim_controller(*controllers))
        configured = [(name, _configuration(plane, name, backoff)) for name in names]
        programs = [
            stack.enter_context(plane.scheduler(config, *arguments, name=name))
            for name, config in configured
        ]
        for name in names:
            _wait_for(plane, name)
        yield programs


def _wait_for(plane: ControlPlane, scheduler: str) -> None:
    """Wait until a scheduler binds a Pod that asks for nothing."""
    path = pods_in("default")
    made = plane.api().create(path, pod(scheduler, {}, schedulerName=scheduler))
    assert made.ok, made.message
    until = time.monotonic() + 60
    while not plane.api().get(f"{path}/{scheduler}").body["spec"].get("nodeName"):
        assert time.monotonic() < until, f"it binds nothing: {scheduler}"
        time.sleep(0.1)
    plane.api().delete(f"{path}/{scheduler}")


def _configuration(plane: ControlPlane, name: str, backoff: int) -> Path:
    path = plane.folder / f"{name}.yaml"
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(plane.kubeconfig(KUBE_SCHEDULER)),
            "qps": 500,
            "burst": 1_000,
        },
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": backoff,
        "podMaxBackoffSeconds": 2 * backoff,
        "profiles": [{"schedulerName": name}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


@contextlib.contextmanager
def asked(
    plane: ControlPlane,
    identities: Identities,
    port: int,
    *,
    exempt: Sequence[str] = (),
    drivers: Sequence[str] = (DRIVER,),
) -> Iterator[None]:
    """
    Have the API server ask a gate at this port until the block ends.

    Args:
        exempt: namespaces that it asks nobody about, as platforms write into every configuration.
    """
    where = ("--url", f"https://127.0.0.1:{port}", "--ca", str(identities.server / "ca.crt"))
    objects = printed("dra", *where, *(f"--driver={one}" for one in drivers))
    if exempt:
        named = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [*exempt]}
        objects[0]["webhooks"][0]["namespaceSelector"] = {"matchExpressions": [named]}
    apply(plane, objects)
    try:
        yield
    finally:
        remove(plane, objects)


def submit(plane: ControlPlane, namespace: str, pods: Sequence[Mapping[str, Any]]) -> None:
    """Create Pods, several at a time, in about this order; again where nobody answered in time."""
    api, path = plane.api(), pods_in(namespace)

    def made(pod: Mapping[str, Any]) -> Reply:
        for again in range(_TRIES_MAX):
            reply = api.create(path, pod)
            if again and reply.status == HTTPStatus.CONFLICT:
                return api.get(f"{path}/{pod['metadata']['name']}")
            if reply.status != HTTPStatus.GATEWAY_TIMEOUT:
                break
        return reply

    with ThreadPoolExecutor(_SENDERS) as senders:
        for reply in senders.map(made, pods):
            assert reply.ok, reply.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What one claim has of one card."""

    claim: str
    whole: bool
    memory_bytes: int
    cores: int


def given(api: Api, namespace: str = "") -> dict[tuple[str, str], list[Given]]:
    """Return what the stored claims give of each card, by pool and device."""
    path = claims_in(namespace) if namespace else f"{GROUP}/resourceclaims"
    cards: dict[tuple[str, str], list[Given]] = defaultdict(list)
    for claim in api.get(path).body["items"]:
        allocation = claim.get("status", {}).get("allocation", {})
        for result in allocation.get("devices", {}).get("results", ()):
            consumed = result.get("consumedCapacity", {})
            memory, cores = _mib(consumed.get("memory", "0")), int(consumed.get("cores", "0"))
            cards[result["pool"], result["device"]].append(
                Given(
                    claim=claim["metadata"]["uid"],
                    whole=memory >= CARD_GIB << 10,
                    memory_bytes=memory << 20,
                    cores=cores,
                )
            )
    return cards


def forged(node: str, number: int, *, driver: str = DRIVER) -> dict[str, Any]:
    """Return a status that allocates a whole card, as kube-scheduler writes it."""
    result = {
        "request": "g",
        "driver": driver,
        "pool": node,
        "device": f"gpu-{number}",
        "shareID": "b3803050-d2e8-4c9d-9dff-44bd85bb3b81",
        "consumedCapacity": {"memory": f"{CARD_GIB}Gi", "cores": "100"},
    }
    named = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchFields": [named]}]}
    return {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}


def held(ledger: str) -> dict[tuple[str, str], int]:
    """Return how many bytes which claims hold of which cards, by the ledger."""
    with open_ledger(ledger, mode="read") as opened:
        state = load_state(opened).state
    return {
        (holding.pod_uid, share.device_id): share.memory_bytes
        for node in state.nodes.values()
        for holding in node.claims.values()
        for share in holding.shares
    }


def stored(plane: ControlPlane) -> dict[tuple[str, str], int]:
    """Return how many bytes which claims have of which cards, as they are stored."""
    return {
        (one.claim, f"GPU-{pool}-{device.rpartition('-')[2]}"): one.memory_bytes
        for (pool, device), there in given(plane.api()).items()
        for one in there
    }


def doubled(cards: Mapping[tuple[str, str], Sequence[Given]]) -> list[tuple[str, str]]:
    """Return the cards of which more is given than they have."""
    most = CARD_GIB << 30
    return sorted(
        card
        for card, held in cards.items()
        if sum(each.memory_bytes for each in held) > most or sum(each.cores for each in held) > 100
    )


def _mib(text: str) -> int:
    units = {"Mi": 1, "Gi": 1 << 10}
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units else int(text) >> 20


def bound_in(api: Api, namespace: str) -> list[dict[str, Any]]:
    """Return the Pods of a namespace that have a node."""
    items = api.get(pods_in(namespace)).body["items"]
    return [one for one in items if one["spec"].get("nodeName")]


def settled_claims(
    plane: ControlPlane, namespace: str, *, most: int, quiet: float = 3.0, seconds: float = 90.0
) -> int:
    """Return how many Pods are bound, once all are or none was bound for a while."""
    until, last, since = time.monotonic() + seconds, -1, time.monotonic()
    while time.monotonic() < until:
        bound = len(bound_in(plane.api(), namespace))
        if bound != last:
            last, since = bound, time.monotonic()
        if bound >= most or (bound and time.monotonic() - since > quiet):
            return bound
        time.sleep(0.1)
    raise AssertionError(f"it does not come to rest: bound={last}")


def remove_claims(plane: ControlPlane, namespace: str) -> None:
    """
    Delete the Pods of a namespace with their claims, and wait until these are given back.

    Claims that kube-scheduler was about to use are left to the garbage collector, which is not run.
    """
    api = plane.api()
    for one in api.get(pods_in(namespace)).body["items"]:
        api.delete(f"{pods_in(namespace)}/{one['metadata']['name']}")
    for one in api.get(claims_in(namespace)).body["items"]:
        api.delete(f"{claims_in(namespace)}/{one['metadata']['name']}")
    until = time.monotonic() + _GIVEN_BACK_SECONDS
    while any(
        one.get("status", {}).get("allocation")
        for one in api.get(claims_in(namespace)).body["items"]
    ):
        assert time.monotonic() < until, "claims are held on"
        time.sleep(0.1)
