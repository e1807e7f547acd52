"""
What our policies cost a real API server: its requests with them and without, in turns of one run.

    .venv/bin/python -m benchmarks.admission.policies             # some minutes
    .venv/bin/python -m benchmarks.admission.policies --quick     # a sample

Three sides take turns: no policy bound, ours, and one policy that looks at every Pod and finds
nothing to do, below which no policy gets. Nothing is stored (`dryRun=All`), one connection is kept,
no webhook is registered.
Latencies are by the clock; the processor's time is that of kube-apiserver, since others use the
machine too. Ratios are of medians over all rounds, and of sums.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.measure import say, say_machine
from ledger.domain.resources import (
    ANNOTATION_TENURE_ADMITTED,
    ENV_NVIDIA_VISIBLE,
    LABEL_TENURE_MANAGED,
)
from tests.support.kube.api import MERGE_PATCH
from tests.support.kube.binaries import programs
from tests.support.kube.control_plane import KUBELET, MALLORY, ControlPlane, control_plane
from tests.support.kube.pods import HALF, pod, pods_in
from tests.support.kube.policies import in_force, wait_for_the_end, wait_in_force
from tests.support.kube.webhooks import apply, remove

CONTAINERS: Final = 20
VARIABLES: Final = 100
ANNOTATIONS: Final = 9_000
NODE: Final = "kubelet-1"
MANAGED: Final = "team-managed"
UNMANAGED: Final = "team-unmanaged"
_TICKS: Final = os.sysconf("SC_CLK_TCK")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """
    One request that is sent again and again.

    Attributes:
        bar: what it may cost at most, of what it costs without our policies.
        times: how often in one turn.
    """

    what: str
    bar: float
    method: str
    path: str
    body: Callable[[int], Json]
    user: str = MALLORY
    times: int = 6


@dataclass(slots=True, kw_only=True)
class Found:
    """What one side took: milliseconds of each request, seconds of the server's processor."""

    ms: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0


def main() -> None:
    """Measure, and print one JSON object per line."""
    options = _options()
    say_machine(rounds=options.rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        control_plane(Path(folder), programs()) as plane,
        in_force(plane) as made,
    ):
        bindings = [one for one in made if one["kind"].endswith("Binding")]
        cases = _cases(plane)
        nothing = _floor()
        apply(plane, nothing[:1])
        remove(plane, bindings)
        wait_for_the_end(plane)
        sides = {"without": [], "ours": bindings, "floor": nothing[1:]}
        found: dict[str, dict[str, Found]] = defaultdict(lambda: defaultdict(Found))
        for number in range(options.rounds):
            names = list(sides) if number % 2 == 0 else [*sides][::-1]
            for side in names:
                with _bound(plane, sides[side]):
                    for case in cases:
                        _turn(plane, case, found[case.what][side])
        for case in cases:
            say(what=case.what, bar=case.bar, **_figures(found[case.what]))


def _turn(plane: ControlPlane, case: Case, found: Found) -> None:
    """Send a request some times, after one that is not counted."""
    connection = _connect(plane)
    process = plane.server.process
    assert process is not None, "it runs"
    for number in range(case.times + 1):
        body = json.dumps(case.body(number)).encode()
        headers = {
            "Authorization": f"Bearer {plane.tokens[case.user]}",
            "Content-Type": MERGE_PATCH if case.method == "PATCH" else "application/json",
        }
        if number == 1:
            began = _cpu_seconds(process.pid)
        start = time.perf_counter()
        connection.request(case.method, f"{case.path}?dryRun=All", body, headers)
        answer = connection.getresponse()
        answered = answer.read()
        took = time.perf_counter() - start
        assert 200 <= answer.status < 300, (case.what, answer.status, answered[:2_000])
        if number:
            found.ms.append(took * 1_000)
    found.cpu_seconds += _cpu_seconds(process.pid) - began
    connection.close()


def _figures(found: dict[str, Found]) -> Json:
    ms = {side: statistics.median(one.ms) for side, one in found.items()}
    cpu = {side: one.cpu_seconds for side, one in found.items()}
    return {
        "ms": {side: round(one, 1) for side, one in ms.items()},
        "ratio": round(ms["ours"] / ms["without"], 2),
        "cpu_ratio": round(cpu["ours"] / cpu["without"], 2),
        "floor": round(ms["floor"] / ms["without"], 2),
        "floor_cpu": round(cpu["floor"] / cpu["without"], 2),
    }


@contextmanager
def _bound(plane: ControlPlane, bindings: list[Json]) -> Iterator[None]:
    """Bind these policies until the block ends."""
    apply(plane, bindings)
    wait_in_force(plane)
    yield
    remove(plane, bindings)
    wait_for_the_end(plane)


