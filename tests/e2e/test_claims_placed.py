"""Which cards the gate stores for claims that a stock kube-scheduler placed by first fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from scheduler.service.tainting import rules_path
from tests.support.kube.api import Api
from tests.support.kube.binaries import CURRENT, NEXT, programs
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane, control_plane, free_port
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
    request,
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
from tests.support.kube.webhooks import NAMESPACE

NODE: Final = "placed"
CARDS: Final = 4
Namespace = Callable[..., str]


@pytest.fixture
def node(plane: ControlPlane) -> Iterator[str]:
    """A node whose cards a Device object and a driver's slice tell of."""
    add_cards(plane)
    yield NODE
    plane.api().delete(f"{GROUP}/resourceslices/{NODE}-{DRIVER}")
    remove_node(plane, NODE)


def add_cards(plane: ControlPlane) -> None:
    """Make the node."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_class(plane)
    add_gpu_node(plane, NODE, gpus=CARDS)
    add_slice(plane, NODE, cards=CARDS)


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
    """
    Return what Pods were told of their claims.

    But not that one was written meanwhile: that says nothing of devices, and kube-scheduler, which
    raced with the claim's controller, writes it again at once.
    """
    items = api.get(f"/apis/events.k8s.io/v1/namespaces/{where}/events").body["items"]
    notes = [each["note"] for each in items if each["reason"] == "DevicesRefused"]
    return [note for note in notes if "was written since" not in note]


def are_bound(api: Api, where: str, number: int) -> bool:
    """Tell whether so many Pods have a node."""
    return len(bound_in(api, where)) == number


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
        for number in range(1, CARDS):  # of several at once, one may find what others left
            submit(plane, where, [claiming(f"p-{number}", template=WHOLE)])
            eventually(partial(are_bound, api, where, number))
        assert refusals(api, where) == []
        submit(plane, where, [claiming("p-last", template=WHOLE)])

        assert sorted(given(api, where)) == [(node, f"gpu-{each}") for each in range(1, CARDS)]
        assert written(served, "granted on another device") >= 1
        holder = f"held by Pod {elsewhere}/before"
        eventually(lambda: any(holder in note for note in refusals(api, where)))
        assert len({note.split()[1] for note in refusals(api, where)}) == 1, "the last one alone"

        api.delete(f"{pods_in(elsewhere)}/before?gracePeriodSeconds=0")
        eventually(partial(are_bound, api, where, CARDS))
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


GATES: Final = "--feature-gates=DRADeviceTaintRules=true"
SERVED: Final = "--runtime-config=resource.k8s.io/v1beta2=true"


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
@pytest.mark.parametrize("release", [CURRENT, pytest.param(NEXT, marks=pytest.mark.slow)])
def test_a_device_that_is_tried_in_vain_is_tainted_until_its_holder_ends(
    tmp_path: Path, ledger: str, identities: Identities, release: str
) -> None:
    """
    Where rules of taints are served: a claim that gets no other card from the gate.

    They are behind a gate in the current release, and in the next one as it comes. The claim's
    selector reads the UUID, so that nothing is exchanged. kube-scheduler tries the first card,
    which somebody has whom claims do not show, until it is told to pass it over.
    """
    gates, served_too = ([GATES], [SERVED]) if release == CURRENT else ([], [])
    rules = rules_path("v1beta2" if gates else "v1")
    port, where, template = free_port(), "team", "any-but-one"
    folder = tmp_path / "plane"
    folder.mkdir()
    with control_plane(folder, programs(release=release), *gates, *served_too) as plane:
        api = plane.api()
        for name in (NAMESPACE, where):
            assert api.create("/api/v1/namespaces", {"metadata": {"name": name}}).ok
        add_cards(plane)
        spec = request()
        named = {"cel": {"expression": f'device.attributes["{DRIVER}"].uuid != "GPU-none"'}}
        spec["devices"]["requests"][0]["exactly"]["selectors"] = [named]
        body = {"metadata": {"name": template}, "spec": {"spec": spec}}
        assert api.create(f"{GROUP}/namespaces/{where}/resourceclaimtemplates", body).ok
        hold(api, where, 0)
        with (
            extender(plane, ledger, identities, gate=port, drivers=[DRIVER]) as served,
            asked(plane, identities, port),
            stock_schedulers(plane, SCHEDULERS[:1], *gates),
        ):
            submit(plane, where, [claiming("late", template=template)])
            eventually(lambda: written(served, "refused DeviceTaken"))
            [rule] = eventually(lambda: api.get(rules).body["items"])
            about = {"driver": DRIVER, "pool": NODE, "device": "gpu-0"}
            assert rule["spec"]["deviceSelector"] == about
            eventually(lambda: sorted(given(api, where)) == [(NODE, "gpu-1")])
            eventually(lambda: api.get(f"{pods_in(where)}/late").body["spec"].get("nodeName"))

            api.delete(f"{pods_in(where)}/before?gracePeriodSeconds=0")
            eventually(lambda: not api.get(rules).body["items"])
            submit(plane, where, [claiming("later", template=template)])
            eventually(lambda: len(given(api, where)) == 2)
            assert sorted(given(api, where)) == [(NODE, "gpu-0"), (NODE, "gpu-1")]
