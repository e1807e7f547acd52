"""Where a workload keeps the templates of its Pods, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain.annotations.wire import an_object

Steps = tuple[str | int, ...]
"""The way to a field: keys of objects, places in arrays."""

_PATHS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "Deployment": ("apps", ("spec", "template")),
    "StatefulSet": ("apps", ("spec", "template")),
    "DaemonSet": ("apps", ("spec", "template")),
    "ReplicaSet": ("apps", ("spec", "template")),
    "Job": ("batch", ("spec", "template")),
    "CronJob": ("batch", ("spec", "jobTemplate", "spec", "template")),
    "ReplicationController": ("", ("spec", "template")),
    "PodTemplate": ("", ("template",)),
}
"""Kubernetes' own kinds -> API group, and the way to their template."""

_DEPTH_MAX: Final = 16
_TEMPLATES_MAX: Final = 256
_KUBERNETES: Final = ".k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """
    A Pod template of a workload.

    Attributes:
        path: `spec.template`, which field errors begin with.
        pod: a Pod as the workload's controller would create it.
        by_kind: it stands where its kind, one of Kubernetes' own, has it.
    """

    steps: Steps
    body: Mapping[str, Any]
    pod: Mapping[str, Any]
    by_kind: bool

    @property
    def path(self) -> str:
        """Return the field path of the template."""
        text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)
        return text.removeprefix(".")

    def with_pod(self, workload: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
        """Return the workload with a template that makes this Pod."""
        template = dict(self.body)
        for key in ("metadata", "spec"):
            if key in pod and pod[key] is not self.pod.get(key):
                template[key] = {
                    name: value
                    for name, value in pod[key].items()
                    if not (key == "metadata" and name in _added(self))
                }
        replaced: dict[str, Any] = _replaced(workload, self.steps, template)
        return replaced


def templates_of(workload: Mapping[str, Any], *, name: str) -> tuple[Template, ...]:
    """
    Return the Pod templates of a workload, in its order; empty ones are none.

    In Kubernetes' own kinds one stands where its kind has it. Of any other kind it is an object
    with `spec.containers` under a key that ends in `template`: a `template` as of Kubeflow, Ray,
    Volcano, JobSet and Argo, a `workerTemplate` as of LeaderWorkerSet.

    A DaemonSet's Pods carry their owner, for each of them is bound to one node.

    Raises:
        InputError: a wrong type on the way to the template of a kind that is known.
    """
    kind, version = str(workload.get("kind")), workload.get("apiVersion")
    group, steps = _PATHS.get(kind, ("", ()))
    if steps and not (isinstance(version, str) and version.rpartition("/")[0] != group):
        body: Mapping[str, Any] = workload
        for number, step in enumerate(steps):
            body = an_object(body.get(step), ".".join(steps[: number + 1]))
        return (_template(steps, body, kind, name, by_kind=True),) if body else ()
    found = []
    for way, body in _found(workload, ()):
        found.append(_template(way, body, kind, name, by_kind=False))
        if len(found) == _TEMPLATES_MAX:
            break
    return tuple(found)


def is_of_kubernetes(workload: Mapping[str, Any]) -> bool:
    """Tell whether an object is of one of Kubernetes' own API groups, whose kinds are known."""
    version = workload.get("apiVersion")
    group = version.rpartition("/")[0] if isinstance(version, str) else "."
    return "." not in group or group.endswith(_KUBERNETES)


def _found(value: object, steps: Steps) -> Iterator[tuple[Steps, Mapping[str, Any]]]:
    """Yield every Pod template below a value with the way to it; none inside of another one."""
    if len(steps) >= _DEPTH_MAX:
        return
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _found(item, (*steps, place))
    elif isinstance(value, dict):
        for key, item in value.items():
            if not steps and key in {"metadata", "status"}:
                continue
            way = (*steps, key)
            if str(key).lower().endswith("template") and _makes_pods(item):
                yield way, item
            else:
                yield from _found(item, way)


def _makes_pods(value: object) -> bool:
    spec = value.get("spec") if isinstance(value, dict) else None
    return isinstance(spec, dict) and isinstance(spec.get("containers"), list)


def _template(
    steps: Steps, body: Mapping[str, Any], kind: str, name: str, *, by_kind: bool
) -> Template:
    template = Template(steps=steps, body=body, pod={}, by_kind=by_kind)
    path = template.path
    metadata = an_object(body.get("metadata"), f"{path}.metadata")
    added: dict[str, Any] = {} if metadata.get("name") else {"generateName": f"{name}-"}
    if kind == "DaemonSet" and by_kind:
        added["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    spec = an_object(body.get("spec"), f"{path}.spec")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, **added}, "spec": spec}
    return Template(steps=steps, body=body, pod=pod, by_kind=by_kind)


def _added(template: Template) -> frozenset[str]:
    written = an_object(template.body.get("metadata"), "metadata")
    return frozenset(template.pod["metadata"].keys() - written.keys())


def _replaced(parent: Any, steps: Steps, value: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    step, *rest = steps
    below = _replaced(parent[step], tuple(rest), value) if rest else value
    if isinstance(step, int):
        return [below if place == step else item for place, item in enumerate(parent)]
    return {**parent, step: below}
