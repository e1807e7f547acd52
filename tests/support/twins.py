"""
Random Pods by a seed, and what the rules that stand both in Python and in CEL say of each.

A theme bends a Pod towards one family of rules, so that each is broken often and kept often.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from ledger.domain.request.rule_names import Rule
from tests.support.kube.pods import GPUSHARE, HALF, MGPU, WHOLE
from webhook.decide.answers import AdmissionAnswer

Json = dict[str, Any]
Theme = Callable[[random.Random, Json], None]

TWINS: Final[dict[str, tuple[frozenset[Rule], tuple[str, ...]]]] = {
    "ForgedAllocation": (
        frozenset({Rule.FORGED_ALLOCATION}),
        ("allocation annotations are written",),
    ),
    "WholeCpus": (frozenset({Rule.WHOLE_CPUS}), ("LSE and LSR Pods ask for whole CPUs",)),
    "CpuLimits": (
        frozenset({Rule.CPU_LIMITS}),
        ("LSE and LSR Pods ask for CPUs", "LSE and LSR Pods ask for memory"),
    ),
    "RequestsEqualLimits": (
        frozenset({Rule.REQUESTS_EQUAL_LIMITS}),
        ("requests and limits of devices must be equal",),
    ),
    "MgpuInitContainer": (
        frozenset({Rule.MGPU_INIT_CONTAINER}),
        ("mGPU is for containers that run",),
    ),
    "MgpuContainerName": (
        frozenset({Rule.MGPU_CONTAINER_NAME}),
        ("the name of a container with mGPU",),
    ),
    "MgpuPolicy": (
        frozenset({Rule.MGPU_POLICY}),
        ("vke.volcengine.com/mgpu-compute-policy is one of",),
    ),
    "MgpuAmounts": (
        frozenset({Rule.MGPU_NORMAL, Rule.MGPU_MULTIPLE, Rule.MGPU_MEMORY_UNIT}),
        (
            "mGPU on one card",
            "vke.volcengine.com/container-multiple-gpu lists",
            "mGPU over several",
        ),
    ),
    "PinnedNode": (
        frozenset({Rule.PINNED_NODE}),
        (
            "a Pod that asks for devices or CPUs of its own can't choose its node",
            "a Pod that asks for a device of Tenure's can't choose its node",
        ),
    ),
    "OwnedNode": (
        frozenset({Rule.OWNED_NODE}),
        (
            "a Pod that asks for a device tolerates",
            "a Pod that asks for a device that nodes of Tenure's advertise and tolerates",
            "what is in tenure.sh/ is given to Pods",
            "the scheduler tenure gives devices and CPUs to Pods of managed namespaces alone",
        ),
    ),
    "SlotByHand": (frozenset({Rule.SLOT_BY_HAND}), ("tenure.sh/slot is given by Tenure",)),
    "VisibleDevices": (
        frozenset({Rule.VISIBLE_DEVICES}),
        (
            "what a container that holds devices sees is set by Tenure alone",
            "the CDI devices of a Pod that holds devices are given by Tenure alone",
            "an ephemeral container gets no cards",
            "no Pod gains CDI devices",
        ),
    ),
    "Percent": (
        frozenset({Rule.DEVICE_PERCENT, Rule.SHARE_DIVIDES}),
        ("a percentage of a card above 100",),
    ),
    "QosImmutable": (frozenset({Rule.QOS_IMMUTABLE}), ("the QoS class of a Pod",)),
    "PriorityImmutable": (
        frozenset({Rule.PRIORITY_IMMUTABLE}),
        ("the sub-priority of a Pod", "the priority class of a Pod"),
    ),
    "RequestImmutable": (
        frozenset({Rule.REQUEST_IMMUTABLE}),
        ("what a Pod asks for in labels and annotations",),
    ),
    "CpusetResize": (
        frozenset({Rule.CPUSET_RESIZE}),
        ("the CPUs of a Pod that has some of its own",),
    ),
}
"""The rules of each family, and how the messages of its policies begin."""


BYPASSED: Final = "bypassed"
ALONE: Final = {
    "a Pod that asks for devices must pass Tenure's admission": BYPASSED,
    "every container of a Pod that Tenure places is told which cards it sees": BYPASSED,
    "an ephemeral container sees no cards": BYPASSED,
}
"""What policies say without a twin: of Pods that the webhook did not complete."""


def by_rules(answer: AdmissionAnswer) -> frozenset[str]:
    """Return the families that the webhook finds broken."""
    rules = {one.rule for one in answer.refusals}
    return frozenset(name for name, (own, _) in TWINS.items() if not own.isdisjoint(rules))


def by_policies(warnings: Iterable[str]) -> frozenset[str]:
    """Return the families that policies find broken, which only warn; what else they say is one."""
    found = set[str]()
    for text in warnings:
        policy, _, said = text.partition("' with binding '")
        if policy.startswith("Validation failed for ValidatingAdmissionPolicy"):
            said = said.partition("': ")[2]
            known = (name for name, (_, begins) in TWINS.items() if said.startswith(begins))
            other = (name for begins, name in ALONE.items() if said.startswith(begins))
            found.add(next(known, next(other, said)))
    return frozenset(found - {""})


CPUS: Final = (
    *("1", "2", "3", "500m", "0.5", "1.5", "1500m", "1500000u", "250m", "1000m", "2e0"),
    *("500001u", "999999u"),
)
MEMORY: Final = ("1Gi", "512Mi", "1G", "1073741824")
OVERHEADS: Final = {"light": {"cpu": "500m"}, "heavy": {"cpu": "1", "memory": "64Mi"}}
"""RuntimeClass -> what its Pods cost beside their containers."""
THIRDS: Final = {f"koordinator.sh/gpu-{one}": "150" for one in ("core", "memory-ratio")}
EXTENDED: Final = (
    WHOLE,
    HALF,
    MGPU,
    GPUSHARE,
    {"koordinator.sh/gpu": "100"},
    {"koordinator.sh/gpu": "150"},
    {"koordinator.sh/gpu-core": "200", "koordinator.sh/gpu-memory-ratio": "200"},
    {**HALF, "koordinator.sh/gpu-core": "150"},
    {"koordinator.sh/rdma": "50"},
    {"koordinator.sh/fpga": "100"},
    {"amd.com/gpu": "1"},
    {"nvidia.com/gpumem": "4096", "nvidia.com/gpu": "1"},
    {"nvidia.com/gpu": "0"},
    {"koordinator.sh/gpu.shared": "3", **THIRDS},
)
MARK: Final = {"tenure.sh/admitted": "true"}
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
NODE: Final = "twins-node"


def random_pod(rng: random.Random, name: str, themes: Iterable[Theme] = ()) -> Json:
    """Return a Pod; without themes given, some are drawn."""
    spec: Json = {"containers": [_container(f"c{n}") for n in range(rng.choice((1, 1, 2, 3)))]}
    starting = [_container(f"i{n}") for n in range(rng.choice((0, 0, 1, 2, 3)))]
    for container in starting:
        if rng.random() < 0.5:
            container["restartPolicy"] = "Always"
    if starting:
        spec["initContainers"] = starting
    made: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {}, "annotations": {}},
        "spec": spec,
    }
    if rng.random() < 0.15:
        made["metadata"]["annotations"] |= MARK
    if rng.random() < 0.3:
        spec["schedulerName"] = rng.choice(("tenure", "tenure", "volcano", "hami-scheduler"))
    for theme in themes or rng.sample(THEMES, rng.choice((1, 1, 2, 3))):
        theme(rng, made)
    for container in _all(made):
        for amounts in container["resources"].values():
            for one in [*amounts]:  # of two spellings of a resource one would count for nothing
                if one.replace("kubernetes.io/", "koordinator.sh/") in {*amounts} - {one}:
                    del amounts[one]
    return made


def _container(name: str) -> Json:
    return {"name": name, "image": "registry.example/a", "resources": {}}


def _all(pod: Json) -> list[Json]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def _give(container: Json, amounts: dict[str, str], *sections: str) -> None:
    for section in sections or ("requests", "limits"):
        container["resources"].setdefault(section, {}).update(amounts)


def own_cpus(rng: random.Random, pod: Json) -> None:
    """Ask for CPUs of its own, mostly with equal limits, as a whole too, and with overhead."""
    pod["metadata"]["labels"]["koordinator.sh/qosClass"] = rng.choice(
        ("LSR", "LSR", "LSR", "LSE", "LS")
    )
    fine = rng.random() < 0.5
    texts = CPUS if rng.random() < 0.7 else ("1", "2", "1000m", "3")
    for container in _all(pod):
        if rng.random() < 0.85:
            _amounts(rng, container["resources"], texts, fine=fine)
        if rng.random() < 0.3:
            _give(container, {"memory": rng.choice(MEMORY)}, *([] if fine else ["limits"]))
        if not fine and rng.random() < 0.1:
            _give(container, {"memory": "1Mi"}, "requests")
    if rng.random() < 0.2:
        level: Json = {}
        _amounts(rng, level, (*texts, "8", "12"), fine=fine or rng.random() < 0.5)
        pod["spec"]["resources"] = level
    if rng.random() < 0.2:
        pod["spec"]["runtimeClassName"] = rng.choice([*OVERHEADS])


def _amounts(rng: random.Random, resources: Json, texts: tuple[str, ...], *, fine: bool) -> None:
    cpu = rng.choice(texts)
    kind = rng.choice(("both", "both", "limits")) if fine else rng.choice(("both", "less", "alone"))
    if kind in {"both", "less", "limits"}:
        resources.setdefault("limits", {})["cpu"] = cpu if kind != "less" else "16"
    if kind in {"both", "less", "alone"}:
        resources.setdefault("requests", {})["cpu"] = cpu


def devices(rng: random.Random, pod: Json) -> None:
    """Ask for devices in some containers, in one dialect or two."""
    asked = rng.sample(EXTENDED, rng.choice((1, 1, 1, 2)))
    for container in _all(pod):
        if rng.random() < 0.5 or container is pod["spec"]["containers"][0]:
            _give(container, rng.choice(asked))


def native_devices(rng: random.Random, pod: Json) -> None:
    """Ask for devices under names that the API server takes for its own, unequal too."""
    name = rng.choice(("kubernetes.io/gpu", "kubernetes.io/gpu-core", "kubernetes.io/rdma"))
    for container in _all(pod)[-2:]:
        amount = rng.choice(("50", "100", "150", "200", "0"))
        _give(container, {name: amount}, *rng.choice(([], ["limits"])))
        if name.endswith("core"):
            _give(container, {"kubernetes.io/gpu-memory-ratio": amount})
        if rng.random() < 0.3:
            _give(container, {name: "50"}, "requests")


def mgpu(rng: random.Random, pod: Json) -> None:
    """Ask for mGPU, with or without a list of card counts."""
    for container in rng.choice((pod["spec"]["containers"], _all(pod))):
        if rng.random() < 0.8:
            core, memory = (
                rng.choice(("30", "100", "200", "130", "0", "99")),
                rng.choice(("1024", "100", "2048", "6Gi", "")),
            )
            _give(container, {"vke.volcengine.com/mgpu-core": core})
            if memory:
                _give(container, {"vke.volcengine.com/mgpu-memory": memory})
        if rng.random() < 0.1:
            container["name"] = container["name"].ljust(rng.choice((43, 44, 63)), "x")
    annotations = pod["metadata"]["annotations"]
    if rng.random() < 0.4:
        counts = [rng.choice("0122") for _ in pod["spec"]["containers"]]
        counts += ["1"] if rng.random() < 0.1 else []
        annotations["vke.volcengine.com/container-multiple-gpu"] = rng.choice(
            (",".join(counts),) * 4 + ("x", "-1", "", "1,,2", " 1 ")
        )
    if rng.random() < 0.5:
        annotations["vke.volcengine.com/mgpu-compute-policy"] = rng.choice(
            ("fixed-share", "guaranteed-burst-share", "native-burst-share", "none", "x", "")
        )


def sight(rng: random.Random, pod: Json) -> None:
    """Say what containers see, by each of the ways."""
    if rng.random() < 0.7:
        devices(rng, pod)
    for container in _all(pod):
        if rng.random() < 0.6:
            place = ("init-" if container["name"][0] == "i" else "") + container["name"][1]
            container["env"] = [_entry(rng, place) for _ in range(rng.choice((1, 1, 2)))]
    if rng.random() < 0.15:
        path = rng.choice(("/var/run/nvidia-container-devices/0", "/data"))
        pod["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
        rng.choice(_all(pod))["volumeMounts"] = [{"name": "v", "mountPath": path}]
    if rng.random() < 0.15:
        pod["metadata"]["annotations"]["cdi.k8s.io/x"] = "nvidia.com/gpu=all"


def _entry(rng: random.Random, place: str) -> Json:
    value = rng.choice(("void", "void", "none", "all", "", "0"))
    if rng.random() < 0.7:
        return {"name": rng.choice((VISIBLE, VISIBLE, "OTHER")), "value": value}
    path = rng.choice((f"metadata.annotations['tenure.sh/visible.{place}']", "metadata.name"))
    return {"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def forged(rng: random.Random, pod: Json) -> None:
    """Carry annotations that say what is held, or that only look so."""
    for _ in range(rng.choice((1, 2))):
        key = rng.choice(
            (
                "scheduling.koordinator.sh/device-allocated",
                "scheduling.koordinator.sh/resource-status",
                "vke.volcengine.com/assumed",
                "ALIYUN_COM_GPU_MEM_IDX",
                "tenure.sh/visible.0",
                "tenure.sh/admitted",
                "tenure.sh/isolation",
                "scheduling.koordinator.sh/note",
                "example.com/tenure.sh",
            )
        )
        pod["metadata"]["annotations"][key] = "true" if key.endswith("admitted") else "{}"


def placed(rng: random.Random, pod: Json) -> None:
    """Choose a node, or tolerate what keeps others off nodes of ours."""
    rng.choice((devices, own_cpus, native_devices, _plain))(rng, pod)
    spec = pod["spec"]
    if rng.random() < 0.4:
        spec["nodeName"] = NODE
    if rng.random() < 0.6:
        spec["tolerations"] = [
            rng.choice(
                (
                    {"key": "tenure.sh/owned", "operator": "Exists"},
                    {"key": "tenure.sh/owned", "value": "true", "effect": "NoSchedule"},
                    {"operator": "Exists"},
                    {"operator": "Exists", "effect": "NoExecute"},
                    {"key": "nvidia.com/gpu", "operator": "Exists"},
                )
            )
        ]
    if rng.random() < 0.3:
        spec["nodeSelector"] = {"tenure.sh/owned": rng.choice(("true", "false"))}
    if rng.random() < 0.3:
        operator = rng.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        values = {"values": [rng.choice(("true", "false"))]} if operator.endswith("In") else {}
        terms = [{"matchExpressions": [{"key": "tenure.sh/owned", "operator": operator, **values}]}]
        terms += [{}] if rng.random() < 0.3 else []
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    if rng.random() < 0.2:
        spec["resourceClaims"] = [{"name": "x", "resourceClaimName": "x"}]


def _plain(rng: random.Random, pod: Json) -> None:
    for container in _all(pod):
        _amounts(rng, container["resources"], CPUS, fine=True)


def slots(rng: random.Random, pod: Json) -> None:
    """Take slots by hand."""
    if rng.random() < 0.7:
        devices(rng, pod)
    for container in _all(pod):
        if rng.random() < 0.5:
            name = rng.choice(("tenure.sh/slot",) * 3 + ("tenure.sh/x",))
            _give(container, {name: rng.choice("0112")})
    pod["spec"].setdefault("schedulerName", rng.choice(("tenure", "default-scheduler")))


THEMES: Final = (own_cpus, own_cpus, devices, native_devices, mgpu, sight, forged, placed, slots)


CHANGED_LABELS: Final = {
    "koordinator.sh/qosClass": ("LSR", "LS", "", None),
    "koordinator.sh/priority-class": ("koord-prod", "koord-batch", "x", "", None),
    "koordinator.sh/priority": ("9", "", None),
    "gputopology.scheduling.koordinator.sh/name": ("a", "", None),
    "team": ("b", None),
}
CHANGED_ANNOTATIONS: Final = {
    "scheduling.koordinator.sh/resource-spec": ("{}", "", None),
    "scheduling.koordinator.sh/device-allocated": ("{}", None),
    "cdi.k8s.io/x": ("nvidia.com/gpu=all", None),
    "tenure.sh/admitted": ("true", "x", None),
    "note": ("b", None),
}


def stored_pod(rng: random.Random, name: str) -> Json:
    """Return a Pod to be changed; half of them have a node."""
    made = random_pod(rng, name, rng.choice(((own_cpus,), (_plain,), (devices,), (forged,))))
    labels, annotations = made["metadata"]["labels"], made["metadata"]["annotations"]
    for there, known in ((labels, CHANGED_LABELS), (annotations, CHANGED_ANNOTATIONS)):
        for key, values in known.items():
            value = rng.choice((*values, None)) if rng.random() < 0.4 else None
            if value is not None:
                there.setdefault(key, value)
    if rng.random() < 0.2:
        cpus = rng.choice(('{"cpuset":"0-1"}', '{"cpuset":""}', '{"cpuSharedPools":[]}'))
        annotations["scheduling.koordinator.sh/resource-status"] = cpus
    if rng.random() < 0.5:
        made["spec"]["nodeName"] = NODE
    return made


def random_change(rng: random.Random, stored: Json) -> tuple[str, Json]:
    """Return a subresource, and the strategic merge patch for it."""
    way = rng.choice(("", "", "", "status", "resize", "resize", "ephemeralcontainers"))
    if way == "resize":
        return way, {"spec": _resize(rng, stored["spec"])}
    if way == "ephemeralcontainers":
        container: Json = {"name": "debug", "image": "registry.example/a"}
        if rng.random() < 0.7:
            container["env"] = [_entry(rng, "0")]
        return way, {"spec": {"ephemeralContainers": [container]}}
    metadata: Json = {"labels": {}, "annotations": {}}
    for _ in range(rng.choice((1, 1, 2))):
        field, known = rng.choice(
            (("labels", CHANGED_LABELS), ("annotations", CHANGED_ANNOTATIONS))
        )
        key = rng.choice([*known])
        metadata[field][key] = rng.choice(known[key])
    more: Json = {}
    if not way and rng.random() < 0.2:
        gained = rng.choice(
            ({"key": "tenure.sh/owned", "operator": "Exists"}, {"operator": "Exists"})
        )
        more["spec"] = {"tolerations": [*stored["spec"].get("tolerations", ()), gained]}
    return way, {"metadata": metadata, **more}


def _resize(rng: random.Random, spec: Json) -> Json:
    """Change CPUs or memory, of one container or of the Pod as a whole."""
    cpu = rng.choice(("1", "2", "1500m"))
    amounts = {"cpu": cpu} if rng.random() < 0.7 else {"memory": rng.choice(MEMORY)}
    resources: Json = {"requests": amounts, "limits": dict(amounts)}
    if rng.random() < 0.2:
        return {"resources": resources}
    if rng.random() < 0.2:
        del resources[rng.choice([*resources])]
    container = rng.choice(spec["containers"])
    return {"containers": [{"name": container["name"], "resources": resources}]}
