"""`tenure why NAMESPACE/POD FILE...`: a Pod of any cluster, as a simulation of it."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cli import Answer, CommandLine, dumped
from tests.support.corpus import CORPUS, NOW, one_of_each, truth_of
from tests.support.objects import Object, container, gpu_pod, node, pod

pytestmark = pytest.mark.integration

ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": 2}
GPU = {"nvidia.com/gpu": 1}
SAMPLE = 2
"""Of so many Pods that wait and as many that run, and one more, a dump is asked."""


def told(answer: Answer) -> dict[str, Any]:
    """Return the JSON of an answer."""
    assert answer.code == 0, answer.err
    found: dict[str, Any] = json.loads(answer.out)
    return found


# --- the same answer as of a simulation -------------------------------------------------------


@pytest.mark.parametrize("dump", one_of_each("simulate"))
def test_it_is_the_answer_of_a_simulation(dump: str, line: CommandLine) -> None:
    """Node, cards, CPUs, count and message of the Pods of a dump, whether they run or wait."""
    items = json.loads((CORPUS / dump / "dump.json").read_text("utf-8"))["items"]
    path = dumped(line, *items, *(each["pod"] for each in truth_of(dump)["simulate"]))
    simulated = told(line.run("simulate", path, "--now", NOW, "-o", "json"))
    waiting = simulated["placements"]
    for each in waiting[:: max(1, len(waiting) // SAMPLE)]:
        answer = asked(line, each, path)
        refused = each["unschedulable"] or {"message": "", "nodes": {}}
        assert answer["message"] == refused["message"]
        assert answer["state"] in ({"waiting", "refused"} if refused["message"] else {"fits"})
        by_claims = "cannot allocate all claims" in answer["message"]  # these have no advice
        if answer["state"] == "waiting" and not by_claims:
            assert {row["node"] for row in answer["nodes"]} == set(refused["nodes"])
            assert answer["now"] == refused["message"] or answer["note"]
    runs = [each for each in simulated["adopted"] if each["namespace"] != "unknown"]
    for each in runs[:: max(1, len(runs) // SAMPLE)]:
        assert asked(line, each, path)["state"] == "placed"


def asked(line: CommandLine, each: dict[str, Any], path: str) -> dict[str, Any]:
    """Return what is said of a Pod, having held it against its entry in a simulation."""
    answer = told(line.run("why", f"{each['namespace']}/{each['name']}", path, "-o", "json"))
    for key in ("node", "devices", "counted", "cpuset"):
        assert answer[key] == each[key], (each["name"], key)
    return answer


# --- where a Pod stands -----------------------------------------------------------------------


def cluster() -> list[Object]:
    """Return two nodes of two cards, of which one is held."""
    return [
        node("n1", allocatable=ROOM),
        node("n2", allocatable=ROOM),
        gpu_pod(GPU, name="runs", nodeName="n1", phase="Running"),
    ]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        pytest.param(
            gpu_pod(GPU, name="p", nodeName="n1", phase="Running"),
            "ml/p runs on n1, holds gpu:?",
            id="it runs",
        ),
        pytest.param(
            gpu_pod(GPU, name="p", nodeName="n1", phase="Pending")
            | {
                "status": {
                    "phase": "Pending",
                    "containerStatuses": [
                        {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
                    ],
                }
            },
            "ml/p is bound to n1, holds gpu:?\ncontainer main waits: ImagePullBackOff",
            id="it is bound and does not run",
        ),
        pytest.param(
            gpu_pod(GPU, name="p", nodeName="n1")
            | {"status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}},
            "ml/p has ended and holds nothing: Failed: Evicted: disk",
            id="it has ended",
        ),
        pytest.param(
            gpu_pod(GPU, name="p"),
            "ml/p waits, asks for 1 nvidia.com/gpu; it would get n1 gpu:? now",
            id="it would get a place",
        ),
        pytest.param(
            gpu_pod(GPU, name="p", schedulingGates=[{"name": "acme.io/later"}]),
            "ml/p is held by its scheduling gates: acme.io/later\n\n"
            "without them it would fit on n1",
            id="a gate keeps it",
        ),
        pytest.param(
            gpu_pod({"nvidia.com/mig-1g.5gb": 1}, name="p"),
            "0/2 nodes are available: 2 Insufficient nvidia.com/mig-1g.5gb.",
            id="no node offers what it asks for",
        ),
        pytest.param(
            gpu_pod({"nvidia.com/gpu": 3}, name="p"),
            "never as it is: no node in this cluster has 3 GPU; the most is 2\nml/p waits",
            id="no node is large enough",
        ),
        pytest.param(
            gpu_pod({"nvidia.com/gpu": "one"}, name="p"),
            "ml/p is not decided: spec.containers[0].resources.limits[nvidia.com/gpu]:",
            id="what it asks for can't be read",
        ),
        pytest.param(
            pod(
                container(limits={"nvidia.com/gpu": 2, "cpu": 63}),
                name="p",
                volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            ),
            "not looked at, and may keep it back: volume persistentVolumeClaim",
            id="a volume is not looked at",
        ),
    ],
)
def test_where_a_pod_stands(line: CommandLine, wanted: Object, said: str) -> None:
    """In words, exit 0; nothing is written anywhere."""
    answer = line.run("why", "ml/p", dumped(line, *cluster(), wanted))

    assert answer.code == 0, answer.err
    assert said in answer.out
    assert not line.ledger.exists()


ONE_IS_ILL = node("m", allocatable=ROOM | {"amd.com/gpu": 7})
ONE_IS_ILL["status"]["capacity"] = ROOM | {"amd.com/gpu": 8}
PARTS = {
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.product": "T4-SHARED",
}


@pytest.mark.parametrize(
    ("objects", "said", "lacks"),
    [
        pytest.param(
            [
                node("m", allocatable=ROOM | {"nvidia.com/gpu": 8}, labels=PARTS),
                gpu_pod({"nvidia.com/gpu": 6}, name="r", nodeName="m", phase="Running"),
                gpu_pod({"nvidia.com/gpu": 5}, name="p"),
            ],
            "asks 5 nvidia.com/gpu, 2 free",
            "whole",
            id="replicas are no whole cards",
        ),
        pytest.param(
            [
                node("m", allocatable=ROOM | {"acme.com/npu": 1}),
                gpu_pod(
                    {"acme.com/npu": 1, "acme.com/npu-memory": 9},
                    name="p",
                    schedulerName="hami-scheduler",
                ),
            ],
            "not decided: spec.containers[acme.com/npu-memory]: hami-scheduler reckons it card",
            "never",
            id="what its own scheduler reckons by card",
        ),
        pytest.param(
            [
                node("m", allocatable=ROOM),
                gpu_pod(
                    {},
                    name="p",
                    schedulingGates=[{"name": "a/b"}],
                    resourceClaims=[{"name": "c", "resourceClaimName": "c"}],
                ),
            ],
            "ml/p is not decided: spec.schedulingGates[0]",
            "it would fit",
            id="gates and claims that nobody can judge",
        ),
        pytest.param(
            [
                ONE_IS_ILL,
                gpu_pod({"amd.com/gpu": 8}, name="p"),
            ],
            "1 of 8 amd.com/gpu of m unhealthy",
            "never",
            id="an ill card is not never",
        ),
        pytest.param(
            [
                ONE_IS_ILL,
                gpu_pod({"amd.com/gpu": 9}, name="p"),
            ],
            "never as it is: no node in this cluster has 9 amd.com/gpu; the most is 8",
            "wait until",
            id="more than there are, ill ones too",
        ),
    ],
)
def test_what_is_told_is_what_is_there(
    line: CommandLine, objects: list[Object], said: str, lacks: str
) -> None:
    """In the words of what was written, and of capacity."""
    answer = line.run("why", "ml/p", dumped(line, *objects))

    assert said in answer.out, answer
    assert lacks not in answer.out


def test_a_gang_that_may_start_in_part_is_noted(line: CommandLine) -> None:
    """Of its member, and of no other Pod with a volume."""
    gang = {f"gang.scheduling.koordinator.sh/{key}": "1" for key in ("name", "min-available")}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    other, one = (gpu_pod(GPU, name=name, volumes=volumes) for name in ("other", "one"))
    one["metadata"]["annotations"] = gang
    path, why = dumped(line, *cluster(), other, one), "its gang may start in part"
    assert why not in line.run("why", "ml/other", path).err
    answer = line.run("why", "ml/one", path)
    assert "ml/one: spec.volumes: kube-scheduler gives them before it binds" in answer.err
    assert why in answer.err


def test_what_is_not_looked_at_is_a_warning_of_this_pod_alone(line: CommandLine) -> None:
    """Others' constraints are not this Pod's."""
    spread = [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    odd = gpu_pod(GPU, name="odd", topologySpreadConstraints=spread)
    path = dumped(line, *cluster(), odd, gpu_pod(GPU, name="p"))

    answers = {name: line.run("why", f"ml/{name}", path) for name in ("odd", "p")}

    assert "warning: ml/odd: not looked at: topology spread" in answers["odd"].err
    assert "not looked at" not in answers["p"].err + answers["p"].out


def test_pods_that_wait_before_it_are_named(line: CommandLine) -> None:
    """They are decided first, as in a simulation; without them it is another answer."""
    two = {"nvidia.com/gpu": 2}
    path = dumped(line, *cluster(), gpu_pod(two, name="first"), gpu_pod(two, name="p"))

    answer = line.run("why", "ml/p", path)
    first = line.run("why", "ml/first", path)

    assert (
        "decided after 1 Pod that waits too: ml/first on n2; without them it would fit on n2"
        in (answer.out)
    )
    assert "0/2 nodes are available: 2 Insufficient gpu devices." in answer.out
    assert "ml/first waits, asks for 2 nvidia.com/gpu; it would get n2 gpu:0,1 now" in (first.out)


def test_the_scheduler_of_the_cluster_is_quoted(line: CommandLine) -> None:
    """What the Pod's own status says stands beside what is found here."""
    condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: no volume zone"}
    waits = gpu_pod(GPU, name="p") | {"status": {"phase": "Pending", "conditions": [condition]}}

    answer = line.run("why", "ml/p", dumped(line, *cluster(), waits))

    assert "kube-scheduler said: 0/2 nodes: no volume zone" in answer.out


