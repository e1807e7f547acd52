"""Which GPU topology group and which gang a Pod belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ledger.domain.annotations.gang import SECOND_NS, Gang, GangMode, read_gang
from ledger.domain.annotations.gpu_topology import GpuGroup, read_gpu_group
from ledger.domain.annotations.wire import annotation_path, label_path
from ledger.domain.bounds import NAME_MAX
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.request.requests import GangRef, GroupRef
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import check_same_group, of_rule, required, too_long, unsupported
from ledger.domain.resources import (
    ANNOTATION_GANG_GROUPS,
    ANNOTATION_GANG_MIN_AVAILABLE,
    ANNOTATION_GANG_MODE,
    ANNOTATION_GANG_NAME,
    ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC,
    LABEL_GPU_GROUP_NAME,
    LABEL_GPU_GROUP_REPLICA,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsAsked:
    """The Pod's group and gang, both None when there are errors."""

    group: GroupRef | None = None
    gang: GangRef | None = None
    errors: tuple[FieldError, ...] = ()


def groups_of(spec: PodSpec) -> GroupsAsked:
    """
    Return the group and the gang of a Pod.

    Rule: Koordinator GPU-topology proposal, "How to identify pods are in the same group" and
    "Works with the Gang plugin"; Koordinator contract 10.

    Raises:
        InputError: a list of gang groups that is no JSON. Plain text that breaks a rule (a replica
            that is no number) is a violation instead.
    """
    group, group_errors = _group(spec)
    gang, gang_errors = _gang(spec)
    errors = [*group_errors, *gang_errors]
    if group and gang and gang.min_available is not None:
        errors += check_same_group(
            label_path(LABEL_GPU_GROUP_NAME),
            label_path(LABEL_GPU_GROUP_REPLICA),
            group=(group.name, group.replica),
            gang=(gang.name, gang.min_available),
        )
    if errors:
        return GroupsAsked(errors=tuple(errors))
    return GroupsAsked(
        group=GroupRef(name=group.name, replica=group.replica) if group else None,
        gang=_gang_ref(gang) if gang else None,
    )


def _group(spec: PodSpec) -> tuple[GpuGroup | None, list[FieldError]]:
    try:
        return read_gpu_group(spec.labels), []
    except InputError as error:
        return None, [_violation(error, Rule.TOPOLOGY_GROUP)]


def _gang(spec: PodSpec) -> tuple[Gang | None, list[FieldError]]:
    try:
        gang = read_gang(spec.labels, spec.annotations)
    except InputError as error:
        if error.field.startswith(annotation_path(ANNOTATION_GANG_GROUPS)):
            raise
        return None, [_violation(error, Rule.GANG)]
    return gang, [] if gang is None else [*_check_gang(spec, gang)]


@of_rule(Rule.GANG)
def _check_gang(spec: PodSpec, gang: Gang) -> Iterator[FieldError]:
    if len(gang.name) > NAME_MAX:
        field = annotation_path(ANNOTATION_GANG_NAME)
        yield too_long(field, len(gang.name), NAME_MAX, "no name of a PodGroup is longer")
    if gang.min_available is None:
        yield required(
            annotation_path(ANNOTATION_GANG_MIN_AVAILABLE),
            f"gang {gang.name} needs its minimum here; PodGroup objects are not read",
        )
    if gang.mode is GangMode.NON_STRICT:
        yield unsupported(annotation_path(ANNOTATION_GANG_MODE), "gang mode NonStrict")
    own = {f"{spec.namespace}/{gang.name}"}
    if set(gang.groups) - own:
        yield unsupported(annotation_path(ANNOTATION_GANG_GROUPS), "gangs that start together")
    if ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC in spec.annotations:
        field = annotation_path(ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC)
        yield unsupported(field, "network topology of a gang")


def _gang_ref(gang: Gang) -> GangRef:
    assert gang.min_available is not None
    return GangRef(
        name=gang.name,
        min_available=gang.min_available,
        waiting_seconds=-(-gang.waiting_time_ns // SECOND_NS),
    )


def _violation(error: InputError, rule: Rule) -> FieldError:
    return FieldError(
        field=error.field, reason="FieldValueInvalid", message=error.message, rule=str(rule)
    )
