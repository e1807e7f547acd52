from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Final

import jsonpatch
import pytest
import yaml

from tests.support.cli import Answer, CommandLine
from tests.support.objects import Object, container, device, gpu_device, gpu_pod, node, pod
from tests.support.process import ROOT, tenure

pytestmark = pytest.mark.integration

KEYS: Final = [
    "kind",
    "namespace",
    "name",
    "allowed",
    "message",
    "causes",
    "warnings",
    "patch",
    "object",
]
NVIDIA: Final = {"nvidia.com/gpu": "1"}
CARD: Final = {
    "koordinator.sh/gpu-core": "100",
    "koordinator.sh/gpu-memory-ratio": "100",
    "koordinator.sh/gpu.shared": "1",
}
SCHEDULER: Final = "system:serviceaccount:tenure-system:tenure-scheduler"


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line; `check` uses no ledger."""
    return CommandLine(tmp_path / "none.db", capsys)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for manifests."""
    return tmp_path


def write(path: Path, *objects: Object) -> str:
    """Write objects to a file of YAML documents and return its name."""
    path.write_text(yaml.safe_dump_all([json.loads(json.dumps(one)) for one in objects]))
    return str(path)


def entries(answer: Answer) -> list[Object]:
    """Return the array of the JSON answer."""
    result: list[Object] = json.loads(answer.out)
    return result


def checked(cli: CommandLine, place: Path, *objects: Object, code: int = 0) -> list[Object]:
    """Return the answer for these objects, after looking at the exit code."""
    answer = cli.run("check", write(place / "in.yaml", *objects), "-o", "json")
    assert answer.code == code, answer.err
    return entries(answer)


def test_every_entry_has_every_key_in_input_order(cli: CommandLine, place: Path) -> None:
    """cli.md: one entry per object; applied to the input, the patch gives the object."""
    inputs = [gpu_pod(NVIDIA, name="a"), node("n1"), pod(name="b"), gpu_pod({"cpu": "1"}, name="c")]

    result = checked(cli, place, *inputs)

    assert [list(entry) for entry in result] == [KEYS] * 4
    assert [(entry["kind"], entry["namespace"], entry["name"]) for entry in result] == [
        ("Pod", "ml", "a"),
        ("Node", "", "n1"),
        ("Pod", "ml", "b"),
        ("Pod", "ml", "c"),
    ]
    for entry, before in zip(result, inputs, strict=True):
        assert (entry["allowed"], entry["message"], entry["causes"]) == (True, "", [])
        assert jsonpatch.apply_patch(copy.deepcopy(before), entry["patch"]) == entry["object"]
    assert [bool(entry["patch"]) for entry in result] == [True, False, False, False]


def test_a_pod_of_whole_cards_is_rewritten(cli: CommandLine, place: Path) -> None:
    """Requests and limits, our scheduler, our mark."""
    (entry,) = checked(cli, place, gpu_pod(NVIDIA))

    body = entry["object"]
    assert body["spec"]["containers"][0]["resources"] == {"limits": CARD, "requests": CARD}
    assert body["spec"]["schedulerName"] == "tenure"
    assert body["metadata"]["annotations"]["tenure.sh/admitted"] == "true"


def test_a_refused_pod_has_all_its_causes_and_exit_code_1(cli: CommandLine, place: Path) -> None:
    """cli.md: field, reason and message of each; the others are decided all the same."""
    broken = pod(
        container("a", limits={"koordinator.sh/gpu": "150"}),
        container("b", limits={"koordinator.sh/gpu": "250"}),
        name="bad",
    )

    bad, good = checked(cli, place, broken, gpu_pod(NVIDIA, name="good"), code=1)

    assert good["allowed"]
    assert not bad["allowed"]
    assert {cause["field"] for cause in bad["causes"]} == {
        "spec.containers[0].resources.requests[koordinator.sh/gpu]",
        "spec.containers[1].resources.requests[koordinator.sh/gpu]",
    }
    assert {cause["reason"] for cause in bad["causes"]} == {"FieldValueInvalid"}
    assert all(list(cause) == ["field", "reason", "message"] for cause in bad["causes"])
    assert bad["message"].startswith('Pod "bad" is invalid: [spec.containers[0].resources')