# --- names ------------------------------------------------------------------------------------


def owned(kind: str, name: str, **labels: str) -> Object:
    """Return the metadata of what such an object controls."""
    owner = {"kind": kind, "name": name, "controller": True}
    return {"ownerReferences": [owner], "labels": labels}


def test_a_pod_is_found_by_its_owner(line: CommandLine) -> None:
    """Job, ReplicaSet, and the Deployment above it by object or by the Pods' label."""
    pods = []
    for name, metadata in {
        "train-x1": owned("Job", "train"),
        "web-abc-1": owned("ReplicaSet", "web-abc", **{"pod-template-hash": "abc"}),
        "api-1": owned("ReplicaSet", "api-set"),
    }.items():
        each = gpu_pod(GPU, name=name)
        pods.append(each | {"metadata": each["metadata"] | metadata})
    above = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "api-set", "namespace": "ml"} | owned("Deployment", "api"),
    }
    path = dumped(line, *cluster(), *pods, above)

    found = {
        name: told(line.run("why", name, path, "-o", "json"))["path"]
        for name in ("job/train", "ml/job/train", "rs/web-abc", "deploy/web", "deploy/api")
    }

    assert found == {
        "job/train": "ml/train-x1",
        "ml/job/train": "ml/train-x1",
        "rs/web-abc": "ml/web-abc-1",
        "deploy/web": "ml/web-abc-1",
        "deploy/api": "ml/api-1",
    }


