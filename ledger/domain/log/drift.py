"""
The names of drift: every way in which ledger, API and machines can disagree, in one list.

Rule: design section 6: each kind of disagreement has a name, a metric, an event and, where safe, a
repair. docs/drift.md is this list as people read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ledger.domain.log import machines

BOUND_ELSEWHERE: Final = "BoundElsewhere"
UNSETTLED: Final = "ReservationUnsettled"
ANNOTATION_DIFFERS: Final = "AnnotationDiffers"
ANNOTATION_MISSING: Final = "AnnotationMissing"
BOUND_PAST_TENURE: Final = "BoundPastTenure"
ANNOTATION_WITHOUT_HOLDING: Final = "AnnotationWithoutHolding"
HOLDER_GONE: Final = "HolderGone"
RELEASE_UNCONFIRMED: Final = "ReleaseUnconfirmed"
HOLDER_ON_LOST_NODE: Final = "HolderOnLostNode"
DEVICE_GONE: Final = "DeviceGone"
DEVICE_REPLACED: Final = "DeviceReplaced"
DEVICE_SHRUNK: Final = "DeviceShrunk"
CPUS_GONE: Final = "CpusGone"
CPUS_DIFFER: Final = "CpusDiffer"
CPUS_NARROWED: Final = "CpusNarrowed"
CPUS_NOT_EXCLUSIVE: Final = "CpusNotExclusive"
OF_KERNEL: Final = frozenset({CPUS_DIFFER, CPUS_NARROWED, CPUS_NOT_EXCLUSIVE})
"""What CPU processes report of cgroups; `DriftFound.cpus` are those that the kernel gives."""
OVER_HELD: Final = "OverHeld"
CARD_UNKNOWN: Final = "CardUnknown"
NODE_GAVE_OTHER: Final = "NodeGaveOther"
PROOF_MISSING: Final = "ProofMissing"
PROOF_INVALID: Final = "ProofInvalid"
PROOF_FOREIGN: Final = "ProofForeign"
PROOF_OUTDATED: Final = "ProofOutdated"
NAMESPACE_LABEL_WRONG: Final = "NamespaceLabelWrong"
NODE_UNREADABLE: Final = "NodeUnreadable"
NODE_UNRECORDED: Final = "NodeNotRecorded"
UNKNOWN_HOLDERS: Final = "NodeHasUnknownHolders"
UNGATED: Final = "Ungated"
REWRITTEN_AFTER_GATE: Final = "RewrittenAfterGate"
IDLE_CLAIM: Final = "IdleClaim"
TWO_MODES: Final = "TwoModes"
CLAIM_GONE: Final = "ClaimGone"
CLOCK_SKEW: Final = "ClockSkew"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftKind:
    """
    One kind of disagreement.

    Attributes:
        repair: what Tenure does about it by itself; empty where that is not safe.
        mend: what people do where it lasts.
    """

    name: str
    meaning: str
    repair: str = ""
    mend: str


_BY_PEOPLE: Final = "delete the Pod; what it holds is released"
_ALL: Final = (
    DriftKind(
        name=BOUND_ELSEWHERE,
        meaning="reserved on one node, and the Pod is bound to another",
        repair="a reservation that is not bound is taken back",
        mend=_BY_PEOPLE,
    ),
    DriftKind(
        name=UNSETTLED,
        meaning="reserved, and whether the Pod was bound can't be told",
        repair="settled behind the fence, again until it is",
        mend="look at the log of the scheduler: the API server or the ledger refuses",
    ),
    DriftKind(
        name=ANNOTATION_DIFFERS,
        meaning="the Pod says that it has other devices or CPUs than were reserved for it",
        mend="put the annotations of its `pod.reserved` event back, or delete the Pod; the API"
        " server's audit log says who changed them",
    ),
    DriftKind(
        name=ANNOTATION_MISSING,
        meaning="the Pod does not say which devices or CPUs were reserved for it",
        mend="as for AnnotationDiffers",
    ),
    DriftKind(
        name=BOUND_PAST_TENURE,
        meaning="a Pod of the profile `tenure` runs, and nothing was reserved for it",
        repair="what it says that it holds is observed, so that it is given to nobody else",
        mend="delete the Pod, so that it is scheduled; the API server's audit log says who bound"
        " it",
    ),
    DriftKind(
        name=ANNOTATION_WITHOUT_HOLDING,
        meaning="a Pod says that it has devices or CPUs, asks for none, and holds none",
        mend="take the annotation off, or delete the Pod",
    ),
    DriftKind(
        name=HOLDER_GONE,
        meaning="the Pod has ended or is gone, and still holds something",
        repair="released, again until it is",
        mend="look at the log of the scheduler: the ledger refuses the release",
    ),
    DriftKind(
        name=RELEASE_UNCONFIRMED,
        meaning="the Pod has ended or is gone, and its node has not confirmed that nothing is left",
        repair="released once the node confirms it",
        mend="look at the node's agent and kubelet",
    ),
    DriftKind(
        name=HOLDER_ON_LOST_NODE,
        meaning="the Node is gone or is another machine now, and Pods held something through it",
        repair="ends when the machine's agent says so, under the same name of the Node",
        mend="`tenure ledger clear` once nothing runs there any more",
    ),
    DriftKind(
        name=DEVICE_GONE,
        meaning="a Pod holds a device that the node no longer lists",
        mend="repair the Device object or the card; else delete the Pod",
    ),
    DriftKind(
        name=DEVICE_REPLACED,
        meaning="a Pod holds a device in whose place the node lists another one",
        mend="delete the Pod: its card is not there any more",
    ),
    DriftKind(
        name=DEVICE_SHRUNK,
        meaning="more is reserved of a device than the node says that it has",
        repair="nothing more is given of it until enough has ended",
        mend="repair the Device object, or delete Pods",
    ),
    DriftKind(
        name=CPUS_GONE,
        meaning="a Pod holds CPUs that the node no longer lists",
        mend="repair the NodeResourceTopology; else delete the Pod",
    ),
    DriftKind(
        name=CPUS_DIFFER,
        meaning="by the kernel a container runs on other CPUs than its Pod holds",
        repair="a node that binds CPUs writes them again",
        mend="look at the log of `tenure serve cpus` on the node; else delete the Pod",
    ),
    DriftKind(
        name=CPUS_NARROWED,
        meaning="the kernel gives a container fewer CPUs than are written in its cgroup: some are"
        " offline, or a cgroup above it has fewer",
        mend="bring the CPUs online again; else delete the Pod",
    ),
    DriftKind(
        name=CPUS_NOT_EXCLUSIVE,
        meaning="by the kernel a container runs on CPUs that another Pod has to itself",
        repair="a node that binds CPUs moves it off them",
        mend="look at the log of `tenure serve cpus` on the node; else delete the Pod",
    ),
    DriftKind(
        name=OVER_HELD,
        meaning="a Pod that others placed holds what is not there, or is held already; or a node's"
        " agent names more Pods that the API does not have than the node has Pod places",
        repair="nothing more is given of it",
        mend="delete one of the Pods that share it; where the API has none of them, look at the"
        " node and its agent",
    ),
    DriftKind(
        name=CARD_UNKNOWN,
        meaning="a Pod that others placed has a device, and nobody says which",
        repair="the node gives nothing of that type until its agent names the card",
        mend=_BY_PEOPLE,
    ),
    DriftKind(
        name=NODE_GAVE_OTHER,
        meaning="a Pod has other devices or CPUs on its node than were reserved for it",
        mend="delete the Pod; the log of the node's agent says who gave them",
    ),
    DriftKind(
        name=PROOF_MISSING,
        meaning="the Pod has no `tenure.sh/proof`; a node's agent would refuse it",
        mend="delete the Pod: it is bound anew with a proof",
    ),
    DriftKind(
        name=PROOF_INVALID,
        meaning="the Pod's proof can't be read, or is signed by no key that is trusted",
        mend="as for ProofMissing; after a rotation name the older key with `--trusted-proof-key`",
    ),
    DriftKind(
        name=PROOF_FOREIGN,
        meaning="the Pod's proof is for another cluster, Pod or node",
        mend="as for ProofMissing",
    ),
    DriftKind(
        name=PROOF_OUTDATED,
        meaning="the Pod's proof is of a reservation that has ended",
        mend="as for ProofMissing",
    ),
    DriftKind(
        name=NAMESPACE_LABEL_WRONG,
        meaning="the namespace's label `tenure.sh/holding` says otherwise than the ledger",
        repair="the label is set or taken off, again until it is",
        mend="look at the log of the scheduler: the API server refuses",
    ),
    DriftKind(
        name=NODE_UNREADABLE,
        meaning="Pods hold something on a node one of whose objects can't be read",
        repair="the node gives nothing meanwhile",
        mend="correct the object; the words name the field",
    ),
    DriftKind(
        name=NODE_UNRECORDED,
        meaning="Pods hold something on a node whose words the ledger refuses",
        repair="the node gives nothing meanwhile",
        mend="correct the object; the words say what can't be",
    ),
    DriftKind(
        name=UNKNOWN_HOLDERS,
        meaning="a Pod runs that asks for devices or CPUs of its own, and holds none",
        repair="adopted, once its words can be read; the node gives nothing meanwhile",
        mend="correct the Pod's annotations or delete it; the words name the field",
    ),
    DriftKind(
        name=machines.MACHINE_REGISTERED_TWICE,
        meaning="two live Nodes are one machine",
        repair="the one that registered last gives what it has",
        mend="delete the older Node",
    ),
    DriftKind(
        name=machines.MACHINE_ID_CLONED,
        meaning="two machines share a machine id",
        mend="give one of them a new `/etc/machine-id`",
    ),
    DriftKind(
        name=machines.MACHINE_IDS_TAKEN,
        meaning="a Node tells the ids of a machine that was lost under another name, and Pods held"
        " something through that one",
        repair="they hold it on, whatever the agent of this Node says",
        mend="look at both machines: where one was renamed, `tenure ledger clear` with the lost"
        " Node's name; else take the Node that lies out of the cluster",
    ),
    DriftKind(
        name=machines.DEVICE_ID_CLONED,
        meaning="two live machines list the same device",
        repair="neither gives it",
        mend="correct the Device object that is wrong",
    ),
    DriftKind(
        name=UNGATED,
        meaning="a claim has devices that were allocated before the gate was asked, or past it",
        repair="they are observed, and given to nobody else",
        mend="delete the Pods that use the claim; a claim that is allocated anew passes the gate",
    ),
    DriftKind(
        name=REWRITTEN_AFTER_GATE,
        meaning="a claim has other devices than the gate let through: a webhook behind it, or a"
        " write past it",
        repair="both are held, and given to nobody else",
        mend="take the webhook away that writes claims' status behind the gate, and delete the Pods"
        " that use the claim",
    ),
    DriftKind(
        name=IDLE_CLAIM,
        meaning="a claim has devices and no Pod uses it",
        repair="they are held, and given to nobody else",
        mend="delete the claim, or use it",
    ),
    DriftKind(
        name=TWO_MODES,
        meaning="a node has the taint `tenure.sh/owned`, and a listed driver gives its cards too",
        repair="nothing new is given of it, neither by the extender nor by claims",
        mend="take the taint off, or the driver",
    ),
    DriftKind(
        name=CLAIM_GONE,
        meaning="a claim is gone, or has its devices no more, and no gate let them go",
        repair="they are held until its Pods have ended and the node has confirmed it",
        mend="look at the node's agent; the API server's audit log says who took the claim's"
        " finalizer or allocation",
    ),
    DriftKind(
        name=CLOCK_SKEW,
        meaning="the scheduler's clock, which the ledger's times are of, is off the API server's",
        mend="set the clock of the scheduler's machine",
    ),
)
DRIFT_KINDS: Final[Mapping[str, DriftKind]] = {kind.name: kind for kind in _ALL}
"""Every kind there is, by name."""


def repair_of(kind: str) -> str:
    """Return what Tenure does by itself about a kind; empty for one of a newer release, too."""
    known = DRIFT_KINDS.get(kind)
    return "" if known is None else known.repair
