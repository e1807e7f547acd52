"""
`tenure why` over a cluster's objects: a Pod as a simulation of the same objects answers it.

Imported where files are asked: it loads all that decides.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import structs

from ledger.domain.devices import GPU
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import found_in, items_in, section, spec_of, text_in
from ledger.domain.kube.pod_spec import why_in_part
from ledger.domain.log.events import PodObserved, RefusalReason
from ledger.domain.request.requests import PodRequest, group_name
from ledger.domain.request.rules import NOT_DECIDED
from scheduler.cluster.constraints import gates_of
from scheduler.cluster.documents import Document, is_ended
from scheduler.cluster.kai import part_of
from scheduler.cluster.model import RefusedPod
from scheduler.cluster.rebuilt import held_as_placed
from scheduler.cluster.settings import with_templates
from scheduler.cluster.snapshot import objects_of, of_files, snapshot_of_objects
from scheduler.decide.nodes.card_amounts import adopted_amounts
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.record.core import Placed
from scheduler.record.events import shape_of
from scheduler.usage.picture import UNUSED
from scheduler.whatif.prospects import Prospects, prospects_of
from scheduler.whatif.what_if import what_if_of
from tenure import names as naming
from tenure.asking import Answer
from tenure.card_totals import cards_text
from tenure.exits import with_next
from tenure.manifests import Manifests, as_admitted, read_manifests
from tenure.output import Column, OutputFormat, one_line
from tenure.query.meant import first_of, owner_text
from tenure.query.prospects import ahead_record, before_text, record_of, write_prospects
from tenure.query.records import ENDED, FITS, PLACED, REFUSED, WAITING
from tenure.query.why import write_reasons, write_records
from tenure.simulate.inputs import manifest_run
from tenure.simulate.model import Run
from tenure.simulate.render import devices_of
from tenure.simulate.results import Outcome
from tenure.simulate.runner import run_simulation, unlike_service
from tenure.simulate.vgpus import vgpus_asked
from tenure.version import tenure_version

SEED: Final = 42
"""As of `tenure simulate`; no policy but `random` draws."""
_CLAIMS: Final = ("spec", "resourceClaims")
_PRINT: Final = "kubectl get nodes,pods -A -o json"
_COLUMNS: Final = (
    Column(key="path", title="POD"),
    Column(key="state", title="STATE"),
    Column(key="node", title="NODE"),
    Column(key="held", title="HOLDS"),
    Column(key="why", title="WHY"),
    Column(key="pod_uid", title="POD UID", wide=True),
)
_CSV: Final = tuple(
    Column(key=key, title=key) for key in ("path", "pod_uid", "state", "node", "held", "message")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    """
    Where one Pod stands.

    Attributes:
        unread: what restricts it and is not looked at.
        said: what kube-scheduler or kubelet said of it, by the object.
        ahead: Pods that wait before it and get a place, as (path, node).
        alone: the node that would take it without these; empty for none.
        gates: what it waits for, where that is all that keeps it from being decided.
    """

    document: Document
    state: str
    owner: str
    message: str = ""
    shape: str = ""
    held: PodObserved | None = None
    reasons: tuple[RefusalReason, ...] = ()
    unread: tuple[str, ...] = ()
    said: str = ""
    ahead: tuple[tuple[str, str], ...] = ()
    alone: str = ""
    gates: tuple[str, ...] = ()
    never: str = ""
    prospects: Prospects | None = None

    @property
    def path(self) -> str:
        return f"{self.document.namespace}/{self.document.name}"

    @property
    def node(self) -> str:
        return "" if self.held is None else self.held.node_name


def answer_objects(name: str, files: Sequence[str], output: OutputFormat) -> Answer:
    """
    Answer why a Pod of these objects waits, or where it is.

    What waits is decided as `tenure simulate` does: every Pod that waits in the order of the input,
    up to this one.

    Raises:
        InputError: the input can't be read, or knows no such Pod.
    """
    manifests = as_admitted(read_manifests(files))
    known = _InObjects(manifests)
    meant = first_of(naming.parse_name(name), known)
    pods = known.pods_of(meant)
    answer = Answer()
    stories = _stories(pods, manifests, known, answer)
    _write(stories, output, answer)
    return answer


# --- names ------------------------------------------------------------------------------------


class _InObjects:
    """What names mean in files: Pods, and their owners as far as the objects tell."""

    who = "the input"
    where = "kubectl get pods -A shows the Pods that there are"

    def __init__(self, manifests: Manifests) -> None:
        self._pods = manifests.of_kind("Pod")
        self._nodes = [node.name for node in manifests.of_kind("Node")]
        self._above = {
            (each.kind.partition(".")[0].lower(), each.namespace, each.name): _controller(each.body)
            for each in manifests.documents
            if not each.ours
        }

    def names(self, reading: naming.Reading) -> Iterable[naming.Name]:
        match reading:
            case naming.DeviceName():
                return ()
            case naming.AnyPodName(name=name):
                found = (pod for pod in self._pods if pod.name == name)
                return [naming.PodName(namespace=pod.namespace, name=name) for pod in found]
            case _:
                return (reading,)

    def knows(self, name: naming.Name) -> bool:
        """Tell whether there is such a Pod or owner. Raises InputError: it is no Pod."""
        match name:
            case (
                naming.NodeName(node=node) | naming.CardName(node=node) | naming.CpuName(node=node)
            ):
                if node in self._nodes:
                    error = InputError("files are asked about Pods", place=str(name))
                    raise with_next(error, f"who holds what there: {_PRINT} | tenure map -")
                return False
            case _:
                return bool(self.pods_of(name))

    def there(self) -> tuple[Sequence[str], Sequence[str]]:
        owners = dict.fromkeys(owner for pod in self._pods for owner in self.owners_of(pod))
        kinds = set(naming.OWNER_KINDS.values())
        named = [owner for owner in owners if owner.partition("/")[0] in kinds]
        return (), [*(f"{pod.namespace}/{pod.name}" for pod in self._pods), *named]

    def pods_of(self, name: naming.Name) -> list[Document]:
        match name:
            case naming.PodName(namespace=namespace, name=pod):
                return [
                    each for each in self._pods if (each.namespace, each.name) == (namespace, pod)
                ]
            case naming.OwnerName(namespace=namespace):
                text = owner_text(name)
                return [
                    each
                    for each in self._pods
                    if namespace in {"", each.namespace} and text in self.owners_of(each)
                ]
            case _:
                return []

    def owners_of(self, pod: Document) -> tuple[str, ...]:
        """
        Return who controls a Pod, and who that one, as far as it is told.

        A Deployment names its ReplicaSets by itself and the hash that their Pods are labelled with.
        """
        kind, name = _controller(pod.body)
        owners = [f"{kind}/{name}"] if kind else []
        above = self._above.get((kind, pod.namespace, name), ("", ""))
        template = text_in(pod.body, "metadata", "labels", "pod-template-hash")
        if not above[0] and kind == "replicaset" and template:
            deployment = name.removesuffix(f"-{template}")
            above = ("deployment", deployment) if deployment != name else above
        return (*owners, f"{above[0]}/{above[1]}") if above[0] else tuple(owners)


def _controller(body: Mapping[str, Any]) -> tuple[str, str]:
    for each in items_in(body, "metadata", "ownerReferences"):
        if each.get("controller") is True:
            return str(each.get("kind", "")).lower(), str(each.get("name", ""))
    return "", ""


# --- where a Pod stands -----------------------------------------------------------------------


def _others(decided: Mapping[str, Outcome], uid: str) -> list[Placed]:
    """Return who got a place beside a Pod."""
    return [one for other, one in decided.items() if other != uid and isinstance(one, Placed)]


def _stories(
    pods: Sequence[Document], manifests: Manifests, known: _InObjects, answer: Answer
) -> list[_Story]:
    settings = of_files(SchedulingSettings(), manifests)
    run = manifest_run(
        manifests, settings=settings, start_us=time.time_ns() // 1000, as_far_as_read=True
    )
    for warning in run.warnings:
        answer.warn(warning)
    for each in run.unreadable:
        answer.warn(each)
    held = {event.pod_uid: event for event in run.adopted}
    unread = {each.object: each.text for each in run.unreadable}
    waiting = {arrival.pod.uid for arrival in run.arrivals} & {pod.uid for pod in pods}
    requests = (each.pod for each in run.arrivals if isinstance(each.pod, PodRequest))
    gangs = {each.uid for each in requests if each.gang is not None}
    if waiting and not run.nodes:
        error = InputError("no Node in the input, so no Pod can be decided")
        raise with_next(error, f"{_PRINT} | tenure why NAMESPACE/POD -")
    settings = with_templates(settings, run.shared_templates)
    decided = _decide(run, waiting, settings) if waiting else {}
    for warning in unlike_service([decided[uid] for uid in waiting], run.nodes):
        answer.warn(warning)
    stories = []
    for pod in pods:
        owner = next(iter(reversed(known.owners_of(pod))), "")
        story = _Story(document=pod, state=PLACED, owner=owner, said=_said(pod.body))
        if is_ended(pod.body):
            told = (text_in(pod.body, "status", key) for key in ("phase", "reason", "message"))
            story = replace(story, state=ENDED, message=": ".join(filter(None, told)))
        elif pod.uid in held:
            story = replace(story, held=held[pod.uid], message=unread.get(pod.title, ""))
        elif pod.uid in decided:
            story = _waits(story, decided, run)
            if pod.uid in gangs:
                for why in why_in_part(spec_of(pod.body)):
                    answer.note(f"{story.path}: {why}")
        else:
            story = replace(story, state=REFUSED, message=unread.get(pod.title, ""))
        stories.append(story)
    first = stories[0]
    waits = (first.state == WAITING or first.gates) and len(stories) == 1
    if waits and first.document.uid not in {*run.claims_there.asked, *run.vgpus}:
        stories = [_with_prospects(first, run, manifests, settings, decided)]
    elif waits:
        for claim in (one for node in run.nodes for one in node.systems.claims if not one.pods):
            answer.note(f"held by claim {claim.claim}, {claim.state or UNUSED}")
    return stories


def _decide(run: Run, uids: Collection[str], settings: SchedulingSettings) -> dict[str, Outcome]:
    """Decide the Pods that wait as a simulation of the whole run does, up to the last of these."""
    last = max(n for n, arrival in enumerate(run.arrivals) if arrival.pod.uid in uids)
    first, rest = run.arrivals[: last + 1], run.arrivals[last + 1 :]
    groups = {_group(arrival.pod) for arrival in first} - {""}
    some = [*first, *(arrival for arrival in rest if _group(arrival.pod) in groups)]
    typical = run.typical or [
        arrival.pod for arrival in run.arrivals if isinstance(arrival.pod, PodRequest)
    ]
    result = run_simulation(
        replace(run, arrivals=some, typical=typical),
        settings=settings,
        seed=SEED,
        version=tenure_version(),
        clock=time.perf_counter,
        keep_nodes=True,
    )
    pairs = zip(some, result.outcomes, strict=True)
    return {arrival.pod.uid: outcome for arrival, outcome in pairs}


def _group(pod: PodRequest | RefusedPod) -> str:
    return group_name(pod) if isinstance(pod, PodRequest) else ""


def _waits(story: _Story, decided: Mapping[str, Outcome], run: Run) -> _Story:
    uid = story.document.uid
    story = replace(
        story,
        unread=tuple(dict(run.unread).get(story.path, ())),
        ahead=tuple(
            (each.placement.request.path, each.placement.node_name)
            for each in _others(decided, uid)
        ),
    )
    match decided[uid]:
        case Placed(placement=placement) as placed:
            held, shape = _holding(placed), shape_of(placement.request)
            if all(card.device_type != GPU for card in run.nodes[placement.node].devices):
                held = structs.replace(held, unknown_types=())  # parts, which are no cards
            return replace(story, state=FITS, held=held, shape=shape)
        case Unplaced(request=request, message=message, reasons=reasons) as refused:
            story = replace(story, state=WAITING, message=message, never=refused.never)
            return replace(story, reasons=reasons, shape=shape_of(request))
        case RefusedPod(message=message, errors=errors):
            body, gates = story.document.body, gates_of(story.document.body)
            blind = items_in(body, *_CLAIMS) or part_of(body) or vgpus_asked(body)
            is_held = len(gates) == len(errors) and not blind
            return replace(story, state=REFUSED, message=message, gates=gates if is_held else ())


def _holding(placed: Placed, among: Collection[str] | None = None) -> PodObserved:
    """Return what a place gives, of what claims give that which is `among` these ids."""
    held = held_as_placed(placed.placement, placed.annotations)
    claimed = (each for each in placed.claimed if among is None or each.device_id in among)
    return structs.replace(held, shares=(*held.shares, *claimed))


def _with_prospects(
    story: _Story,
    run: Run,
    manifests: Manifests,
    settings: SchedulingSettings,
    decided: Mapping[str, Outcome],
) -> _Story:
    """Return the story with what would make the Pod fit, beside those that come before it."""
    uid = story.document.uid
    objects = objects_of(run, manifests, settings)
    cards = {card.device_id for node in run.nodes for card in node.devices}
    placed = [_holding(each, cards) for each in _others(decided, uid)]
    story = replace(
        story, prospects=prospects_of(uid, snapshot_of_objects(objects, settings, placed))
    )
    if not placed:
        return story
    bare = snapshot_of_objects(objects, settings)
    alone = what_if_of(bare, uid).decide(bare.requests[uid])
    return replace(story, alone=alone.node_name if isinstance(alone, Placement) else "")


def _said(body: Mapping[str, Any]) -> str:
    """Return what the Pod's status says of its waiting: kube-scheduler's word, or a container's."""
    status = section(body, "status")
    for each in items_in(status, "conditions"):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return f"kube-scheduler said: {each.get('message') or each.get('reason') or 'no'}"
    for each in (
        *items_in(status, "initContainerStatuses"),
        *items_in(status, "containerStatuses"),
    ):
        reason = found_in(each, "state", "waiting", "reason")
        if reason:
            return f"container {each.get('name')} waits: {reason}"
    return ""