API_RULES: dict[str, tuple[Object, str, str, str]] = {
    "not whole": (
        {"limits": {"koordinator.sh/gpu": "500m"}},
        "limits[koordinator.sh/gpu]",
        "FieldValueInvalid",
        'Invalid value: "500m": must be an integer',
    ),
    "negative": (
        {"limits": {"nvidia.com/gpu": "-1"}},
        "limits[nvidia.com/gpu]",
        "FieldValueInvalid",
        'Invalid value: "-1": must be greater than or equal to 0',
    ),
    "negative, the proposal's mGPU": (
        {"requests": {"vke.volcengine.com/mgpu-core": "-20"}},
        "requests[vke.volcengine.com/mgpu-core]",
        "FieldValueInvalid",
        'Invalid value: "-20": must be greater than or equal to 0',
    ),
    "negative CPU": (
        {"requests": {"cpu": "-1"}},
        "requests[cpu]",
        "FieldValueInvalid",
        'Invalid value: "-1": must be greater than or equal to 0',
    ),
    "requests differ from limits": (
        {"limits": {"koordinator.sh/rdma": "2"}, "requests": {"koordinator.sh/rdma": "1"}},
        "requests[koordinator.sh/rdma]",
        "FieldValueInvalid",
        'Invalid value: "1": must be equal to koordinator.sh/rdma limit of 2',
    ),
    "the same of the proposal's domain": (
        {"limits": {"kubernetes.io/rdma": "2"}, "requests": {"kubernetes.io/rdma": "1"}},
        "requests[kubernetes.io/rdma]",
        "FieldValueInvalid",
        'Invalid value: "1": must be equal to kubernetes.io/rdma limit of 2',
    ),
    "somebody else's without limits": (
        {"requests": {"example.com/thing": "1"}},
        "limits[example.com/thing]",
        "FieldValueRequired",
        "Required value: Limit must be set for non overcommitable resources",
    ),
}


@pytest.mark.parametrize("case", API_RULES.values(), ids=API_RULES)
def test_the_api_servers_own_rules_are_checked(
    cli: CommandLine, place: Path, case: tuple[Object, str, str, str]
) -> None:
    """cli.md: integers, not negative, requests == limits; in the API server's words."""
    resources, field, reason, message = case

    (entry,) = checked(cli, place, pod(container(**resources)), code=1)

    field = f"spec.containers[0].resources.{field}"
    assert {"field": field, "reason": reason, "message": message} in entry["causes"]
    assert {cause["field"].rpartition("[")[2] for cause in entry["causes"]} == {
        field.rpartition("[")[2]
    }


def test_requests_and_limits_fill_one_another(cli: CommandLine, place: Path) -> None:
    """As in the proposals' examples, which show only one of the two."""
    asked = {"vke.volcengine.com/mgpu-core": "30", "vke.volcengine.com/mgpu-memory": "1k"}

    first, second = checked(
        cli,
        place,
        pod(container(requests=asked), name="a"),
        pod(container(limits=asked), name="b"),
    )

    assert first["allowed"]
    assert first["object"]["spec"]["containers"] == second["object"]["spec"]["containers"]


def test_a_pod_with_a_node_is_refused(cli: CommandLine, place: Path) -> None:
    """cli.md: CREATE with `spec.nodeName` and our resources."""
    (entry,) = checked(cli, place, gpu_pod({"koordinator.sh/gpu": "50"}, nodeName="n1"), code=1)

    assert ("spec.nodeName", "FieldValueForbidden") in [
        (cause["field"], cause["reason"]) for cause in entry["causes"]
    ]
    assert entry["patch"] == []


@pytest.mark.parametrize(
    ("amounts", "count", "code"), [(NVIDIA, 250, 0), (NVIDIA, 251, 1), ({"cpu": "1"}, 251, 0)]
)
def test_more_containers_than_admission_decides_on_are_refused(
    cli: CommandLine, place: Path, amounts: dict[str, str], count: int, code: int
) -> None:
    """As in a cluster; a Pod that asks for nothing of ours is not looked at there."""
    body = pod(*(container(f"c{number}", limits=amounts) for number in range(count)))
    (entry,) = checked(cli, place, body, code=code)

    assert ("at most 250 in one list" in entry["message"]) == bool(code)


