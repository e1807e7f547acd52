"""One object through both webhooks, as the API server would send it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ledger.domain.annotations.wire import an_object
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import found_in, metadata_of, spec_of
from ledger.domain.kube.pod_spec import DEFAULT_NAMESPACE
from ledger.domain.kube.runtime_classes import with_runtime_class
from ledger.domain.request.rules import one_of_each
from ledger.domain.resources import ANNOTATION_TENURE_VOCABULARY
from tenure.check.api_rules import Priorities, check_amounts, with_api_defaults
from tenure.check.facts import UNNAMED, written
from tenure.exits import with_next
from tenure.manifests import OURS, Document
from webhook.decide import answers
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.pod import EPHEMERAL, mutate_pod, mutated, with_blind_ephemeral
from webhook.decide.patch import diff
from webhook.decide.review import CREATE, UPDATE, AdmissionRequest, User
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating.validate import validate
from webhook.decide.validating.workloads import workload_advice

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

_PLACING: Final = ("nodeSelector", "tolerations")
_EPHEMERAL: Final = "ephemeralContainers"
_CHECKED: Final = frozenset({"Pod", "Device", "NodeResourceTopology", "Node", "Binding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What becomes of one object (cli.md, tenure check); `body` is the object after the patch."""

    kind: str
    namespace: str
    name: str
    body: Mapping[str, Any]
    message: str = ""
    causes: tuple[FieldError, ...] = ()
    warnings: tuple[str, ...] = ()
    patch: tuple[answers.PatchOperation, ...] = ()

    @property
    def allowed(self) -> bool:
        """Tell whether the object may be stored."""
        return not self.causes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """
    Both webhooks, offline.

    Attributes:
        user: who asks; groups follow from a name of Kubernetes' own.
        facts: namespace -> what the input says of it.
        pods: (namespace, name) -> Pods of the input, which Bindings name; as they are after our
            own changes, since a Binding comes after them.
        old: (kind, namespace, name) -> objects before an UPDATE.
        nearly: Pod -> which resources it asks for by a name that no Node of the input offers.
    """

    operation: str
    user: User
    settings: AdmissionSettings
    facts: Mapping[str, NamespaceFacts]
    pods: Mapping[tuple[str, str], Mapping[str, Any]]
    old: Mapping[tuple[str, str, str], Document]
    priorities: Priorities
    runtime_classes: Mapping[str, Mapping[str, Any]]
    nearly: Callable[[Mapping[str, Any]], Iterator[str]] = lambda _: iter(())

    def check(self, document: Document) -> Checked:
        """Return what becomes of an object. Raises InputError: unreadable, or not an old one."""
        body = written(document)
        try:
            if document.kind in _CHECKED:
                return self._object(document, body)
            templates = templates_of(body, name=document.name)
            if templates:
                return self._workload(document, body, templates)
        except InputError as error:
            raise (error if error.place else document.blame(error)) from None
        known = document.ours or is_of_kubernetes(body)
        unchecked = () if known else (f"not checked: kind {body['kind']}",)
        warnings = (*unchecked, *self._made_for(document))
        return _checked(document, body, causes=(), warnings=warnings)

    def _made_for(self, document: Document) -> tuple[str, ...]:
        """Say of a policy or a webhook that it was made for other words than those of our own."""
        digest = found_in(document.metadata, "annotations", ANNOTATION_TENURE_VOCABULARY)
        own = self.settings.vocabulary.digest
        if digest in {None, own}:
            return ()
        fact = f"made for another vocabulary than --config says: {digest} is not {own}"
        return (f"{fact}; print it again with `tenure manifests` and the same --config",)

    def _object(self, document: Document, body: Mapping[str, Any]) -> Checked:
        request = self._request(document, body)
        facts = self._facts(document)
        if document.kind == "Pod" and self.operation == CREATE:
            return self._pod(document, request, facts, body)
        answer = validate(request, self.settings, facts)
        api = tuple(check_amounts(request.obj or {})) if document.kind == "Pod" else ()
        after, debugged = self._ephemeral(request, facts, body)
        return _checked(
            document,
            after,
            causes=one_of_each([*_together(api, answer, answer), *debugged.causes]),
            warnings=(*answer.warnings, *debugged.warnings),
            patch=diff(body, after),
            namespace=request.namespace,
        )

    def _ephemeral(
        self, request: AdmissionRequest, facts: NamespaceFacts, body: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], answers.AdmissionAnswer]:
        """Answer for ephemeral containers, which only come by a subresource of their own."""
        now, was = (spec_of(pod).get(_EPHEMERAL) for pod in (request.obj, request.old))
        if (request.group, request.kind) != ("", "Pod") or now == was:
            return body, answers.ALLOWED
        after = body
        if facts.managed:
            after = with_blind_ephemeral(body, request.old or {}, self.settings)
        asked = replace(request, subresource=EPHEMERAL, obj=after)
        return after, validate(asked, self.settings, facts)

    def _pod(
        self,
        document: Document,
        request: AdmissionRequest,
        facts: NamespaceFacts,
        body: Mapping[str, Any],
    ) -> Checked:
        after, causes, warnings = self._decide(request, facts, body)
        patch = diff(body, after)
        return _checked(document, after, causes=causes, warnings=warnings, patch=patch)

    def _workload(
        self, document: Document, workload: Mapping[str, Any], templates: Sequence[Template]
    ) -> Checked:
        """Return what becomes of a workload by the Pods that its templates make."""
        namespace = document.namespace or DEFAULT_NAMESPACE
        result = workload
        causes: list[FieldError] = []
        warnings: list[str] = []
        for template in templates:
            after, refused, said = self._made(document, template, namespace)
            causes += (replace(each, field=f"{template.path}.{each.field}") for each in refused)
            warnings += said
            if template.by_kind:
                advice = workload_advice(workload, template.body, template.path)
                warnings += (item.text for item in advice)
            result = template.with_pod(result, after)
        return _checked(
            document,
            result,
            causes=causes,
            warnings=warnings,
            patch=diff(workload, result),
            namespace=namespace,
        )

    def _made(
        self, document: Document, template: Template, namespace: str
    ) -> tuple[Mapping[str, Any], tuple[FieldError, ...], tuple[str, ...]]:
        request = AdmissionRequest(
            uid=document.title,
            operation=CREATE,
            kind="Pod",
            resource="pods",
            namespace=namespace,
            user=self.user,
            obj=template.pod,
        )
        try:
            return self._decide(request, self.facts.get(namespace, UNNAMED), template.pod)
        except InputError as error:
            raise error.within(template.path) from error

    def _decide(
        self, request: AdmissionRequest, facts: NamespaceFacts, pod: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], tuple[FieldError, ...], tuple[str, ...]]:
        """Default, mutate, check as the API server does, validate: all refusals at once."""
        classed, refused = with_runtime_class(pod, self.runtime_classes)
        sent = with_api_defaults(self.priorities.fill(classed))
        first = mutate_pod(replace(request, obj=sent), self.settings, facts)
        after = pod
        if first.allowed and first.patch:
            after = mutated(sent, self.settings, facts, namespace=request.namespace)
            given, own = spec_of(sent), spec_of(pod)
            spec = {k: v for k, v in spec_of(after).items() if k in own or v != given.get(k)}
            spec |= {k: own[k] for k in _PLACING if k in own and spec[k] == given[k]}
            after = {**after, "spec": spec}  # the API server fills the rest in
        classed, _ = with_runtime_class(after, self.runtime_classes)
        whole = with_api_defaults(self.priorities.fill(classed))
        filled_in = () if first.allowed else self.settings.vocabulary.device_names
        amounts = check_amounts(whole, filled_in=filled_in)
        api = (*refused, *amounts, *self.priorities.check(whole))
        second = validate(replace(request, obj=whole), self.settings, facts)
        found = (*self._missing(spec_of(whole)), *self.nearly(sent))
        warnings = (*first.warnings, *second.warnings, *found)
        return after, _together(api, first, second), warnings

    def _missing(self, spec: Mapping[str, Any]) -> Iterator[str]:
        for key, kind, known in (
            ("priorityClassName", "PriorityClass", self.priorities.values),
            ("runtimeClassName", "RuntimeClass", self.runtime_classes),
        ):
            if (name := spec.get(key)) and name not in known:
                fact = "is not in the input and counts as none; without it no cluster takes the pod"
                yield f"spec.{key}: {kind} {name} {fact}"

    def _request(self, document: Document, body: Mapping[str, Any]) -> AdmissionRequest:
        version = body.get("apiVersion")
        group, _, number = (version if isinstance(version, str) else "v1").rpartition("/")
        if document.kind == "Pod":
            body = with_api_defaults(body) if self.operation == UPDATE else body
        return AdmissionRequest(
            uid=document.uid or document.title,
            operation=self.operation,
            kind=document.kind,
            group=group or OURS.get(document.kind, ""),
            version=number,
            namespace=_namespace(document),
            name=document.metadata.get("name", ""),
            user=self.user,
            obj=body,
            old=self._old(document) if self.operation == UPDATE else None,
        )

    def _old(self, document: Document) -> Mapping[str, Any]:
        key = (document.kind, document.namespace, document.name)
        if key not in self.old:
            error = InputError("not among the objects of --old", field="metadata.name")
            raise with_next(error, "name a file with --old that holds the object before the update")
        old = self.old[key]
        body = written(old)
        try:
            if document.kind != "Pod":
                return body
            pod = with_api_defaults(body)
            tuple(check_amounts(pod))  # only for what can't be read
        except InputError as error:
            raise old.blame(error) from None
        return pod

    def _facts(self, document: Document) -> NamespaceFacts:
        if document.kind != "Binding":
            return self.facts.get(document.namespace, UNNAMED)
        namespace = _namespace(document)
        facts = self.facts.get(namespace, UNNAMED)
        pod = self.pods.get((namespace, document.name))
        if pod is not None and facts.managed:
            with contextlib.suppress(InputError):  # the Pod's own entry says what is wrong with it
                pod = mutated(pod, self.settings, facts, namespace=namespace)
        return replace(facts, pod=pod)