# --- words ------------------------------------------------------------------------------------


def _write(stories: Sequence[_Story], output: OutputFormat, answer: Answer) -> None:
    for story in stories:
        if story.unread:
            listed = ", ".join(story.unread)
            answer.warn(f"{story.path}: not looked at: {listed}")
    if output.is_table and len(stories) == 1:
        story = stories[0]
        answer.out.writelines(f"{one_line(line)}\n" for line in _head(story))
        if story.reasons:
            write_reasons([*map(structs.asdict, story.reasons)], answer.out)
        if story.prospects is not None:
            when = "without them" if story.gates else "now"
            write_prospects(story.prospects, output, answer.out, story.message, when)
        return
    whys = [story.reasons[0].reason if story.reasons else story.message for story in stories]
    texts = ({"held": _held(story), "why": why} for story, why in zip(stories, whys, strict=True))
    write_records([*map(_record, stories)], texts, output, (_COLUMNS, _CSV), answer.out)


def _head(story: _Story) -> Iterator[str]:
    path = story.path
    if story.never:
        yield f"never as it is: {story.never}"
    match story.state:
        case "ended":
            yield f"{path} has ended and holds nothing: {story.message}"
        case "placed":
            yield _running(story)
            if story.message:
                yield f"what it holds can't be read: {story.message}"
        case "fits":
            yield f"{path} waits, asks for {_asks(story)}; it would get {_held(story)} now"
        case "waiting":
            yield f"{path} waits, asks for {_asks(story)}"
            yield story.message
        case _ if story.gates:
            yield f"{path} is held by its scheduling gates: {', '.join(story.gates)}"
        case _:
            yield f"{path} is not decided: {story.message.replace(NOT_DECIDED, '')}"
    if story.said:
        yield story.said
    if story.unread:
        may = "keep it back" if story.state == FITS else "keep it from a node too"
        yield f"not looked at, and may {may}: {', '.join(story.unread)}"
    if story.alone:
        yield f"{before_text(story.ahead)}; without them it would fit on {story.alone}"
    elif story.ahead and story.state in {WAITING, FITS}:
        yield before_text(story.ahead)