def test_an_annotation_that_is_no_json_refuses_the_pod(cli: CommandLine, place: Path) -> None:
    """As in a cluster: only this Pod, with its field, and everything else that is wrong with it."""
    key = "scheduling.koordinator.sh/resource-spec"
    body = gpu_pod({"koordinator.sh/gpu": "150"}, annotations={key: "{"})

    (entry,) = checked(cli, place, body, code=1)

    assert [cause["field"] for cause in entry["causes"]] == [
        f"metadata.annotations[{key}]",
        "spec.containers[0].resources.requests[koordinator.sh/gpu]",
    ]


WORKLOADS: dict[str, tuple[str, str, list[str]]] = {
    "Deployment": ("apps/v1", "Deployment", ["spec", "template"]),
    "StatefulSet": ("apps/v1", "StatefulSet", ["spec", "template"]),
    "ReplicaSet": ("apps/v1", "ReplicaSet", ["spec", "template"]),
    "Job": ("batch/v1", "Job", ["spec", "template"]),
    "CronJob": ("batch/v1", "CronJob", ["spec", "jobTemplate", "spec", "template"]),
    "ReplicationController": ("v1", "ReplicationController", ["spec", "template"]),
    "PodTemplate": ("v1", "PodTemplate", ["template"]),
}


def workload(api_version: str, kind: str, steps: list[str], template: Object) -> Object:
    """Return a workload with a template where its kind keeps it."""
    body: Object = template
    for step in reversed(steps):
        body = {step: body}
    metadata = {"name": "w", "namespace": "ml"}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


@pytest.mark.parametrize("case", WORKLOADS.values(), ids=WORKLOADS)
def test_templates_of_workloads_are_checked(
    cli: CommandLine, place: Path, case: tuple[str, str, list[str]]
) -> None:
    """cli.md: under `spec.template.`, as their Pods will be."""
    _, kind, steps = case
    good = workload(*case, {"spec": gpu_pod(NVIDIA)["spec"]})
    bad = workload(*case, {"spec": gpu_pod({"koordinator.sh/gpu": "150"})["spec"]})

    (first,) = checked(cli, place, good)
    (second,) = checked(cli, place, bad, code=1)

    assert (first["kind"], first["namespace"], first["name"]) == (kind, "ml", "w")
    assert jsonpatch.apply_patch(copy.deepcopy(good), first["patch"]) == first["object"]
    assert all(one["path"].startswith("/" + "/".join(steps)) for one in first["patch"])
    below = first["object"]
    for step in steps:
        below = below[step]
    assert below["spec"]["containers"][0]["resources"]["limits"] == CARD
    assert set(below["metadata"]) == {"annotations"}
    (cause,) = second["causes"]
    path = ".".join(steps)
    assert cause["field"] == f"{path}.spec.containers[0].resources.requests[koordinator.sh/gpu]"
    assert second["message"].startswith(f'{kind} "w" is invalid: {path}.spec')


OPERATORS: dict[str, tuple[str, str, list[list[str | int]]]] = {
    "PyTorchJob": (
        "kubeflow.org/v1",
        "PyTorchJob",
        [["spec", "pytorchReplicaSpecs", name, "template"] for name in ("Master", "Worker")],
    ),
    "MPIJob": (
        "kubeflow.org/v2beta1",
        "MPIJob",
        [["spec", "mpiReplicaSpecs", name, "template"] for name in ("Launcher", "Worker")],
    ),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        [["spec", "leaderWorkerTemplate", f"{name}Template"] for name in ("leader", "worker")],
    ),
    "RayCluster": (
        "ray.io/v1",
        "RayCluster",
        [["spec", "headGroupSpec", "template"], ["spec", "workerGroupSpecs", 0, "template"]],
    ),
    "RayJob": (
        "ray.io/v1",
        "RayJob",
        [
            ["spec", "rayClusterSpec", "headGroupSpec", "template"],
            ["spec", "rayClusterSpec", "workerGroupSpecs", 0, "template"],
            ["spec", "submitterPodTemplate"],
        ],
    ),
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        [["spec", "replicatedJobs", place, "template", "spec", "template"] for place in (0, 1)],
    ),
    "Volcano Job": (
        "batch.volcano.sh/v1alpha1",
        "Job",
        [["spec", "tasks", place, "template"] for place in (0, 1)],
    ),
    "Rollout": ("argoproj.io/v1alpha1", "Rollout", [["spec", "template"]]),
    "one of tomorrow": ("example.com/v1", "Thing", [["spec", "parts", 0, "podTemplate"]]),
}
"""Kinds that GPU users have, with the places of their templates."""