def _namespace(document: Document) -> str:
    return document.namespace or (DEFAULT_NAMESPACE if document.kind == "Binding" else "")


def _together(
    api: Sequence[FieldError], first: answers.AdmissionAnswer, second: answers.AdmissionAnswer
) -> tuple[FieldError, ...]:
    """
    Return every violation once: the API server's words count where both name a field.

    What the mutating webhook refuses alone, the validating one names too, with all the rest.
    """
    named = {cause.field for cause in api}
    ours = second.causes or first.causes
    return one_of_each([*api, *(cause for cause in ours if cause.field not in named)])


def _checked(
    document: Document,
    body: Mapping[str, Any],
    *,
    causes: Sequence[FieldError],
    warnings: Sequence[str],
    patch: tuple[answers.PatchOperation, ...] = (),
    namespace: str = "",
) -> Checked:
    kind = str(document.body["kind"])
    return Checked(
        kind=kind,
        namespace=namespace or document.namespace,
        name=document.name,
        body=body,
        message=answers.refusal_message(kind, document.name, causes) if causes else "",
        causes=tuple(causes),
        warnings=tuple(_texts(warnings)),
        patch=patch,
    )


def _texts(warnings: Sequence[str]) -> Iterator[str]:
    yield from dict.fromkeys(map(answers.warning, warnings))


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
    return isinstance(found_in(value, "spec", "containers"), list)


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
    written = metadata_of(template.body)
    return frozenset(template.pod["metadata"].keys() - written.keys())


def _replaced(parent: Any, steps: Steps, value: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    step, *rest = steps
    below = _replaced(parent[step], tuple(rest), value) if rest else value
    if isinstance(step, int):
        return [below if place == step else item for place, item in enumerate(parent)]
    return {**parent, step: below}
