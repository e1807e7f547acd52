"""Two stock kube-schedulers give out the cards of one cluster, with and without a gate."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from tests.support.kube.api import Reply
from tests.support.kube.binaries import NEXT
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.dra import (
    DRIVER,
    GROUP,
    OTHER_DRIVER,
    SCHEDULERS,
    SHARE,
    WHOLE,
    add_class,
    add_templates,
    asked,
    bound_in,
    claiming,
    claims_in,
    doubled,
    forged,
    given,
    held,
    remove_claims,
    request,
    settled_claims,
    some_cards,
    stock_schedulers,
    stored,
    submit,
)
from tests.support.kube.schedulers import Identities, extender

NODES = 6
CARDS = 8 * NODES

Namespace = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def cards(plane: ControlPlane) -> Iterator[None]:
    """48 cards of a driver's on six Nodes."""
    with some_cards(plane, NODES, prefix="card"):
        yield


def raced() -> list[dict[str, Any]]:
    """Return Pods that ask for more than there is, by turns of either scheduler."""
    return [
        claiming(f"{kind}-{number}-{place}", template=kind, scheduler=name)
        for number in range(CARDS // 2)
        for kind in (WHOLE, SHARE)
        for place, name in enumerate(SCHEDULERS)
    ]


def test_stock_schedulers_alone_give_cards_twice(plane: ControlPlane, namespace: Namespace) -> None:
    """The API server compares no two claims: without a gate most cards get two whole holders."""
    where = namespace()
    add_templates(plane, where)
    pods = raced()
    with stock_schedulers(plane):
        submit(plane, where, pods)
        bound = settled_claims(plane, where, most=len(pods))
        twice = doubled(given(plane.api(), where))
        sys.stderr.write(f"without a gate: doubled={len(twice)} of {CARDS}, bound={bound}\n")
        assert len(bound_in(plane.api(), where)) == bound
        assert twice, "two schedulers did not meet on one card: the race is none"
        remove_claims(plane, where)


def is_begun(plane: ControlPlane, where: str) -> bool:
    """Tell whether a part of the Pods is bound."""
    return len(bound_in(plane.api(), where)) > CARDS // 4


@pytest.mark.parametrize(
    ("ledger", "rounds"),
    [("sqlite", 3), pytest.param("postgres", 20, marks=pytest.mark.slow)],
    indirect=["ledger"],
)
def test_no_card_is_given_twice_with_a_gate(
    plane: ControlPlane, namespace: Namespace, ledger: str, identities: Identities, rounds: int
) -> None:
    """In every third round the gate is killed; after each the ledger has what is stored."""
    race(plane, namespace, ledger, identities, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("plane", [NEXT], indirect=True)
@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_no_card_is_given_twice_by_the_next_release(
    plane: ControlPlane, namespace: Namespace, ledger: str, identities: Identities
) -> None:
    """The same with the API server, schedulers and claim controller of the release after that."""
    race(plane, namespace, ledger, identities, 3)


def race(
    plane: ControlPlane, namespace: Namespace, ledger: str, identities: Identities, rounds: int
) -> None:
    """Let two schedulers race for all cards, round after round, with a gate."""
    port = free_port()
    serve = partial(extender, plane, ledger, identities, gate=port, drivers=[DRIVER])
    with contextlib.ExitStack() as stack:
        stack.enter_context(stock_schedulers(plane))
        served = stack.enter_context(serve())
        stack.enter_context(asked(plane, identities, port))
        for number in range(rounds):
            where = namespace()
            add_templates(plane, where)
            submit(plane, where, raced())
            if number % 3 == 2:
                eventually(partial(is_begun, plane, where))
                served.kill()
                served = stack.enter_context(serve(remembered=True))
            eventually(lambda: len(given(plane.api(), where)) == CARDS)  # noqa: B023 - called here
            bound = settled_claims(plane, where, most=2 * CARDS, quiet=8.0, seconds=600.0)
            cards = given(plane.api(), where)
            sys.stderr.write(f"with a gate: bound={bound}, cards={len(cards)}\n")
            assert len(cards) == CARDS
            assert not doubled(cards)
            eventually(lambda: held(ledger) == stored(plane))
            remove_claims(plane, where)
            eventually(lambda: not held(ledger))


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_what_the_gate_is_asked_about_and_what_it_answers(
    plane: ControlPlane, namespace: Namespace, ledger: str, identities: Identities
) -> None:
    """Forged by an administrator or not: allocations of listed drivers, and nothing else."""
    where, port = namespace(), free_port()
    api, path = plane.api(), claims_in(where)
    add_class(plane, OTHER_DRIVER)
    with (
        extender(plane, ledger, identities, gate=port, drivers=[DRIVER]) as served,
        asked(plane, identities, port),
    ):

        def calls() -> float:
            line = 'tenure_extender_duration_seconds_count{verb="claims"} '
            return float(served.probe("metrics").partition(line)[2].partition("\n")[0])

        def write(name: str, status: Mapping[str, object], *, dry_run: bool = False) -> Reply:
            body = {**api.get(f"{path}/{name}").body, "status": status}
            return api.replace(f"{path}/{name}/status{'?dryRun=All' * dry_run}", body)

        for name, driver in (("a", DRIVER), ("b", DRIVER), ("nic", OTHER_DRIVER)):
            body = {"metadata": {"name": name}, "spec": request(driver=driver, uuid=UUIDS[name])}
            made = api.create(path, body)
            assert made.ok, made.message
        first = forged("card-0", 0)
        eventually(lambda: not write("b", forged("nowhere", 0), dry_run=True).ok)
        before = calls()
        assert write("nic", forged("card-0", 0, driver=OTHER_DRIVER)).ok
        assert write("nic", {}).ok
        assert calls() == before, "drivers that are not listed"

        assert write("a", first, dry_run=True).ok
        assert not held(ledger), "a dry run holds nothing"
        assert write("a", first).ok
        eventually(lambda: held(ledger) == stored(plane))
        refused = write("b", first)
        assert refused.status == 409
        assert f"held by claim {where}/a" in refused.message

        before = calls()
        user = {"resource": "pods", "name": "late", "uid": "late"}
        assert write("a", {**first, "reservedFor": [user]}).ok
        said = {"driver": DRIVER, "pool": "card-0", "device": "gpu-0", "conditions": []}
        said["shareID"] = first["allocation"]["devices"]["results"][0]["shareID"]
        assert write("a", {**first, "reservedFor": [user], "devices": [said]}).ok
        assert calls() == before, "who uses a claim, and what a driver says of its devices"

        served.kill()
        assert not write("b", forged("card-0", 1)).ok, "it fails closed"
        assert write("a", first).ok, "what is no allocation goes on"
    for name in ("a", "b", "nic"):
        write_off = {**api.get(f"{path}/{name}").body, "status": {}}
        assert api.replace(f"{path}/{name}/status", write_off).ok
        api.delete(f"{path}/{name}")
    api.delete(f"{GROUP}/deviceclasses/{OTHER_DRIVER}")


UUIDS = {"a": "", "b": "GPU-card-0-0", "nic": ""}
"""Which card a claim wants: for one that names it no other is taken."""
