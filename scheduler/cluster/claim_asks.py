"""
What Pods that wait ask for by claims, and what nodes have for claims, as files tell.

Rule: docs/dra.md, "In a simulation". What can't be decided here is said in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ledger.domain.annotations.wire import a_flag, a_text, an_integer, an_object, each
from ledger.domain.devices import GPU
from ledger.domain.dialects.dra.accounts import Listed, NodeAccounts, accounts_of
from ledger.domain.dialects.dra.objects import Pool, pools_of, read_slice, unknown_fields
from ledger.domain.dialects.dra.shares import Shares, shares_of
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import default_uid, found_in, items_in, section, text_in
from ledger.domain.log.events import ClaimObserved
from ledger.domain.log.state import NodeState
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.extended import held
from ledger.domain.request.requests import PodRequest
from ledger.domain.request.rules import NOT_DECIDED
from ledger.domain.resources import CLAIMED_BY_CLASS
from ledger.domain.typed import read
from scheduler.cluster.claimed import DRIVERS, LISTED, READ, holders_of_own, seen_in
from scheduler.cluster.claims import Dra
from scheduler.cluster.documents import Document, Documents, is_ended, node_of
from scheduler.cluster.dra import dra_of, is_of_dra, with_rules
from scheduler.cluster.model import Pod
from scheduler.gate import allocate
from scheduler.gate.claims import Allocated, ClaimSeen
from scheduler.gate.exchange import Device, Results, device_of
from scheduler.gate.follow import SOURCE
from scheduler.gate.room import expecting
from scheduler.gate.selectors import class_selectors

_NOBODY: Final = allocate.Asked(driver="", attributes={}, capacity={})
_CLOSING: Final = frozenset({"NoSchedule", "NoExecute"})
_EXACTLY: Final = frozenset(
    {"allocationMode", "count", "deviceClassName", "selectors", "tolerations"}
)
_TOLERATION: Final = frozenset({*allocate.Toleration.__struct_fields__, "tolerationSeconds"})
_ENTRY: Final = frozenset({"name", "resourceClaimName", "resourceClaimTemplateName"})
_CLAIM: Final = frozenset({"config", "constraints", "requests"})
_CLASS: Final = frozenset({"config", "extendedResourceName", "selectors"})
_CONSTRAINED: Final = frozenset({"distinctAttribute", "matchAttribute", "requests"})
Served = Sequence[tuple[str, int, str]]
"""A resource, how many of it, and the DeviceClass that serves it."""
_NOT_GIVEN: Final = ("allowMultipleAllocations", "bindingConditions", "bindsToNode")
_UNKNOWN: Final = " unknown"  # no field of the API is called so
UNTOLD: Final = "some of the devices are not looked at"
NOT_THERE: Final = "no slice, class or claim is in the input, or the run has a schedule"
BY_PLUGIN: Final = "cards by number beside those of slices: which are the same is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffers:
    """
    What a node has for claims.

    Attributes:
        state: its accounts, with what claims of the files hold of them.
        barred: why it gives nothing by claims, empty where it does.
    """

    state: NodeState
    accounts: NodeAccounts
    offers: tuple[allocate.Offer, ...]
    barred: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedByPod:
    """
    The claims of one Pod.

    Attributes:
        claims: in its order.
        missing: what is not there that it names, so that it can't be scheduled.
        served: resources that it asks for and that are given by claims.
    """

    claims: tuple[allocate.ClaimAsk, ...] = ()
    missing: str = ""
    served: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimWorld:
    """
    What there is for claims, and what is asked for by claims.

    Attributes:
        nodes: by name.
        allocated: claims that have something -> their node, and what that is.
        asked: by the UID of a Pod that waits.
        beyond: likewise, why what it asks for can't be decided.
        dra: devices that slices alone list.
    """

    nodes: Mapping[str, NodeOffers] = field(default_factory=dict)
    allocated: Mapping[str, tuple[str, Results]] = field(default_factory=dict)
    asked: Mapping[str, AskedByPod] = field(default_factory=dict)
    beyond: Mapping[str, str] = field(default_factory=dict)
    dra: Dra = field(default_factory=Dra)

    def why_not(self, pod: Document) -> str:
        """Return why what a Pod asks for by claims is not decided, empty where it is."""
        unknown = NOT_THERE if _entries(pod) else ""
        return "" if pod.uid in self.asked else self.beyond.get(pod.uid, unknown)


def claim_world(
    nodes: Mapping[str, NodeFacts], objects: Documents, pods: Sequence[tuple[Document, Pod]]
) -> ClaimWorld:
    """Return what files tell of claims; without any, or who waits for one, nothing."""
    classes = _classes_by_name(nodes, objects)
    served = {
        pod.uid: tuple(
            (name, count, classes[name])
            for name, count in held(request.snapshot).items()
            if name in classes
        )
        for pod, request in pods
        if isinstance(request, PodRequest) and classes
    }
    asking = [pod for pod, _ in pods if _entries(pod) or served.get(pod.uid)]
    if not (asking and any(map(is_of_dra, objects.documents))):
        return ClaimWorld()
    try:
        return _world(nodes, objects, asking, served)
    except _NotReadError as error:
        return ClaimWorld(beyond={pod.uid: str(error) for pod in asking})


def _classes_by_name(nodes: Mapping[str, NodeFacts], objects: Documents) -> dict[str, str]:
    """
    Return resource -> the DeviceClass that serves it, where slices are told and no plugin has it.

    Rule: resource.k8s.io, DeviceClass: of two the one that was made later, else the first by name.
    """
    kinds = [(one.kind.partition(".")[0], one) for one in objects.documents if is_of_dra(one)]
    some = [one for kind, one in kinds if kind == "DeviceClass"]
    some.sort(key=lambda one: one.name, reverse=True)
    some.sort(key=lambda one: text_in(one.body, "metadata", "creationTimestamp"))
    found = {text_in(one.body, "spec", "extendedResourceName"): one.name for one in some}
    found |= {f"{CLAIMED_BY_CLASS}{one.name}": one.name for one in some}
    offered = {name for node in nodes.values() for name, count in node.systems.offers if count}
    is_told = any(kind == "ResourceSlice" for kind, _ in kinds)
    return {key: name for key, name in found.items() if is_told and key not in {"", *offered}}


class _NotReadError(Exception):
    """What is there, or who has it, is not known."""


def _world(
    nodes: Mapping[str, NodeFacts],
    objects: Documents,
    asking: Sequence[Document],
    served: Mapping[str, Served],
) -> ClaimWorld:
    found: dict[str, list[Document]] = {}
    for document in filter(is_of_dra, objects.documents):
        found.setdefault(document.kind.partition(".")[0], []).append(document)
        if document.body.get("apiVersion") not in READ:
            raise _NotReadError(f"{document.title} is of another version than is read here")
    slices = with_rules(found.get("ResourceSlice", []), objects)
    try:
        pools = pools_of(read_slice(each.body) for each in slices)
        bodies = dict(_bodies(slices, pools))
        seen = [seen_in(each) for each in found.get("ResourceClaim", ())]
        untold = dict(_untold(objects, {f"{c.namespace}/{c.name}" for c in seen}))
    except InputError as error:
        raise _NotReadError(f"a slice or claim can't be read: {error}") from None
    offers = {name: _offers(facts, pools, bodies) for name, facts in nodes.items()}
    where = {device: name for name, node in offers.items() for device in node.accounts.devices}
    allocated: dict[str, tuple[str, Results]] = {}
    for claim in seen:
        if claim.allocated is None:
            continue
        name = next(filter(None, map(where.get, map(device_of, claim.allocated.results))), "")
        name = name or claim.allocated.node_name
        allocated[claim.full_name] = (name, claim.allocated.results)
        for there in {name} & offers.keys() if name else offers:
            offers[there] = _holding(offers[there], claim, claim.allocated)
    for name in offers.keys() & untold.keys():
        offers[name] = replace(offers[name], barred=untold[name])
    asked, beyond = {}, {}
    reader = _Reader(found, {f"{c.namespace}/{c.name}" for c in seen if c.is_allocated}, allocated)
    for pod in asking:
        try:
            asked[pod.uid] = reader.asked_by(pod, served.get(pod.uid, ()))
        except (allocate.BeyondError, InputError) as error:
            beyond[pod.uid] = str(error)
    _, rest = holders_of_own(nodes, dra_of(objects), objects)
    return ClaimWorld(nodes=offers, allocated=allocated, asked=asked, beyond=beyond, dra=rest)


def _bodies(
    slices: Sequence[Document], pools: Sequence[Pool]
) -> Iterator[tuple[Device, Mapping[str, Any]]]:
    """Yield the devices of the whole pools' generations as they are written."""
    newest = {pool.key: pool.generation for pool in pools}
    for document in slices:
        spec = section(document.body, "spec")
        key = (spec["driver"], section(spec, "pool")["name"])
        if newest.get(key) == section(spec, "pool")["generation"]:
            for one in spec.get("devices") or ():
                yield (*key, one["name"]), {**one, _UNKNOWN: unknown_fields(spec, one)}