def with_value(body: Object, steps: list[str | int], value: Object) -> None:
    """Put a value at a place, and what is missing on the way there."""
    at: Any = body
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        empty: Any = value if after is None else [] if isinstance(after, int) else {}
        if isinstance(step, int):
            at.extend([{}] * (step + 1 - len(at)))
            at[step] = at[step] or empty
        else:
            at.setdefault(step, empty)
        at = at[step]


def text_of(steps: list[str | int]) -> str:
    """Return a field path."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return text.removeprefix(".")


@pytest.mark.parametrize("case", OPERATORS.values(), ids=OPERATORS)
def test_templates_are_found_by_where_they_stand(
    cli: CommandLine, place: Path, case: tuple[str, str, list[list[str | int]]]
) -> None:
    """Each template of an operator's kind is checked as the Pods that it makes."""
    version, kind, ways = case
    head = {"apiVersion": version, "kind": kind, "metadata": {"name": "w", "namespace": "ml"}}
    good, bad = copy.deepcopy(head), copy.deepcopy(head)
    for steps in ways:
        with_value(good, steps, {"spec": gpu_pod(NVIDIA)["spec"]})
        with_value(bad, steps, {"spec": gpu_pod({"koordinator.sh/gpu": "150"})["spec"]})

    (first,) = checked(cli, place, good)
    (second,) = checked(cli, place, bad, code=1)

    assert jsonpatch.apply_patch(copy.deepcopy(good), first["patch"]) == first["object"]
    assert first["warnings"] == []
    for steps in ways:
        below = first["object"]
        for step in steps:
            below = below[step]
        assert below["spec"]["containers"][0]["resources"]["limits"] == CARD
    assert [cause["field"] for cause in second["causes"]] == [
        f"{text_of(steps)}.spec.containers[0].resources.requests[koordinator.sh/gpu]"
        for steps in ways
    ]


def test_a_kind_without_a_template_is_said_not_to_be_checked(cli: CommandLine, place: Path) -> None:
    """What allows an object without having looked says so, but for Kubernetes' own kinds."""
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "t"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}

    first, second = checked(cli, place, job, service)

    assert (first["allowed"], first["warnings"]) == (True, ["not checked: kind PyTorchJob"])
    assert (second["allowed"], second["warnings"]) == (True, [])


def test_pods_of_a_daemon_set_are_left_alone(cli: CommandLine, place: Path) -> None:
    """Each is bound to one node: they are marked as seen, and not ours to place."""
    body = workload("apps/v1", "DaemonSet", ["spec", "template"], {"spec": gpu_pod(NVIDIA)["spec"]})

    (entry,) = checked(cli, place, body)

    assert entry["patch"] == [
        {
            "op": "add",
            "path": "/spec/template/spec/containers/0/resources/requests",
            "value": NVIDIA,  # the API server's default, which admission sees
        },
        {
            "op": "add",
            "path": "/spec/template/metadata",
            "value": {"annotations": {"tenure.sh/admitted": "true"}},
        },
    ]


def test_what_the_api_server_fills_in_comes_before_our_changes(
    cli: CommandLine, place: Path
) -> None:
    """In a cluster admission sees requests that follow from limits, and records them."""
    (entry,) = checked(cli, place, gpu_pod({"cpu": "2", **NVIDIA}))

    (made,) = entry["object"]["spec"]["containers"]
    assert made["resources"]["requests"]["cpu"] == "2"
    original = json.loads(entry["object"]["metadata"]["annotations"]["tenure.sh/original-request"])
    assert list(original["containers"].values()) == [{"limits": NVIDIA, "requests": NVIDIA}]