def test_all_pods_of_an_owner_are_a_table(line: CommandLine) -> None:
    """One row each; as data a list."""
    pods = [gpu_pod({"nvidia.com/gpu": 2}, name=f"train-{n}") for n in range(2)]
    for each in pods:
        each["metadata"] |= owned("Job", "train")
    path = dumped(line, *cluster(), *pods)

    lines = line.run("why", "job/train", path).out.splitlines()
    states = [
        each["state"] for each in json.loads(line.run("why", "job/train", path, "-o", "json").out)
    ]

    assert [text.split()[:3] for text in lines[1:]] == [
        ["ml/train-0", "fits", "n2"],
        ["ml/train-1", "waiting", "-"],
    ]
    assert states == ["fits", "waiting"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("p", "ml/p waits", id="without its namespace"),
        pytest.param("ml/pp", "did you mean ml/p", id="mistyped"),
        pytest.param("default/p", "did you mean ml/p?", id="of another namespace"),
        pytest.param("twin", "2 are called so: a/twin, b/twin", id="in two namespaces"),
        pytest.param("long", "did you mean ml/long-7d9f8b-xyz12?", id="the beginning of a name"),
        pytest.param("web", "did you mean deployment/web?", id="the name of an owner"),
        pytest.param("n1/0", "files are asked about Pods", id="a card"),
        pytest.param("n1", "tenure map -", id="a node"),
    ],
)
def test_names_that_are_nearly_right(line: CommandLine, name: str, said: str) -> None:
    """What is meant is found, or said."""
    web = gpu_pod(GPU, name="x")
    web["metadata"] |= owned("ReplicaSet", "web-1", **{"pod-template-hash": "1"})
    others = [gpu_pod(GPU, name="twin", namespace=where) for where in "ab"]
    path = dumped(
        line,
        *cluster(),
        gpu_pod(GPU, name="p"),
        *others,
        gpu_pod(GPU, name="long-7d9f8b-xyz12"),
        web,
    )

    answer = line.run("why", name, path)

    assert said in answer.out + answer.err
    assert answer.code == (0 if answer.out else 2)