def _floor() -> list[Json]:
    """Return a policy that looks at every Pod and finds nothing to do, and its binding."""
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "floor"}}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["pods", "pods/status"],
    }
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "never", "expression": "request.operation == 'CONNECT'"}],
        "validations": [{"expression": "false"}],
    }
    bound = {"policyName": "floor", "validationActions": ["Deny"]}
    return [
        {**kind, "kind": "ValidatingAdmissionPolicy", "spec": spec},
        {**kind, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound},
    ]


def _cases(plane: ControlPlane) -> list[Case]:
    """Return what is sent, once what it changes is there."""
    reply = plane.api().create("/api/v1/nodes", {"metadata": {"name": NODE}})
    assert reply.ok, reply.message
    for name, labels in ((MANAGED, {LABEL_TENURE_MANAGED: "true"}), (UNMANAGED, {})):
        made = {"metadata": {"name": name, "labels": labels}}
        assert plane.api().create("/api/v1/namespaces", made).ok
    cases: list[Case] = []
    for whose, namespace, ours, bar in (
        ("names nothing of ours", UNMANAGED, False, 1.3),
        ("names nothing of ours, managed namespace", MANAGED, False, 1.3),
        ("a share of a GPU", MANAGED, True, 2.0),
    ):
        for size, containers, notes in (
            ("small", 1, 0),
            (f"{CONTAINERS} containers x {VARIABLES} variables", CONTAINERS, 0),
            (f"{ANNOTATIONS:,} annotations", 1, ANNOTATIONS),
        ):
            what, where = f"{whose}: {size}", pods_in(namespace)
            body = _pod(f"p{len(cases)}", containers, notes, ours=ours)
            stored = plane.api(MALLORY).create(where, body)
            assert stored.ok, stored.message
            path = f"{where}/{body['metadata']['name']}"
            times = 40 if size == "small" else 6
            cases += [
                Case(
                    what=f"{what}, create", bar=bar, method="POST", path=where, times=times,
                    body=_named(body),
                ),
                Case(
                    what=f"{what}, label changed", bar=bar, method="PATCH", path=path, times=times,
                    body=_labelled,
                ),
            ]  # fmt: skip
        bound = _pod(f"p{len(cases)}", CONTAINERS, 0, ours=ours)
        if not ours:
            bound["spec"]["nodeName"] = NODE
            stored = plane.api(MALLORY).create(where, bound)
            assert stored.ok, stored.message
            cases.append(
                Case(
                    what=f"{whose}: {CONTAINERS} containers x {VARIABLES}, reported by kubelet",
                    bar=bar,
                    method="PATCH",
                    path=f"{where}/{bound['metadata']['name']}/status",
                    body=_reported,
                    user=KUBELET,
                )
            )
    return cases


def _named(body: Json) -> Callable[[int], Json]:
    return lambda number: {**body, "metadata": {**body["metadata"], "name": f"new-{number}"}}


def _labelled(number: int) -> Json:
    return {"metadata": {"labels": {"turn": f"t{number}"}}}


def _reported(number: int) -> Json:
    return {"status": {"phase": "Running", "message": f"m{number}"}}


def _pod(name: str, containers: int, annotations: int, *, ours: bool) -> Json:
    """Return a Pod as it is after our admission; one that is not ours asks for a CPU alone."""
    notes = {f"notes.example.com/n{number}": "x" for number in range(annotations)}
    more: Json = {}
    if ours:
        notes[ANNOTATION_TENURE_ADMITTED] = "true"
        more = {"schedulerName": "tenure"}
    made = pod(name, {"cpu": "1", "memory": "1Gi"}, annotations=notes, labels={"app": "a"}, **more)
    first = made["spec"]["containers"][0]
    variables = [
        {"name": f"SETTING_{number}", "value": f"value-of-{number}"}
        for number in range(VARIABLES if containers > 1 else 2)
    ]
    if ours:
        variables.append({"name": ENV_NVIDIA_VISIBLE, "value": "void"})
    made["spec"]["containers"] = [
        {**first, "name": f"c{number}", "env": variables} for number in range(containers)
    ]
    if ours:
        made["spec"]["containers"][0]["resources"] = {"limits": HALF, "requests": HALF}
    return made


def _connect(plane: ControlPlane) -> http.client.HTTPSConnection:
    place = urlsplit(plane.url)
    assert place.hostname, plane.url
    context = ssl.create_default_context(cafile=str(plane.ca_file))
    return http.client.HTTPSConnection(place.hostname, place.port, timeout=120, context=context)


def _cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.admission.policies",
        description=(__doc__ or "").split("\n", 2)[1],
    )
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 7)
    return options


if __name__ == "__main__":
    main()