def _offers(
    node: NodeFacts, pools: Sequence[Pool], bodies: Mapping[Device, Mapping[str, Any]]
) -> NodeOffers:
    accounts = accounts_of(node.name, pools, node.devices, Listed(drivers=DRIVERS))
    offers = []
    for pool in pools:
        for device in pool.devices:
            key = (*pool.key, device.name)
            if device.node not in {node.name, ""}:  # without one: of nodes that a selector tells
                continue
            body = bodies[key]
            given = [name for name in _NOT_GIVEN if body.get(name)]
            fields = [*body[_UNKNOWN], *given]
            offers.append(
                allocate.Offer(
                    device=key,
                    asked=allocate.Asked.read(pool.driver, body),
                    taints=tuple(taint for taint in device.taints if taint.effect in _CLOSING),
                    beyond=", ".join(fields) or ("" if key in accounts.devices else UNTOLD),
                )
            )
    by_number = any(each.device_type == GPU and not each.device_id for each in node.devices)
    shared = (one.closed for one in node.systems.cards if one.closed.startswith(LISTED))
    state = NodeState(
        uid=node.uid, name=node.name, devices=(*node.devices, *accounts.records), lost=node.lost
    )
    return NodeOffers(
        state=state,
        accounts=accounts,
        offers=tuple(offers),
        barred=BY_PLUGIN if by_number and offers else next(shared, ""),
    )


