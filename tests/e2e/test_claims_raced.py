"""Two stock kube-schedulers give out the cards of one cluster, with and without a gate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.dra import (
    GROUP,
    SCHEDULERS,
    SHARE,
    WHOLE,
    add_claim_node,
    add_class,
    add_templates,
    bound_in,
    claiming,
    doubled,
    given,
    remove_claims,
    settled_claims,
    stock_schedulers,
    submit,
)

NODES = 6
CARDS = 8 * NODES

Namespace = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def cards(plane: ControlPlane) -> Iterator[None]:
    """48 cards of a driver's on six Nodes."""
    names = [f"card-{number}" for number in range(NODES)]
    add_class(plane)
    for name in names:
        add_claim_node(plane, name)
    yield
    for name in names:
        plane.api().delete(f"/api/v1/nodes/{name}")
    for one in plane.api().get(f"{GROUP}/resourceslices").body["items"]:
        plane.api().delete(f"{GROUP}/resourceslices/{one['metadata']['name']}")


def test_stock_schedulers_alone_give_cards_twice(plane: ControlPlane, namespace: Namespace) -> None:
    """The API server compares no two claims: without a gate most cards get two whole holders."""
    where = namespace()
    add_templates(plane, where)
    pods = [
        claiming(f"{kind}-{number}-{place}", template=kind, scheduler=name)
        for number in range(CARDS // 2)
        for kind in (WHOLE, SHARE)
        for place, name in enumerate(SCHEDULERS)
    ]
    with stock_schedulers(plane):
        submit(plane, where, pods)
        bound = settled_claims(plane, where, most=len(pods))
        twice = doubled(given(plane.api(), where))
        sys.stderr.write(f"without a gate: doubled={len(twice)} of {CARDS}, bound={bound}\n")
        assert len(bound_in(plane.api(), where)) == bound
        assert twice, "two schedulers did not meet on one card: the race is none"
        remove_claims(plane, where)
