"""Under which name the scheduler binds: the one that admission lets bind, or it says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_scheduler import node_of
from tests.support.kube.bursts import DIALECTS, eventually
from tests.support.kube.control_plane import MALLORY, SCHEDULER_ACCOUNT, ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.policies import in_force
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.kube.webhooks import serving
from tests.support.process import tenure

NODE = "gpu-identity"
HEAD = "apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\n"


@pytest.fixture(scope="module", autouse=True)
def admission(plane: ControlPlane) -> Iterator[None]:
    """The webhook and the policies, and a node with cards."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_gpu_node(plane, NODE)
    with serving(plane), in_force(plane):
        yield
    remove_node(plane, NODE)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A new ledger."""
    made = f"sqlite:///{tmp_path / 'ledger.db'}"
    tenure("ledger", "init", "--ledger", made, cwd=tmp_path)
    return made


def notes_of(plane: ControlPlane, namespace: str, reason: str) -> list[str]:
    """Return what Events of one reason say."""
    items = plane.api().get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events").body["items"]
    return [each["note"] for each in items if each["reason"] == reason]


def refusals(served: Served) -> list[str]:
    """Return the lines of the metric of refused Bindings."""
    return re.findall(r"^tenure_bind_refusals_total.*$", served.probe("metrics"), re.MULTILINE)


def make_pod(plane: ControlPlane, team: str) -> str:
    """Make a Pod that wants a card, and return its path."""
    made = plane.api().create(pods_in(team), pod("a", **DIALECTS["mgpu"]))
    assert made.ok, made.message
    return f"{pods_in(team)}/a"


def test_under_another_name_the_refusal_is_told_and_it_is_not_ready(
    plane: ControlPlane, identities: Identities, url: str, namespace: Callable[..., str]
) -> None:
    """In the log, as an Event of the Pod and in a metric; `/readyz` names both."""
    team = namespace()
    with extender(
        plane, url, identities, kubeconfig=plane.kubeconfig(MALLORY), ready=False
    ) as served:
        eventually(served.leads)
        with plane.scheduler(asking(plane, served, identities)):
            path = make_pod(plane, team)
            eventually(partial(notes_of, plane, team, "BindingRefused"))
        said = served.probe("readyz")
        assert MALLORY in said, said
        assert SCHEDULER_ACCOUNT in said, said
        [note, *_] = notes_of(plane, team, "BindingRefused")
        logged = served.log.read_text()
        for words in (note, logged):
            assert "allocation annotations are written by Tenure alone" in words, words
        assert refusals(served), served.probe("metrics")
        assert "the API server refused a Binding" in logged
        assert "the API server refused to fence a Pod" in logged
    plane.api().delete(path)


def test_under_the_name_that_admission_lets_bind_it_is_ready(
    plane: ControlPlane, identities: Identities, url: str, namespace: Callable[..., str]
) -> None:
    """And binds."""
    team = namespace()
    with extender(plane, url, identities) as served:  # which waits until it is ready
        with plane.scheduler(asking(plane, served, identities)):
            path = make_pod(plane, team)
            eventually(partial(node_of, plane, path))
        assert refusals(served) == []
        assert notes_of(plane, team, "BindingRefused") == []
    plane.api().delete(path)


@pytest.mark.parametrize(
    "accounts",
    [(MALLORY,), (SCHEDULER_ACCOUNT, "system:serviceaccount:x:y")],
    ids=["the settings name it", "they name others"],
)
def test_settings_say_which_name_is_expected(
    plane: ControlPlane, identities: Identities, url: str, accounts: tuple[str, ...]
) -> None:
    """`serviceAccounts`, by which admission knows Tenure's own, is read by the scheduler too."""
    config = plane.folder / "settings.yaml"
    config.write_text(f"{HEAD}serviceAccounts: [{', '.join(map(repr, accounts))}]\n")
    options: dict[str, Any] = {"kubeconfig": plane.kubeconfig(MALLORY), "config": config}
    with extender(plane, url, identities, ready=False, **options) as served:
        eventually(served.leads)
        said = served.probe("readyz")
        if MALLORY in accounts:
            assert said == "ok\n"
        else:
            assert all(name in said for name in (MALLORY, *accounts)), said