def _holding(node: NodeOffers, claim: ClaimSeen, allocated: Allocated) -> NodeOffers:
    """Return a node with what a claim of the files has of it, which may be nobody knows what."""
    found = shares_of(allocated.results, node.accounts)
    known = isinstance(found, Shares)
    event = ClaimObserved(
        claim_uid=claim.uid,
        attempt=1,
        namespace=claim.namespace,
        claim_name=claim.name,
        node_uid=node.state.uid,
        node_name=node.state.name,
        results=allocated.results,
        shares=found.shares if isinstance(found, Shares) else (),
        device_models=found.models if isinstance(found, Shares) else (),
        unknown_types=() if known else (GPU,),
        consumers=claim.consumers,
        source=SOURCE,
    )
    is_listed = {one.device for one in node.offers}.issuperset(map(device_of, allocated.results))
    lost = f"claim {claim.full_name} has a device that no slice lists"
    barred = node.barred if known else f"{NOT_DECIDED}{UNTOLD}" if is_listed else lost
    return replace(node, state=expecting(node.state, [event], without=""), barred=barred)


def _untold(objects: Documents, told: set[str]) -> Iterator[tuple[str, str]]:
    """Yield nodes with Pods that have who knows what there, by claims that the files don't tell."""
    for pod in objects.of_kind("Pod"):
        by_class = section(pod.body, "status", "extendedResourceClaimStatus")
        if not (node_of(pod.body) and (_entries(pod) or by_class)) or is_ended(pod.body):
            continue
        made = _made_for(pod)
        names = [one.get("resourceClaimName") or made.get(one.get("name")) for one in _entries(pod)]
        names += [by_class["resourceClaimName"]] if "resourceClaimName" in by_class else []
        if not all(f"{pod.namespace}/{name}" in told for name in names):
            yield node_of(pod.body), f"pod {pod.namespace}/{pod.name} has a claim that is not told"


def _made_for(pod: Document) -> dict[object, object]:
    statuses = found_in(pod.body, "status", "resourceClaimStatuses")
    read = each(statuses, "status.resourceClaimStatuses", an_object)
    return {
        a_text(one.get("name"), "name"): a_text(one.get("resourceClaimName"), "resourceClaimName")
        for one in read
    }


def _entries(pod: Document) -> Sequence[Mapping[str, Any]]:
    return items_in(pod.body, "spec", "resourceClaims")