def test_other_kinds_are_allowed_as_they_are(cli: CommandLine, place: Path) -> None:
    """cli.md: with an empty patch, whatever is in them."""
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"x": 1}}
    empty = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    foreign = {
        "apiVersion": "acme.io/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": {"spec": {"containers": "none"}}},
    }

    for entry, before in zip(
        checked(cli, place, service, empty, foreign), (service, empty, foreign), strict=True
    ):
        assert (entry["allowed"], entry["patch"]) == (True, [])
        assert entry["object"] == before


def test_devices_are_checked_too(cli: CommandLine, place: Path) -> None:
    """The validating webhook looks at them as well."""
    broken = device(gpu_device(0), gpu_device(0))

    (entry,) = checked(cli, place, broken, code=1)

    assert entry["kind"] == "Device"
    assert entry["causes"]


def namespace(**labels: str) -> Object:
    """Return the Namespace `ml`; keywords are our labels."""
    body = {f"tenure.sh/{key}": text for key, text in labels.items()}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml", "labels": body}}


def test_a_namespace_in_the_input_says_whether_it_is_managed(cli: CommandLine, place: Path) -> None:
    """cli.md: every namespace counts as managed unless a Namespace says otherwise."""
    plain = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
    for spaces, changed in (
        ([], True),
        ([namespace(managed="true")], True),
        ([namespace(managed="false")], False),
        ([plain], False),
        ([namespace(managed="true", takeover="false")], False),
    ):
        *_, entry = checked(cli, place, *spaces, gpu_pod(NVIDIA))

        assert (entry["object"]["spec"].get("schedulerName") == "tenure") is changed


@pytest.mark.parametrize(
    "asked", [NVIDIA, CARD, {"aliyun.com/gpu-mem": "8"}, {"vke.volcengine.com/mgpu-core": "100"}]
)
def test_a_quota_on_cards_refuses_what_it_would_not_count(
    cli: CommandLine, place: Path, asked: dict[str, str]
) -> None:
    """Design section 5 and 8: whatever the dialect, the refusal shows the quota translated."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "ml"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "4"}},
    }

    _, entry = checked(cli, place, quota, gpu_pod(asked), code=1)

    assert 'ResourceQuota "q" limits nvidia.com/gpu but does not count' in entry["message"]
    assert "; add to its spec.hard: requests." in entry["message"]
    limits = entry["object"]["spec"]["containers"][0]["resources"]["limits"]
    assert (limits == NVIDIA) == (asked == NVIDIA)


def test_settings_of_cpus_of_both_services_are_read(cli: CommandLine, place: Path) -> None:
    """The shared file, with what only the scheduler decides by."""
    head = "apiVersion: tenure.sh/v1alpha1\nkind: TenureConfiguration\n"
    (place / "good.yaml").write_text(f"{head}cpu: {{asProposed: true}}\n", "utf-8")
    (place / "bad.yaml").write_text(f"{head}cpu: {{asProposed: sometimes}}\n", "utf-8")
    file = write(place / "pod.yaml", gpu_pod(CARD))

    assert cli.run("check", file, "--config", str(place / "good.yaml")).code == 0
    refused = cli.run("check", file, "--config", str(place / "bad.yaml"))
    assert refused.code == 2
    assert "bad.yaml:3: cpu.asProposed: input should be a valid boolean" in refused.err


@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [
        ("gpu-scheduler-policy", "spread", ""),
        ("node-scheduler-policy", "binpack", ""),
        ("gpu-scheduler-policy", "topology-aware", "links between shares of cards"),
        ("gpu-scheduler-policy", "numa", "cards in the order of NUMA nodes"),
        ("device-scoring-weights", "slot=1,core=1,memory=3", "weights that are not all 1"),
    ],
)
def test_a_policy_that_a_pod_wishes_is_known_or_refused(
    cli: CommandLine, place: Path, key: str, value: str, refused: str
) -> None:
    """HAMi's contract, 2: as `simulate` and the scheduler say."""
    share, ignore = {"nvidia.com/gpumem": "2048"}, {"hami.io/webhook": "ignore"}
    body = gpu_pod(share, annotations={f"hami.io/{key}": value}, labels=ignore)
    entry = checked(cli, place, body, code=1 if refused else 0)[-1]

    assert entry["allowed"] is not bool(refused)
    assert refused in entry["message"]


