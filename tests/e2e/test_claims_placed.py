"""Which cards the gate stores for claims that a stock kube-scheduler placed by first fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.support.kube.api import Api
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.dra import (
    DRIVER,
    GROUP,
    SCHEDULERS,
    SHARE,
    WHOLE,
    add_class,
    add_slice,
    add_templates,
    asked,
    bound_in,
    claiming,
    claims_in,
    given,
    remove_claims,
    settled_claims,
    stock_schedulers,
    submit,
)
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    extender,
    remove_node,
)

NODE: Final = "placed"
CARDS: Final = 4
Namespace = Callable[..., str]


@pytest.fixture
def node(plane: ControlPlane) -> Iterator[str]:
    """A node whose cards a Device object and a driver's slice tell of."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_class(plane)
    add_gpu_node(plane, NODE, gpus=CARDS)
    add_slice(plane, NODE, cards=CARDS)
    yield NODE
    plane.api().delete(f"{GROUP}/resourceslices/{NODE}-{DRIVER}")
    remove_node(plane, NODE)


def hold(api: Api, where: str, minor: int) -> None:
    """Let a Pod that another scheduler placed have a whole card: claims know nothing of it."""
    amounts = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
    card = {"minor": minor, "resources": amounts}
    said = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [card]})}
    made = api.create(pods_in(where), pod("before", amounts, annotations=said, nodeName=NODE))
    assert made.ok, made.message


def written(served: Served, what: str) -> float:
    """Return how many writes of claims were answered so."""
    line = f'tenure_claim_writes_total{{what="{what}"}} '
    return float(served.probe("metrics").partition(line)[2].partition("\n")[0] or 0)


def refusals(api: Api, where: str) -> list[str]:
    """Return what Pods were told of their claims."""
    items = api.get(f"/apis/events.k8s.io/v1/namespaces/{where}/events").body["items"]
    return [each["note"] for each in items if each["reason"] == "DevicesRefused"]


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_a_card_with_a_holder_whom_claims_do_not_know_is_passed_over_at_once(
    plane: ControlPlane, namespace: Namespace, ledger: str, identities: Identities, node: str
) -> None:
    """The first card of the pool is held: without being refused once, the Pods get the others."""
    where, elsewhere, port = namespace(managed=False), namespace(managed=False), free_port()
    api = plane.api()
    add_templates(plane, where)
    hold(api, elsewhere, 0)
    with (
        extender(plane, ledger, identities, gate=port, drivers=[DRIVER]) as served,
        asked(plane, identities, port),
        stock_schedulers(plane, SCHEDULERS[:1]),
    ):
        submit(plane, where, [claiming(f"p-{each}", template=WHOLE) for each in range(CARDS)])
        settled_claims(plane, where, most=CARDS - 1)

        eventually(lambda: len(bound_in(api, where)) == CARDS - 1)
        assert sorted(given(api, where)) == [(node, f"gpu-{each}") for each in range(1, CARDS)]
        assert written(served, "granted on another device") >= 1
        holder = f"held by Pod {elsewhere}/before"
        eventually(lambda: any(holder in note for note in refusals(api, where)))
        assert len({note.split()[1] for note in refusals(api, where)}) == 1, "the last one alone"

        api.delete(f"{pods_in(elsewhere)}/before?gracePeriodSeconds=0")
        eventually(lambda: len(bound_in(api, where)) == CARDS)
        remove_claims(plane, where)


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_parts_go_to_the_fuller_card(
    plane: ControlPlane, namespace: Namespace, ledger: str, identities: Identities, node: str
) -> None:
    """First fit would open the first card, which nobody has anything of."""
    where, port = namespace(managed=False), free_port()
    api = plane.api()
    add_templates(plane, where)
    with (
        extender(plane, ledger, identities, gate=port, drivers=[DRIVER]),
        asked(plane, identities, port),
        stock_schedulers(plane, SCHEDULERS[:1]),
    ):
        for number, kind in enumerate((WHOLE, SHARE), 1):
            submit(plane, where, [claiming(kind, template=kind)])
            settled_claims(plane, where, most=number)
        assert sorted(given(api, where)) == [(node, "gpu-0"), (node, "gpu-1")]
        api.delete(f"{pods_in(where)}/{WHOLE}?gracePeriodSeconds=0")
        eventually(lambda: sorted(given(api, where)) == [(node, "gpu-1")])

        submit(plane, where, [claiming("late", template=SHARE)])
        eventually(lambda: len(given(api, where).get((node, "gpu-1"), ())) == 2)

        assert sorted(given(api, where)) == [(node, "gpu-1")]
        remove_claims(plane, where)
        assert api.get(claims_in(where)).ok