# --- inputs -----------------------------------------------------------------------------------


def test_several_files_packed_and_stdin(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tenure map` reads them."""
    nodes = dumped(line, *cluster(), name="nodes.json")
    waits = dumped(line, gpu_pod(GPU, name="p"), name="pods.json")
    packed = line.ledger.with_name("pods.json.gz")
    packed.write_bytes(gzip.compress(Path(waits).read_bytes()))
    stdin = SimpleNamespace(buffer=io.BytesIO(Path(waits).read_bytes()))

    plain = line.run("why", "ml/p", nodes, waits)
    zipped = line.run("why", "ml/p", nodes, str(packed))
    monkeypatch.setattr("sys.stdin", stdin)
    piped = line.run("why", "ml/p", nodes, "-")

    assert plain.code == zipped.code == piped.code == 0
    assert plain.out == zipped.out == piped.out


@pytest.mark.parametrize(
    ("objects", "name", "code", "said"),
    [
        pytest.param([], "ml/p", 2, "kubectl get pods -A", id="an empty list"),
        pytest.param([gpu_pod(GPU, name="p")], "ml/p", 2, "no Node in the input", id="only Pods"),
        pytest.param(
            [gpu_pod(GPU, name="p", nodeName="n9", phase="Running")],
            "ml/p",
            0,
            "ml/p runs on n9",
            id="only Pods, and it runs",
        ),
        pytest.param([node("n1", allocatable=ROOM)], "ml/p", 2, "knows no Pod", id="only nodes"),
        pytest.param(
            [*cluster(), gpu_pod(GPU, name="p"), gpu_pod(GPU, name="p")],
            "ml/p",
            2,
            "duplicate value 'p'",
            id="a Pod twice",
        ),
    ],
)
def test_odd_inputs(
    line: CommandLine, objects: list[Object], name: str, code: int, said: str
) -> None:
    """One message and one next step where there is no answer; never a traceback."""
    answer = line.run("why", name, dumped(line, *objects))

    assert (answer.code, said in answer.out + answer.err) == (code, True), answer
    assert ("next: " in answer.err) == (code == 2)


def test_a_table_of_kubectl_is_told_from_objects(line: CommandLine) -> None:
    """It says what to add."""
    path = line.ledger.with_name("table")
    path.write_text(
        "NAMESPACE   NAME   READY   STATUS    RESTARTS   AGE\n"
        "ml          p      0/1     Pending   0          5m\n"
    )

    answer = line.run("why", "ml/p", str(path))

    assert answer.code == 2
    assert "add -o json" in answer.err


@pytest.mark.parametrize("option", [("--ledger", "x.db"), ("--objects", "x.yaml"), ("--live",)])
def test_files_are_asked_in_place_of_a_ledger(line: CommandLine, option: tuple[str, ...]) -> None:
    """Both together are wrong usage."""
    answer = line.run("why", "ml/p", "x.json", *option)

    assert answer.code == 2
    assert option[0] in answer.err


def test_broken_objects_hide_no_answer(line: CommandLine) -> None:
    """A Pod and a node that can't be read are named; what the one may hold is unknown."""
    broken = gpu_pod(GPU, name="bad", nodeName="n1", phase="Running")
    broken["metadata"]["annotations"] = {"scheduling.koordinator.sh/device-allocated": "{"}
    odd = node("n3", allocatable=ROOM, annotations={"node.koordinator.sh/reservation": "{"})
    wants = gpu_pod({"nvidia.com/gpu": 2}, name="p", nodeSelector={"zone": "z"})
    path = dumped(line, *cluster(), odd, broken, wants)

    answer = line.run("why", "ml/p", path)
    bad = line.run("why", "ml/bad", path)

    assert answer.code == bad.code == 0
    assert "3 node(s) didn't match Pod's node affinity/selector" in answer.out
    for text in ("Pod ml/bad: ", "Node n3: "):
        assert any(each.startswith(f"warning: {text}") for each in answer.err.splitlines())
    assert "ml/bad runs on n1" in bad.out
    assert (
        "can't be read: metadata.annotations[scheduling.koordinator.sh/device-allocated]" in bad.out
    )


def test_two_nodes_of_one_machine_hold_its_cards_once(line: CommandLine) -> None:
    """The older Node object gives nothing."""
    for_one = {"nodeInfo": {"systemUUID": "4c4c4544-0047-3010-8036-b4c04f4b3032", "machineID": "m"}}
    twins = []
    for number, name in enumerate(("old", "new")):
        each = node(name, allocatable=ROOM)
        each["status"] |= for_one
        each["metadata"]["creationTimestamp"] = f"2026-01-0{number + 1}T00:00:00Z"
        twins.append(each)
    both = [gpu_pod({"nvidia.com/gpu": 2}, name=name) for name in ("first", "p")]

    answer = line.run("why", "ml/p", dumped(line, *twins, *both))

    assert "decided after 1 Pod that waits too: ml/first on new" in answer.out
    assert "MachineRegisteredAgain" in answer.out


def test_nodes_that_lack_the_same_share_a_row(line: CommandLine) -> None:
    """What could never serve the Pod is one line; as data every node is there."""
    cpu = {"cpu": "64", "memory": "256Gi"}
    nodes = [node(f"cpu-{n}", allocatable=cpu) for n in range(5)]
    nodes += [node(f"gpu-{n}", allocatable=ROOM) for n in range(4)]
    nodes.append(node("shut", allocatable=ROOM, unschedulable=True))
    runs = [
        gpu_pod({"nvidia.com/gpu": 2}, name=f"runs-{n}", nodeName=f"gpu-{n}", phase="Running")
        for n in range(4)
    ]
    path = dumped(line, *nodes, *runs, gpu_pod(GPU, name="p"))

    lines = line.run("why", "ml/p", path, "-o", "wide").out.splitlines()
    rows = told(line.run("why", "ml/p", path, "-o", "json"))["nodes"]

    assert any(text.startswith("4 nodes: gpu-0, gpu-1, gpu-2, ...  ") for text in lines)
    assert any(text.startswith("shut  ") for text in lines)
    assert "never, whoever holds what there: 5 nodes: cpu-0, cpu-1, cpu-2, ..." in lines
    assert {row["node"]: row["never"] for row in rows} == {
        each["metadata"]["name"]: each["metadata"]["name"].startswith("cpu") for each in nodes
    }
