"""CPUs by claims and by the extender: two stock kube-schedulers and ours on the same nodes."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.annotations.cpu import decode_resource_status
from ledger.domain.cpuset import CpuSet, parse_cpuset
from ledger.domain.dialects.dra.cpus import AMOUNT, CPU_DRIVER, MACHINE, cpu_config
from ledger.domain.resources import ANNOTATION_RESOURCE_STATUS
from ledger.store.open import open_ledger
from ledger.store.reading.timetravel import load_state
from tests.support.kube.api import Reply
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.cpu_driver import cpus_told
from tests.support.kube.dra import (
    GROUP,
    SCHEDULERS,
    add_class,
    asked,
    bound_in,
    claiming,
    claims_in,
    remove_claims,
    settled_claims,
    stock_schedulers,
    submit,
)
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod
from tests.support.kube.schedulers import (
    Identities,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.process import tenure

NODES = ("cpus-0", "cpus-1")
CPUS = 32
EACH = 4
LSR = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}

Namespace = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def machines(plane: ControlPlane) -> Iterator[None]:
    """Two Nodes whose CPUs dra-driver-cpu gives, grouped by machine."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_class(plane, CPU_DRIVER)
    for name in NODES:
        add_gpu_node(plane, name, gpus=0, cpus=CPUS)
        device = {
            "name": MACHINE,
            "allowMultipleAllocations": True,
            "attributes": {"dra.cpu/numCPUs": {"int": CPUS}},
            "capacity": {AMOUNT: {"value": str(CPUS)}},
        }
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        body = {
            "metadata": {"name": f"{name}-{CPU_DRIVER}"},
            "spec": {"driver": CPU_DRIVER, "nodeName": name, "pool": pool, "devices": [device]},
        }
        made = plane.api().create(f"{GROUP}/resourceslices", body)
        assert made.ok, made.message
    yield
    for name in NODES:
        plane.api().delete(f"{GROUP}/resourceslices/{name}-{CPU_DRIVER}")
        remove_node(plane, name)
    plane.api().delete(f"{GROUP}/deviceclasses/{CPU_DRIVER}")


def wanted() -> dict[str, Any]:
    """Return a claim's spec: so many CPUs."""
    exactly = {"deviceClassName": CPU_DRIVER, "capacity": {"requests": {AMOUNT: str(EACH)}}}
    return {"devices": {"requests": [{"name": "g", "exactly": exactly}]}}


def raced() -> list[dict[str, Any]]:
    """Return Pods for more CPUs than there are: by claims of two schedulers, and by ours."""
    amounts = {"cpu": str(EACH), "memory": "1Gi"}
    return [
        one
        for number in range(8)
        for one in (
            *(
                claiming(f"claim-{number}-{place}", template="cpus", scheduler=name)
                for place, name in enumerate(SCHEDULERS)
            ),
            pod(f"own-{number}", amounts, labels=LSR, schedulerName="tenure"),
        )
    ]


def of_claims(plane: ControlPlane) -> dict[str, tuple[str, CpuSet]]:
    """Return which CPUs of which node the stored claims are told, by their UIDs."""
    claims = [
        one
        for one in plane.api().get(f"{GROUP}/resourceclaims").body["items"]
        if one.get("status", {}).get("allocation")
    ]
    found = {}
    for one, told in zip(claims, cpus_told(claims), strict=True):
        [result] = one["status"]["allocation"]["devices"]["results"]
        assert list(told) == [result["request"]]
        assert str(len(told["g"])) == result["consumedCapacity"][AMOUNT]
        found[one["metadata"]["uid"]] = result["pool"], told["g"]
    return found


def of_pods(plane: ControlPlane, where: str) -> dict[str, tuple[str, CpuSet]]:
    """Return which CPUs of which node the extender's Pods are told, by their UIDs."""
    found = {}
    for one in bound_in(plane.api(), where):
        text = one["metadata"].get("annotations", {}).get(ANNOTATION_RESOURCE_STATUS)
        if text is not None:
            cpus = decode_resource_status(text).cpuset
            found[one["metadata"]["uid"]] = one["spec"]["nodeName"], cpus
    return found


