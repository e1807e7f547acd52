"""Pods of every dialect that are given claims: the default kube-scheduler binds them alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from ledger.domain.request.normalise import decode_pod
from ledger.store.open import open_ledger
from ledger.store.reading.timetravel import load_state
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.dra import (
    DRIVER,
    GROUP,
    SCHEDULERS,
    add_claim_node,
    add_class,
    asked,
    claims_in,
    request,
    slice_of,
    stock_schedulers,
)
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import Identities, extender
from tests.support.kube.webhooks import serving
from tests.support.mixed import node_with_device

Namespace = Callable[..., str]
Share = tuple[str, int, int, bool]

NODE = "by-claims"
USE_ID = {"nvidia.com/use-gpuuuid": f"GPU-{NODE}-2"}
EXTENDED = "example.com/card"
VOLCANO = "vke.volcengine.com/mgpu"

DIALECTS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "whole": ({"nvidia.com/gpu": "2"}, {}),
    "bytes": ({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "4Gi"}, {}),
    "ratio": ({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}, {}),
    "two-shared": (
        {
            "koordinator.sh/gpu.shared": "2",
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory-ratio": "100",
        },
        {},
    ),
    "percent": ({"koordinator.sh/gpu": "200"}, {}),
    "mgpu": ({f"{VOLCANO}-core": "30", f"{VOLCANO}-memory": "1024"}, {}),
    "gpushare": ({"aliyun.com/gpu-mem": "2048"}, {}),
    "hami": ({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "25"}, {}),
    "hami-id": ({"nvidia.com/gpumem": "2048"}, USE_ID),
}


def asking(name: str) -> dict[str, Any]:
    """Return a Pod as its user writes it."""
    amounts, annotations = DIALECTS[name]
    return pod(name, amounts, annotations=annotations)


def by_the_extender(name: str) -> list[Share]:
    """Return what the extender gives a Pod of the same cards."""
    engine = Engine([node_with_device(NODE)], SchedulingSettings())
    answer = engine.decide(decode_pod(asking(name)), ordinal=0)
    assert isinstance(answer, Placement), answer
    return sorted(
        (one.device_id, one.core_percent, one.memory_bytes, one.exclusive) for one in answer.shares
    )


def held(ledger: str) -> list[Share]:
    """Return what claims hold of cards, by the ledger."""
    with open_ledger(ledger, mode="read") as opened:
        state = load_state(opened).state
    return sorted(
        (share.device_id, share.core_percent, share.memory_bytes, share.exclusive)
        for node in state.nodes.values()
        for holding in node.claims.values()
        for share in holding.shares
    )


@pytest.fixture(scope="module", autouse=True)
def cards(plane: ControlPlane) -> Iterator[None]:
    """Eight cards that a driver gives in parts, of which a part may have no cores."""
    add_class(plane)
    named = {"spec": {"extendedResourceName": EXTENDED}}
    assert plane.api().patch(f"{GROUP}/deviceclasses/{DRIVER}", named).ok
    add_claim_node(plane, NODE, cards=0)
    body = slice_of(NODE)
    for one in body["spec"]["devices"]:
        one["capacity"]["cores"]["requestPolicy"]["validRange"]["min"] = "0"
    path = f"{GROUP}/resourceslices"
    plane.api().delete(f"{path}/{body['metadata']['name']}")
    made = plane.api().create(path, body)
    assert made.ok, made.message
    labels = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    assert plane.api().patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": labels}}).ok
    yield
    plane.api().delete(f"/api/v1/nodes/{NODE}")
    plane.api().delete(f"{GROUP}/deviceclasses/{DRIVER}")
    plane.api().delete(f"{path}/{body['metadata']['name']}")


def words(plane: ControlPlane, where: str, name: str) -> str:
    """Return why a Pod waits."""
    events = plane.api().get(f"/api/v1/namespaces/{where}/events").body["items"]
    found = [one["message"] for one in events if one["involvedObject"]["name"] == name]
    claims = plane.api().get(claims_in(where)).body["items"]
    return f"{found[-3:]} {claims}"


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_every_dialects_pod_is_bound_by_the_default_scheduler_alone(
    plane: ControlPlane, namespace: Namespace, ledger: str, identities: Identities
) -> None:
    """With the shares in the accounts that the extender would give it; and gives them back."""
    port = free_port()
    where = namespace(**{"tenure.sh/mode": "dra"})
    api, path = plane.api(), pods_in(where)
    with (
        serving(plane),
        extender(plane, ledger, identities, gate=port, drivers=[DRIVER]) as served,
        asked(plane, identities, port),
        stock_schedulers(plane, SCHEDULERS[:1]),
    ):

        def is_bound(name: str) -> bool:
            return bool(api.get(f"{path}/{name}").body["spec"].get("nodeName"))

        for name in DIALECTS:
            made = api.create(path, asking(name))
            assert made.ok, made.message
            assert made.body["spec"]["schedulerName"] == "default-scheduler"
            try:
                eventually(partial(is_bound, name))
            except AssertionError as error:
                raise AssertionError(words(plane, where, name) + served.words()) from error
            assert held(ledger) == by_the_extender(name), name
            sys.stderr.write(f"{name}: {held(ledger)}\n")
            api.delete(f"{path}/{name}?gracePeriodSeconds=0")
            eventually(lambda: not held(ledger))

        refuses_another_template(plane, where, ledger)
        eventually(lambda: not held(ledger))

        open_to_all = namespace(managed=False)
        extended = pods_in(open_to_all)
        made = api.create(extended, pod("plain", {EXTENDED: "1"}))
        assert made.ok, made.message
        eventually(lambda: bool(api.get(f"{extended}/plain").body["spec"].get("nodeName")))
        assert [share[1] for share in held(ledger)] == [100], "by nobody's words but kube-scheduler"
        api.delete(f"{extended}/plain?gracePeriodSeconds=0")
        eventually(lambda: not held(ledger))


def refuses_another_template(plane: ControlPlane, where: str, ledger: str) -> None:
    """Somebody makes the template that a Pod will name, for more than the Pod asks for."""
    api, templates = plane.api(), f"{GROUP}/namespaces/{where}/resourceclaimtemplates"
    probe = api.create(f"{pods_in(where)}?dryRun=All", pod("p", {"nvidia.com/gpu": "3"})).body
    name = probe["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    spec = {**request(count=5)}
    spec["devices"]["requests"][0]["name"] = "g0"
    made = api.create(templates, {"metadata": {"name": name}, "spec": {"spec": spec}})
    assert made.ok, made.message
    assert api.create(pods_in(where), pod("p", {"nvidia.com/gpu": "3"})).ok
    eventually(lambda: "TemplateNotOurs" in words(plane, where, "p"))
    assert not held(ledger)
    api.delete(f"{pods_in(where)}/p?gracePeriodSeconds=0")
    api.delete(f"{templates}/{name}")
