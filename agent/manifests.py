"""
The agent of every node of ours as API objects: how it runs, what it may do, and to which objects.

Rule: design section 8, "Ownership of the metal"; docs/agent.md says why each mount. Its account may
write Nodes and Devices; a policy in the API server narrows that to the node that its token is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent.decide.env_proof import COMMAND, MEMORY, NAME, SCHEDULER, SECONDS_MAX
from agent.decide.isolation import LIBRARY, Provider
from ledger.domain.annotations.tenure import visible_key
from ledger.domain.dialects.gpushare.words import ANNOTATION_GPUSHARE_ASSIGNED
from ledger.domain.resources import (
    ANNOTATION_TENURE_VISIBLE_PREFIX,
    CALLER_NODE_NAME,
    CALLER_POD_UID,
    ENV_NVIDIA_VISIBLE,
    LABEL_TENURE_OWNED,
    TAINT_TENURE_OWNED,
)

ACCOUNT: Final = "tenure-agent"
PORT: Final = 8080
_RBAC: Final = "rbac.authorization.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io/v1"
_KOORDINATOR: Final = "scheduling.koordinator.sh"
_ETC: Final = "/etc/tenure"
_KUBELET: Final = "kubelet"
_KUBELET_ROOT: Final = "/var/lib/kubelet"
_OWN_POD: Final = f"request.userInfo.extra[?'{CALLER_POD_UID}'][0].orValue('')"

Thing = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentManifests:
    """
    What the objects say.

    Attributes:
        image: with the command `tenure` and its agent extra.
        service: URL of the service's API; empty = the Service `tenure-api` of the namespace.
        authority: PEM of that listener's authority.
        keys: public keys of proofs as a ConfigMap has them (`ledger.signing.published`).
        ledger_keys: verifier keys of the ledger's checkpoints.
        cards: CDI specification of the cards, in the runtime's folder.
        kubelet_authority: the node's file with the authority of kubelet's listener; empty = the
            cluster's.
        runtime_class: of a runtime that gives a container the driver's library.
        marks_pods: the mode gpushare marks Pods of its node.
        reads_claims: it confirms the ends of claims, by kubelet's own folder.
        isolation: what keeps containers to their parts of cards; its library is in `LIBRARY`.
        by_environment: the mode env, which a Pod of the agent's own proves on each node.
        probe_runtime_class: of that Pod, and of those that hold cards; empty = they name none.
    """

    image: str
    authority: str
    keys: Mapping[str, str] = field(default_factory=dict)
    ledger_keys: tuple[str, ...] = ()
    namespace: str = "tenure-system"
    service: str = ""
    cards: str = "/var/run/cdi/nvidia.yaml"
    kubelet_authority: str = "/var/lib/kubelet/pki/kubelet.crt"
    runtime_class: str = "nvidia"
    marks_pods: bool = False
    reads_claims: bool = False
    isolation: Provider = Provider.NONE
    by_environment: bool = False
    probe_runtime_class: str = ""

    @property
    def mode(self) -> str:
        """Return the `--mode` of these agents, which both services have to have as `slotMode`."""
        return "env" if self.by_environment else "gpushare" if self.marks_pods else "plugin"


def manifests(options: AgentManifests) -> list[Thing]:
    """Return all objects, the policy before what it narrows."""
    probing = (*_probe_policies(options), *_probe_rights(options)) if options.by_environment else ()
    guarded = (*_policy(options), *probing)
    return [*guarded, *_rights(options), *_files(options), _daemon_set(options)]


def _policy(options: AgentManifests) -> Iterator[Thing]:
    """
    Yield the policy that narrows what agents write to what is their node's.

    A token without the claim writes nothing: it was not mounted by the kubelet of any node.
    """
    things = (
        ("", ["nodes", "nodes/status"], ["*"]),
        (_KOORDINATOR, ["devices", "devices/status"], ["*"]),
        *([("", ["pods"], ["*"])] if options.marks_pods else ()),
    )
    of_pods = "object.?spec.?nodeName.orValue('') == variables.node"
    name_of = "(request.operation == 'DELETE' ? oldObject : object).metadata.name"
    of_node = f"{name_of} == variables.node"
    mine = f"request.resource.resource == 'pods' ? {of_pods} : {of_node}"
    no_spec = "request.resource.resource != 'nodes' || request.operation != 'UPDATE'"
    no_pod = "request.resource.resource != 'pods' || request.operation != 'UPDATE'"
    same = [
        ("an agent writes no spec of its Node", f"{no_spec} || object.spec == oldObject.spec"),
        (
            f"an agent writes nothing of a Pod but that {ANNOTATION_GPUSHARE_ASSIGNED} is true",
            f"{no_pod} || ({_marked_alone()})",
        ),
    ]
    yield from _guard(
        options,
        name=ACCOUNT,
        things=things,
        operations=["CREATE", "UPDATE", "DELETE"],
        rules=[
            ("an agent writes what is of its own node alone", mine),
            *(same if options.marks_pods else same[:1]),
        ],
    )


def _guard(
    options: AgentManifests,
    *,
    name: str,
    things: Iterable[tuple[str, list[str], list[str]]],
    operations: list[str],
    rules: Iterable[tuple[str, str]],
) -> Iterator[Thing]:
    """
    Yield a policy on what agents write, with its binding.

    Args:
        things: group, resources and versions.
        rules: what is told whom a rule refuses, and the rule; `variables.node` is the token's.
    """
    yield {
        "apiVersion": _ADMISSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [group],
                        "apiVersions": versions,
                        "operations": operations,
                        "resources": resources,
                    }
                    for group, resources, versions in things
                ]
            },
            "matchConditions": [
                {"name": "agents", "expression": f"request.userInfo.username == '{_user(options)}'"}
            ],
            "variables": [
                {
                    "name": "node",
                    "expression": f"request.userInfo.extra[?'{CALLER_NODE_NAME}'][0].orValue('')",
                }
            ],
            "validations": [
                {
                    "expression": "variables.node != ''",
                    "message": "the token is bound to no Pod on a node: take the one that kubelet"
                    " mounts",
                    "reason": "Forbidden",
                },
                *(
                    {
                        "expression": expression,
                        "messageExpression": f'"{message}: node=" + variables.node',
                        "message": message,
                        "reason": "Forbidden",
                    }
                    for message, expression in rules
                ),
            ],
        },
    }
    yield {
        "apiVersion": _ADMISSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }


def _probe_policies(options: AgentManifests) -> Iterator[Thing]:
    """
    Yield what narrows the right to make a Pod to the one that proves the mode env on a node.

    Rule: ADR 0028. One name, that of the token's Pod, in the agents' namespace, and bound to its
    node; what runs in it is our own command without a volume, a token or a privilege: whoever has
    the token of one node gets nothing by it, there or elsewhere.
    """
    own = f"'{NAME}' + {_OWN_POD}"
    here = f"request.namespace == '{options.namespace}'"
    # A Binding's labels go into its Pod, and the API server's own plugin writes these.
    places = "'topology.kubernetes.io/zone', 'topology.kubernetes.io/region'"
    card = f"k == '{visible_key('0')}' && object.metadata.annotations[k].matches('^GPU-[^,]*$')"
    yield from _guard(
        options,
        name=f"{ACCOUNT}-probe",
        things=[("", ["pods"], ["v1"])],
        operations=["CREATE", "DELETE"],
        rules=[
            ("an agent makes and deletes its own probe alone", f"{here} && request.name == {own}"),
            (
                "an agent's probe is as its manifests say",
                f"request.operation == 'DELETE' || ({_is_probe(options)})",
            ),
        ],
    )
    yield from _guard(
        options,
        name=f"{ACCOUNT}-probe-binding",
        things=[("", ["pods/binding"], ["v1"])],
        operations=["CREATE"],
        rules=[
            (
                "an agent binds its own probe to its own node alone",
                f"{here} && request.name == {own} && object.target.name == variables.node",
            ),
            ("an agent's probe is shown one card", f"object.metadata.annotations.all(k, {card})"),
            (
                "an agent's probe is given no label",
                f"object.metadata.?labels.orValue({{}}).all(k, k in [{places}])",
            ),
        ],
    )


def _is_probe(options: AgentManifests) -> str:
    """
    Return that a Pod is what `ProbePod` makes, whatever a token's holder would like in it.

    What the API server's own plugins may add counts for nothing: a LimitRange's amounts, bounded,
    with its annotation; the account's pull secrets; the overhead of a RuntimeClass; a class of
    priority, but for those to which kubelet lets others give way.
    """
    spec, security, meta = "object.spec", "c.securityContext", "object.metadata"
    absent = (
        *("initContainers", "ephemeralContainers", "volumes", "nodeName", "hostPID", "hostIPC"),
        *("hostUsers", "hostAliases", "shareProcessNamespace", "resourceClaims", "resources"),
    )
    user = ("runAsUser", "runAsGroup", "seLinuxOptions", "appArmorProfile", "windowsOptions")
    of_pod = (*user, "seccompProfile", "supplementalGroups", "fsGroup", "sysctls")
    bare = ("args", "volumeMounts", "volumeDevices", "envFrom", "lifecycle", "ports", "stdin")
    probes = ("livenessProbe", "readinessProbe", "startupProbe", "restartPolicy")
    command = ", ".join(f"'{word}'" for word in COMMAND)
    field = "e.?valueFrom.?fieldRef.?fieldPath.orValue('')"
    visible = f'{field}.startsWith("metadata.annotations[\'{ANNOTATION_TENURE_VISIBLE_PREFIX}")'
    of_owner = f"o.kind == 'Pod' && o.uid == {_OWN_POD} && !o.?controller.orValue(false)"
    amounts = [f"c.?resources.?{kind}.orValue({{}})" for kind in ("limits", "requests")]
    within = "k == 'memory' || k == 'cpu' && !quantity(string({0}[k])).isGreaterThan(quantity('1'))"
    of_container = [
        f"c.image == '{options.image}'",
        f"has(c.command) && c.command == [{command}]",
        *(f"!has(c.{each})" for each in (*bare, *probes)),
        f"has(c.env) && c.env.all(e, e.name == '{ENV_NVIDIA_VISIBLE}' && {visible})",
        f"{amounts[0]}[?'memory'].orValue('') == '{MEMORY}'",
        *(f"{one}.all(k, {within.format(one)})" for one in amounts),
        f"has({security}) && !{security}.?allowPrivilegeEscalation.orValue(true)",
        f"!{security}.?privileged.orValue(false) && !has({security}.procMount)",
        f"{security}.?readOnlyRootFilesystem.orValue(false)",
        f"{security}.?capabilities.?drop.orValue([]) == ['ALL']",
        f"!has({security}.capabilities.add)",
        f"{security}.?seccompProfile.?type.orValue('') == 'RuntimeDefault'",
        *(f"!has({security}.{each})" for each in user),
    ]
    rules = [
        # By labels or an owner it would be a Service's or a controller's, for the whole cluster.
        *(f"!has({meta}.{each})" for each in ("labels", "finalizers")),
        f"{meta}.?ownerReferences.orValue([]).all(o, {of_owner})",
        f"{meta}.?annotations.orValue({{}}).all(k, k == 'kubernetes.io/limit-ranger')",
        *(f"!has({spec}.{each})" for each in absent),
        *(f"!{spec}.?securityContext.?{each}.hasValue()" for each in of_pod),
        f"{spec}.restartPolicy == 'Never'",
        f"{spec}.?hostNetwork.orValue(false)",
        f"{spec}.?activeDeadlineSeconds.orValue(0) == {SECONDS_MAX}",
        f"{spec}.schedulerName == '{SCHEDULER}'",
        f"{spec}.?runtimeClassName.orValue('') == '{options.probe_runtime_class}'",
        f"!{spec}.?priorityClassName.orValue('').startsWith('system-')",
        f"{spec}.?serviceAccountName.orValue('default') == 'default'",
        f"{spec}.?automountServiceAccountToken.orValue(true) == false",
        f"size({spec}.containers) == 2 && {spec}.containers.all(c, {' && '.join(of_container)})",
    ]
    return " && ".join(rules)


def _probe_rights(options: AgentManifests) -> Iterator[Thing]:
    named = {"name": f"{ACCOUNT}-probe", "namespace": options.namespace}
    rules = [
        _may(["create", "delete"], "", "pods"),
        _may(["create"], "", "pods/binding"),
    ]
    yield {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": named, "rules": rules}
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": named,
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": named["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": options.namespace}],
    }


def _marked_alone() -> str:
    """Return that nothing of a Pod is other than before but its mark, which became true."""
    now, before = (f"{one}.metadata.?annotations.orValue({{}})" for one in ("object", "oldObject"))
    mark = f"'{ANNOTATION_GPUSHARE_ASSIGNED}'"
    marked = f"k == {mark} && {before}[k] == 'false' && {now}[k] == 'true'"
    parts = [
        "object.spec == oldObject.spec",
        f"{now}.all(k, k in {before} && ({before}[k] == {now}[k] || {marked}))",
        f"{before}.all(k, k in {now})",
    ]
    for name, empty in (("labels", "{}"), ("finalizers", "[]"), ("ownerReferences", "[]")):
        both = (f"{one}.metadata.?{name}.orValue({empty})" for one in ("object", "oldObject"))
        parts.append(" == ".join(both))
    return " && ".join(parts)


def _rights(options: AgentManifests) -> Iterator[Thing]:
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(options)}
    rules = [
        _may(["get", "patch"], "", "nodes"),
        _may(["patch"], "", "nodes/status"),
        _may(["get"], "", "nodes/pods"),  # kubelet's own: the API serves no such thing
        _may(["get", "create", "patch"], _KOORDINATOR, "devices"),
        _may(["patch"], _KOORDINATOR, "devices/status"),
    ]
    if options.marks_pods:
        rules.append(_may(["patch"], "", "pods"))
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": ACCOUNT},
        "rules": rules,
    }
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": options.namespace}],
    }


def _files(options: AgentManifests) -> Iterator[Thing]:
    contents = (("ca", {"ca.crt": options.authority}), ("proof-keys", dict(options.keys)))
    for what, data in contents:
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{ACCOUNT}-{what}", "namespace": options.namespace},
            "data": data,
        }


def _daemon_set(options: AgentManifests) -> Thing:
    """
    Return how it runs.

    An upgrade starts the new one beside the old one, which goes when it is ready; so it has an
    address of its own, and no port of the node. Root, because kubelet's and the runtime's folders
    are root's; no capability, and no privilege.
    """
    labels = {"app.kubernetes.io/name": ACCOUNT}
    pod: Thing = {
        "serviceAccountName": ACCOUNT,
        "priorityClassName": "system-node-critical",
        "nodeSelector": {LABEL_TENURE_OWNED: "true"},
        "tolerations": [{"key": TAINT_TENURE_OWNED, "operator": "Exists"}],
        "terminationGracePeriodSeconds": 10,
        "containers": [_container(options)],
        "volumes": [{"name": name, **source} for name, source, _, _ in _mounts(options)],
    }
    if options.runtime_class:
        pod["runtimeClassName"] = options.runtime_class
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {**_metadata(options), "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _container(options: AgentManifests) -> Thing:
    service = options.service or f"https://tenure-api.{options.namespace}.svc"
    args = [
        *("--service", service, "--ca", f"{_ETC}/ca/ca.crt"),
        *("--proof-keys", f"{_ETC}/proof-keys", "--cards", options.cards),
        *("--host", "/host", "--state", "/var/lib/tenure", "--probes", f"0.0.0.0:{PORT}"),
        *("--kubelet", "https://$(NODE_IP):10250"),
    ]
    for key in options.ledger_keys:
        args += ["--ledger-key", key]
    if options.kubelet_authority:
        args += ["--kubelet-ca", f"{_ETC}/kubelet.crt"]
    args += ["--mode", options.mode]
    if options.by_environment:
        args += ["--probe-image", options.image, "--probe-namespace", options.namespace]
        args += ["--probe-runtime-class", options.probe_runtime_class]
    if options.reads_claims:
        args += ["--kubelet-root", f"/host{_KUBELET_ROOT}"]
    if options.isolation is not Provider.NONE:
        args += ["--isolation", str(options.isolation)]
    environment: list[Thing] = [
        {"name": "TENURE_AGENT_NODE", **_field("spec.nodeName")},
        {"name": "NODE_IP", **_field("status.hostIP")},
    ]
    if options.runtime_class:  # the driver's library, to look at cards; it uses none
        environment += [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ]
    return {
        "name": "agent",
        "image": options.image,
        "command": ["tenure", "serve", "agent"],
        "args": args,
        "env": environment,
        "ports": [{"name": "probes", "containerPort": PORT}],
        "livenessProbe": {
            "httpGet": {"path": "/livez", "port": PORT},
            "initialDelaySeconds": 30,
            "timeoutSeconds": 5,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": PORT},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
        },
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"memory": "384Mi"},
        },
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": name, "mountPath": path, "readOnly": is_read_only, **_followed(name)}
            for name, _, path, is_read_only in _mounts(options)
        ],
    }


def _mounts(options: AgentManifests) -> Iterator[tuple[str, Thing, str, bool]]:
    """Yield name, source, place and whether it is for reading alone; why: docs/agent.md."""
    plugins = "/var/lib/kubelet/device-plugins"
    yield "plugins", _host(plugins, "Directory"), plugins, False
    yield "cdi", _host("/var/run/cdi", "DirectoryOrCreate"), "/var/run/cdi", False
    # The folder, for the socket in it is another one after each start of the runtime.
    yield "runtime", _host("/run/containerd", "Directory"), "/run/containerd", True
    given = "/var/lib/kubelet/pod-resources"
    yield "pod-resources", _host(given, "Directory"), given, True
    yield "state", _host("/var/lib/tenure", "DirectoryOrCreate"), "/var/lib/tenure", False
    yield "sys", _host("/sys", "Directory"), "/host/sys", True
    yield "proc", _host("/proc", "Directory"), "/host/proc", True
    yield "machine-id", _host("/etc/machine-id", "File"), "/host/etc/machine-id", True
    if options.reads_claims:  # the folder, for the record is another file after each change
        yield _KUBELET, _host(_KUBELET_ROOT, "Directory"), f"/host{_KUBELET_ROOT}", True
    if options.isolation is not Provider.NONE:
        folder = LIBRARY.rpartition("/")[0]
        yield "isolation", _host(folder, "Directory"), f"/host{folder}", True
    if options.kubelet_authority:
        yield "kubelet-ca", _host(options.kubelet_authority, "File"), f"{_ETC}/kubelet.crt", True
    for what in ("ca", "proof-keys"):
        yield what, {"configMap": {"name": f"{ACCOUNT}-{what}"}}, f"{_ETC}/{what}", True


def _followed(name: str) -> Thing:
    """Return that what the host unmounts there is unmounted for us too: no volume stays busy."""
    return {"mountPropagation": "HostToContainer"} if name == _KUBELET else {}


def _host(path: str, kind: str) -> Thing:
    return {"hostPath": {"path": path, "type": kind}}


def _field(path: str) -> Thing:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def _may(verbs: list[str], group: str, resource: str) -> Thing:
    return {"apiGroups": [group], "resources": [resource], "verbs": verbs}


def _metadata(options: AgentManifests) -> Thing:
    return {"name": ACCOUNT, "namespace": options.namespace}


def _user(options: AgentManifests) -> str:
    return f"system:serviceaccount:{options.namespace}:{ACCOUNT}"