def held(ledger: str) -> dict[str, tuple[str, CpuSet]]:
    """Return which CPUs of which node claims and Pods hold, by the ledger."""
    with open_ledger(ledger, mode="read") as opened:
        state = load_state(opened).state
    return {
        one.pod_uid: (node.name, one.cpuset)
        for node in state.nodes.values()
        for one in node.everyone()
    }


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_no_cpu_is_in_two_accounts(
    plane: ControlPlane,
    namespace: Namespace,
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """Three schedulers on two nodes, the service killed meanwhile: each CPU has one holder."""
    where, gate, port = namespace(managed=False), free_port(), free_port()
    template = {"metadata": {"name": "cpus"}, "spec": {"spec": wanted()}}
    path = f"{GROUP}/namespaces/{where}/resourceclaimtemplates"
    assert plane.api().create(path, template).ok
    serve = partial(extender, plane, ledger, identities, port=port, gate=gate, drivers=[CPU_DRIVER])
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serve())
        stack.enter_context(stock_schedulers(plane))
        ours = asking(plane, served, identities, impatient=True)
        stack.enter_context(plane.scheduler(ours, name="ours"))
        stack.enter_context(asked(plane, identities, gate, drivers=[CPU_DRIVER]))
        submit(plane, where, raced())
        eventually(lambda: len(bound_in(plane.api(), where)) > len(NODES))
        served.kill()
        served = stack.enter_context(serve(remembered=True))
        bound = settled_claims(plane, where, most=len(NODES) * CPUS // EACH, quiet=8.0)

        eventually(lambda: held(ledger) == {**of_claims(plane), **of_pods(plane, where)})
        told = {**of_claims(plane), **of_pods(plane, where)}
        times = Counter((node, cpu) for node, cpus in told.values() for cpu in cpus)
        sys.stderr.write(f"bound={bound}, by claims={len(of_claims(plane))}, CPUs={len(times)}\n")
        assert max(times.values()) == 1
        assert bound == len(told)
        assert of_claims(plane)
        verified = tenure("verify", "--ledger", ledger, cwd=tmp_path)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        remove_claims(plane, where)
        eventually(lambda: not held(ledger))


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_a_cpu_set_that_is_written_out_is_held_against_the_ledger(
    plane: ControlPlane,
    namespace: Namespace,
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """Past the gate it is adopted; behind it nobody gets these CPUs, nor more than he consumes."""
    where, gate = namespace(managed=False), free_port()
    api, path = plane.api(), claims_in(where)
    for name in ("past", "same", "few", "free", "chosen"):
        assert api.create(path, {"metadata": {"name": name}, "spec": wanted()}).ok

    def write(name: str, cpus: str) -> Reply:
        result = {
            "request": "g",
            "driver": CPU_DRIVER,
            "pool": NODES[0],
            "device": MACHINE,
            "shareID": "b3803050-d2e8-4c9d-9dff-44bd85bb3b81",
            "consumedCapacity": {AMOUNT: str(EACH)},
        }
        named = {"key": "metadata.name", "operator": "In", "values": [NODES[0]]}
        allocation: dict[str, Any] = {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [named]}]},
        }
        if cpus:
            allocation["devices"]["config"] = [cpu_config("g", parse_cpuset(cpus))]
        body = {**api.get(f"{path}/{name}").body, "status": {"allocation": allocation}}
        return api.replace(f"{path}/{name}/status", body)

    with extender(plane, ledger, identities, gate=gate, drivers=[CPU_DRIVER]):
        assert write("past", "4-7").ok
        uid = api.get(f"{path}/past").body["metadata"]["uid"]
        eventually(lambda: held(ledger) == {uid: (NODES[0], parse_cpuset("4-7"))})
        with asked(plane, identities, gate, drivers=[CPU_DRIVER]):
            eventually(lambda: write("same", "7-10").status == 409)
            same, few = write("same", "7-10"), write("few", "8-9")
            free, chosen = write("free", "8-11"), write("chosen", "")
    assert f"of node cpus-0, of which 7 are held by claim {where}/past" in same.message
    assert "CpusMiscounted: request g names CPUs 8-9 of node cpus-0, 2 of the 4" in few.message
    assert free.ok, free.message
    assert chosen.ok, chosen.message
    claims = [api.get(f"{path}/{name}").body for name in ("free", "chosen")]
    kept, given = (each["g"] for each in cpus_told(claims))
    assert str(kept) == "8-11"
    assert given.isdisjoint(parse_cpuset("4-11"))
    for what in (("who", f"{NODES[0]}/cpu/7"), ("map", "--cpus")):
        said = tenure(*what, "--ledger", ledger, cwd=tmp_path)
        assert f"{where}/past" in said.stdout, said
    for name in ("past", "same", "few", "free", "chosen"):
        gone = {**api.get(f"{path}/{name}").body, "status": {}}
        assert api.replace(f"{path}/{name}/status", gone).ok
        api.delete(f"{path}/{name}")