class _Reader:
    """Reads what Pods ask for by claims, templates and classes of the files."""

    def __init__(
        self,
        found: Mapping[str, Sequence[Document]],
        given: set[str],
        allocated: Mapping[str, tuple[str, Results]],
    ) -> None:
        def named(kind: str) -> dict[str, Document]:
            return {f"{one.namespace}/{one.name}": one for one in found.get(kind, ())}

        self._claims, self._templates = named("ResourceClaim"), named("ResourceClaimTemplate")
        self._classes = {one.name: one for one in found.get("DeviceClass", ())}
        self._given, self._allocated = given, allocated

    def asked_by(self, pod: Document, served: Served) -> AskedByPod:
        """
        Return the claims of a Pod.

        Raises:
            BeyondError: one can't be decided here.
            InputError: one can't be read.
        """
        made = _made_for(pod)
        claims = []
        for entry in _entries(pod):
            _expect(_ENTRY, entry, "spec.resourceClaims")
            of = a_text(entry.get("name"), "spec.resourceClaims.name")
            name = entry.get("resourceClaimName") or made.get(of)
            template = entry.get("resourceClaimTemplateName")
            if name:
                path, source = f"{pod.namespace}/{name}", self._claims
                missing = f'resourceclaim "{name}" not found'
            else:
                path, source = f"{pod.namespace}/{template}", self._templates
                missing = f'resourceclaimtemplate "{template}" not found'
            document = source.get(path)
            if document is None:
                return AskedByPod(missing=missing)
            spec = section(document.body, "spec")
            if not name:
                uid = default_uid("ResourceClaim", pod.namespace, f"{pod.uid}/{of}")
                name, spec = f"{pod.name}-{of}-{uid[:8]}", section(spec, "spec")
                path = f"{pod.namespace}/{name}"
            elif found_in(document.body, "metadata", "deletionTimestamp"):
                return AskedByPod(missing=f'resourceclaim "{name}" is being deleted')
            else:
                uid = document.uid or default_uid("ResourceClaim", pod.namespace, str(name))
            asks: tuple[allocate.DeviceAsk, ...] = ()
            constraints: tuple[allocate.Constraint, ...] = ()
            if path in self._given:
                if path not in self._allocated or not self._allocated[path][0]:
                    raise allocate.BeyondError(f"claim {path} has devices that are not looked at")
            else:
                devices = an_object(spec.get("devices"), "spec.devices")
                _expect(_CLAIM, devices, f"claim {path}")
                missing = self._missing_class(devices)
                if missing:
                    return AskedByPod(missing=missing)
                asks = each(devices.get("requests"), "spec.devices.requests", self._ask)
                constraints = each(devices.get("constraints"), "constraints", _constraint)
            claims.append(
                allocate.ClaimAsk(
                    uid=uid,
                    namespace=pod.namespace,
                    name=str(name),
                    requests=asks,
                    constraints=constraints,
                )
            )
        for number, (name, count, of_class) in enumerate(served):
            request = {
                "name": f"container-0-request-{number}",
                "exactly": {"deviceClassName": of_class, "count": count},
            }
            claims.append(
                allocate.ClaimAsk(
                    uid=default_uid("ResourceClaim", pod.namespace, f"{pod.uid}/{name}"),
                    namespace=pod.namespace,
                    name=f"{pod.name}-extended-resources-{number}",
                    requests=(self._ask(request, name),),
                )
            )
        names = frozenset(name for name, _, _ in served)
        return AskedByPod(claims=tuple({one.uid: one for one in claims}.values()), served=names)

    def _missing_class(self, devices: Mapping[str, object]) -> str:
        for one in each(devices.get("requests"), "requests", an_object):
            if "exactly" not in one:
                continue
            name = a_text(found_in(one, "exactly", "deviceClassName"), "deviceClassName")
            if name not in self._classes:
                return f"request {one.get('name')}: device class {name} does not exist"
        return ""

    def _ask(self, item: object, path: str) -> allocate.DeviceAsk:
        body = an_object(item, path)
        name = a_text(body.get("name"), f"{path}.name")
        exactly = an_object(body.get("exactly"), f"{path}.exactly")
        more = sorted({*(body.keys() - {"name", "exactly"}), *(exactly.keys() - _EXACTLY)})
        if a_text(exactly.get("allocationMode"), path) not in {"", "ExactCount"}:
            more.append("allocationMode")
        if a_flag(exactly.get("adminAccess"), f"{path}.adminAccess", default=False):
            more.append("adminAccess")
        if more or not exactly:
            raise allocate.BeyondError(f"request {name}: {', '.join(dict.fromkeys(more))}")
        of_class = self._classes[a_text(exactly.get("deviceClassName"), path)]
        _expect(_CLASS, section(of_class.body, "spec"), f"class {of_class.name}")
        for said in items_in(exactly, "tolerations"):
            _expect(_TOLERATION, said, f"request {name}: tolerations")
        own = class_selectors({"spec": {"selectors": exactly.get("selectors")}})
        selectors = (*class_selectors(of_class.body), *own)
        for one in selectors:
            try:
                allocate.matches(one, _NOBODY)
            except allocate.BeyondError:
                raise allocate.BeyondError(f"request {name}: selector {one}") from None
        count = exactly.get("count")
        return allocate.DeviceAsk(
            request=name,
            count=1 if count is None else an_integer(count, f"{path}.count", least=1),
            selectors=selectors,
            tolerations=read(
                tuple[allocate.Toleration, ...], exactly.get("tolerations") or [], path
            ),
        )


def _expect(known: frozenset[str], body: Mapping[str, object], what: str) -> None:
    if more := sorted(body.keys() - known):
        raise allocate.BeyondError(f"{what}: {', '.join(more)}")


def _constraint(item: object, path: str) -> allocate.Constraint:
    body = an_object(item, path)
    _expect(_CONSTRAINED, body, "constraint")
    distinct = a_text(body.get("distinctAttribute"), path)
    attribute = distinct or a_text(body.get("matchAttribute"), path)
    if not attribute:
        raise allocate.BeyondError("constraint without an attribute")
    return allocate.Constraint(
        attribute=attribute,
        requests=frozenset(each(body.get("requests"), path, a_text)),
        distinct=bool(distinct),
    )