def test_only_our_service_accounts_write_allocations(cli: CommandLine, place: Path) -> None:
    """cli.md: `--user NAME`, default `check`."""
    text = json.dumps(
        {"gpu": [{"minor": 0, "id": "GPU-0", "resources": {"koordinator.sh/gpu-core": "100"}}]}
    )
    key = "scheduling.koordinator.sh/device-allocated"
    old = write(place / "old.yaml", gpu_pod(CARD))
    new = write(place / "new.yaml", gpu_pod(CARD, annotations={key: text}))
    update = ("check", new, "--operation", "UPDATE", "--old", old, "-o", "json")

    forged, ours = cli.run(*update), cli.run(*update, "--user", SCHEDULER)

    assert (forged.code, ours.code) == (1, 0)
    (cause,) = entries(forged)[0]["causes"]
    assert (cause["field"], cause["reason"]) == (
        f"metadata.annotations[{key}]",
        "FieldValueForbidden",
    )


def test_a_binding_of_our_pod_is_our_schedulers(cli: CommandLine, place: Path) -> None:
    """The Pod it names is looked for in the input, as admission leaves it."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "ml"},
        "target": {"kind": "Node", "name": "n1"},
    }
    name = write(place / "in.yaml", gpu_pod(NVIDIA), binding)

    theirs = cli.run("check", name, "-o", "json")
    ours = cli.run("check", name, "-o", "json", "--user", SCHEDULER)

    assert (theirs.code, ours.code) == (1, 0)
    assert [entry["allowed"] for entry in entries(theirs)] == [True, False]
    assert entries(theirs)[1]["causes"][0]["reason"] == "FieldValueForbidden"


def test_an_update_is_compared_with_the_old_object(cli: CommandLine, place: Path) -> None:
    """What was decided about a Pod does not change any more; nothing is mutated."""
    old = write(place / "old.yaml", gpu_pod({"koordinator.sh/gpu-memory": "4Gi"}))
    new = write(place / "new.yaml", gpu_pod({"koordinator.sh/gpu-memory": "8Gi"}))
    same = cli.run("check", old, "--operation", "update", "--old", old, "-o", "json")

    answer = cli.run("check", new, "--operation", "UPDATE", "--old", old, "-o", "json")

    assert same.code == 0
    assert entries(same)[0]["patch"] == []
    assert answer.code == 1
    assert entries(answer)[0]["causes"][0]["field"].startswith("spec.containers[0].resources")


def test_a_new_ephemeral_container_is_asked_for_by_itself(cli: CommandLine, place: Path) -> None:
    """As by `kubectl debug`: blind in a Pod of our scheduler's, refused a card in another's."""
    see_all = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    debug = [{"name": "d", "env": [see_all]}]
    for scheduler, allowed in (("tenure", True), ("theirs", False)):
        old = gpu_pod(CARD, schedulerName=scheduler)
        new = gpu_pod(CARD, schedulerName=scheduler, ephemeralContainers=debug)
        files = write(place / "new.yaml", new), write(place / "old.yaml", old)

        answer = cli.run(
            "check", files[0], "--operation", "UPDATE", "--old", files[1], "-o", "json"
        )

        (entry,) = entries(answer)
        assert entry["allowed"] is allowed
        assert jsonpatch.apply_patch(copy.deepcopy(new), entry["patch"]) == entry["object"]
        env = entry["object"]["spec"]["ephemeralContainers"][0]["env"]
        assert env == ([{**see_all, "value": "void"}] if allowed else [see_all])
        assert [cause["field"] for cause in entry["causes"]] == (
            [] if allowed else ["spec.ephemeralContainers[0].env[0].value"]
        )


USAGE: dict[str, tuple[list[str], str]] = {
    "UPDATE without --old": (["a.yaml", "--operation", "UPDATE"], "needs --old"),
    "--old without UPDATE": (["a.yaml", "--old", "a.yaml"], "--old is for UPDATE"),
    "an object that is not in --old": (
        ["a.yaml", "--operation", "UPDATE", "--old", "b.yaml"],
        "a.yaml:3: Pod ml/a: metadata.name: not among the objects of --old",
    ),
    "a quantity that is none, in the old object": (
        ["a.yaml", "--operation", "UPDATE", "--old", "was.yaml"],
        "was.yaml:6: Pod ml/a: spec.containers[0].resources.limits[cpu]: not a quantity",
    ),
    "old containers that are no list": (
        ["a.yaml", "--operation", "UPDATE", "--old", "were.yaml"],
        "were.yaml:4: Pod ml/a: spec.containers: expected a list",
    ),
    "no file": ([], "missing argument"),
    "a file that is not there": (["none.yaml"], "no such file"),
    "an unknown operation": (["a.yaml", "--operation", "DELETE"], "delete"),
    "broken YAML": (["broken.yaml"], "broken.yaml:2: broken YAML"),
    "an empty file": (["empty.yaml"], "no object in the input"),
    "a quantity that is none": (
        ["quantity.yaml"],
        "quantity.yaml:6: Pod ml/q: spec.containers[0].resources.limits[cpu]: not a quantity",
    ),
    "a quantity that is none, in an update": (
        ["quantity.yaml", "--operation", "UPDATE", "--old", "quantity.yaml"],
        "quantity.yaml:6: Pod ml/q: spec.containers[0].resources.limits[cpu]: not a quantity",
    ),
    "a quantity in a template": (
        ["template.yaml"],
        "d: spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]: not a quantity",
    ),
    "containers that are no list": (
        ["list.yaml"],
        "list.yaml:4: Pod ml/l: spec.containers: expected a list",
    ),
    "a quota that can't be read": (["quota.yaml"], "spec.hard[cpu]: not a quantity"),
    "a file twice": (["a.yaml", "a.yaml"], "the file is given twice"),
}
FILES: Final = {
    "a.yaml": "kind: Pod\nmetadata:\n  name: a\n  namespace: ml\nspec: {containers: [{name: c}]}\n",
    "b.yaml": "kind: Pod\nmetadata: {name: b, namespace: ml}\nspec: {containers: [{name: c}]}\n",
    "broken.yaml": "kind: [Pod\n",
    "empty.yaml": "",
    "quantity.yaml": "kind: Pod\nmetadata: {name: q, namespace: ml}\nspec:\n  containers:\n"
    "  - name: c\n    resources: {limits: {cpu: many}}\n",
    "was.yaml": "kind: Pod\nmetadata: {name: a, namespace: ml}\nspec:\n  containers:\n"
    "  - name: c\n    resources: {limits: {cpu: many}}\n",
    "were.yaml": "kind: Pod\nmetadata: {name: a, namespace: ml}\nspec:\n  containers: none\n",
    "template.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n"
    "  template:\n    spec:\n      containers: [{name: c, resources: "
    "{limits: {nvidia.com/gpu: x}}}]\n",
    "list.yaml": "kind: Pod\nmetadata: {name: l, namespace: ml}\nspec:\n  containers: none\n",
    "quota.yaml": "kind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {cpu: x}}\n",
}


@pytest.mark.parametrize("case", USAGE.values(), ids=USAGE)
def test_what_can_not_be_read_is_exit_code_2(
    cli: CommandLine,
    place: Path,
    case: tuple[list[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """cli.md: one message with file, line or object, and field; nothing on stdout."""
    arguments, expected = case
    for name, text in FILES.items():
        (place / name).write_text(text)
    monkeypatch.chdir(place)

    answer = cli.run("check", *arguments)

    assert (answer.code, answer.out) == (2, "")
    assert expected.lower() in answer.err.lower()
    assert "next: " in answer.err
    assert "Traceback" not in answer.err


def test_people_see_a_table_and_the_reasons_below(cli: CommandLine, place: Path) -> None:
    """One line for each object, one for each violation."""
    answer = cli.run(
        "check",
        write(
            place / "in.yaml",
            gpu_pod(NVIDIA, name="good"),
            gpu_pod({"koordinator.sh/gpu": "150"}, name="bad"),
        ),
    )

    lines = answer.out.splitlines()
    assert answer.code == 1
    assert lines[0].split() == ["NAMESPACE", "KIND", "NAME", "ALLOWED", "CHANGES"]
    assert lines[1].split()[:4] == ["ml", "Pod", "good", "yes"]
    assert lines[2].split()[:4] == ["ml", "Pod", "bad", "no"]
    assert "Pod ml/bad is refused:" in lines
    assert "the requested GPU must be percentage of 100" in answer.out
    assert answer.err == ""


def test_other_forms_carry_the_same_answer(cli: CommandLine, place: Path) -> None:
    """YAML is the JSON array; CSV has a line for each object."""
    name = write(place / "in.yaml", gpu_pod(NVIDIA))
    as_json = entries(cli.run("check", name, "-o", "json"))

    assert yaml.safe_load(cli.run("check", name, "-o", "yaml").out) == as_json
    assert cli.run("check", name, "-o", "csv").out.splitlines() == [
        "namespace,kind,name,allowed,message,warnings",
        "ml,Pod,p,true,,[]",
    ]


def test_the_installed_command_reads_stdin(tmp_path: Path) -> None:
    """`kubectl get ... -o yaml | tenure check -`, without a ledger anywhere."""
    done = tenure("check", "-", "-o", "json", cwd=tmp_path, stdin=json.dumps(gpu_pod(NVIDIA)))

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)[0]["allowed"]
    assert list(tmp_path.iterdir()) == []


def test_a_priority_is_what_the_classes_of_the_input_give(cli: CommandLine, place: Path) -> None:
    """By name, by the least default, or 0; a number by hand is refused where it is another one."""
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    classes = [
        {**head, "metadata": {"name": name}, "value": value, "globalDefault": default}
        for name, value, default in (("high", 9900, True), ("low", 9100, True), ("none", 0, False))
    ]
    labels = {"koordinator.sh/qosClass": "LSR"}

    def answer(*objects: Object, code: int, **spec: Any) -> tuple[bool, object]:  # noqa: ANN401 - JSON
        body = pod(container(limits={"cpu": "2", "memory": "1Gi"}), name="p", labels=labels, **spec)
        said = checked(cli, place, *objects, body, code=code)[-1]
        return said["allowed"], {cause["field"] for cause in said["causes"]}

    assert answer(code=0) == answer(priority=None, code=0) == (True, set())
    assert answer(priorityClassName="koord-prod", code=0) == (True, set())
    assert answer(priorityClassName="koord-prod", priority=9000, code=0) == (True, set())
    assert answer(*classes, priority=9100, code=0) == (True, set())
    assert answer(*classes, priority=9900, code=1) == (False, {"spec.priority"})
    assert answer(priority=9500, code=1) == (False, {"spec.priority"})
    qos = {"metadata.labels[koordinator.sh/qosClass]"}
    assert answer(*classes, priorityClassName="none", code=1) == (False, qos)
    assert answer(priorityClassName="unheard-of", code=1) == (False, qos)
    policy = {"spec.preemptionPolicy"}
    assert answer(preemptionPolicy="Never", code=1) == (False, policy)
    assert answer(*classes, preemptionPolicy="Never", code=1) == (False, policy)
    assert answer(priorityClassName="koord-prod", preemptionPolicy="Never", code=0) == (True, set())


def test_a_priority_class_that_cant_be_read_is_named(cli: CommandLine, place: Path) -> None:
    """With its file and line."""
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": "9500"}
    file = write(place / "in.yaml", {**body, "metadata": {"name": "high"}})

    answer = cli.run("check", file)

    assert answer.code == 2
    assert f"{file}:1: PriorityClass high: Expected `int`, got `str`" in answer.err


def test_the_examples_of_the_tree_are_as_they_say(cli: CommandLine) -> None:
    """Only the Pod that mixes dialects is refused."""
    answer = cli.run("check", str(ROOT / "examples"), "-o", "json")

    assert [entry["name"] for entry in entries(answer) if not entry["allowed"]] == ["two-dialects"]