def _asks(story: _Story) -> str:
    claims = [str(each.get("name")) for each in items_in(story.document.body, *_CLAIMS)]
    named = f"what its claims {', '.join(claims)} ask for" if claims else ""
    return ", ".join(filter(None, (named, story.shape))) or "nothing that is counted"


def _running(story: _Story) -> str:
    phase = found_in(story.document.body, "status", "phase")
    runs = "is bound to" if phase == "Pending" else "runs on"
    held = _held(story).removeprefix(story.node).strip()
    return f"{story.path} {runs} {story.node}{f', holds {held}' if held else ''}"


def _held(story: _Story) -> str:
    held = story.held
    if held is None:
        return ""
    unknown = [f"{kind}:{','.join('?' * held.counted.get(kind, 1))}" for kind in held.unknown_types]
    parts = [
        f"{count} x {kind} by number"
        for kind, count in held.counted.items()
        if kind not in held.unknown_types
    ]
    cpus = f"cpus {held.cpuset}" if held.cpuset else ""
    parts = [held.node_name, cards_text(held.shares), *unknown, *parts, cpus]
    return " ".join(part for part in parts if part)


def _record(story: _Story) -> dict[str, Any]:
    held, words = story.held, SchedulingSettings().vocabulary
    record: dict[str, Any] = {
        "path": story.path,
        "pod_uid": story.document.uid,
        "owner": story.owner,
        "state": story.state,
        "node": story.node or None,
        "devices": {} if held is None else devices_of(held.shares, words, adopted_amounts(held)),
        "counted": {} if held is None else dict(held.counted),
        "cpuset": "" if held is None else str(held.cpuset),
        "message": story.message,
        "said": story.said,
        "shape": story.shape,
        "never": story.never,
        "reasons": [*map(structs.asdict, story.reasons)],
        "not_looked_at": list(story.unread),
        "ahead": ahead_record(story.ahead),
        "alone": story.alone or None,
    }
    return record | (record_of(story.prospects) if story.prospects is not None else {})
