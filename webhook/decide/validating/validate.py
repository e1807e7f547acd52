"""The validating side of admission: which checks a request gets, what becomes of findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ledger.domain.errors import FieldError, InputError
from webhook.decide import answers
from webhook.decide.facts import NamespaceFacts
from webhook.decide.review import CREATE, UPDATE, AdmissionRequest
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings, RuleMode
from webhook.decide.validating import objects, pods, updates
from webhook.decide.validating.findings import NOTHING, FoundViolations

Check = Callable[[AdmissionRequest, AdmissionSettings, NamespaceFacts], FoundViolations]

DEVICES_GROUP: Final = "scheduling.koordinator.sh"
TOPOLOGY_GROUP: Final = "topology.node.k8s.io"
NO_FACTS: Final = NamespaceFacts()
AUDIT_RULES: Final = "violated-rules"
"""Audit annotation: every rule that was broken, with what was made of it."""

VIOLATIONS_MAX: Final = 256
"""More in one object are counted, not listed: an answer has to fit into a status."""

_TEXT_LENGTH_MAX: Final = 2048
_BINDING: Final = "bindings"
_RESOURCES: Final = {
    ("", "Pod"): "pods",
    ("", "Binding"): _BINDING,
    ("", "Node"): "nodes",
    (DEVICES_GROUP, "Device"): "devices",
    (TOPOLOGY_GROUP, "NodeResourceTopology"): "noderesourcetopologies",
}
"""The kinds that are looked at, and the resource a request is for when it does not say."""


def validate(
    request: AdmissionRequest,
    settings: AdmissionSettings = DEFAULT_ADMISSION,
    facts: NamespaceFacts = NO_FACTS,
) -> answers.AdmissionAnswer:
    """
    Return whether an object may be stored as it is, with every violation at once.

    Rule: the list in `docs/rules.md`. Each violation refuses, warns or is passed over as the
    settings say of its rule. Nothing is remembered, so a dry run is answered like any other.

    Objects that can't be read are refused; kinds and operations that are not ours are allowed.
    """
    if request.obj is None or request.operation not in {CREATE, UPDATE}:
        return answers.ALLOWED
    try:
        found = _findings(request, settings, facts)
    except InputError as error:
        return answers.refuse(
            kind=request.kind, name=request.shown_name, causes=[answers.unreadable(error)]
        )
    return _answer(request, settings, found)


def _findings(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> FoundViolations:
    check = _CHECKS.get(_path(request))
    return NOTHING if check is None else check(request, settings, facts)


def _path(request: AdmissionRequest) -> tuple[str, str, str]:
    """Return (resource, subresource, operation); both ways to create a Binding are one."""
    resource = _RESOURCES.get((request.group, request.kind), "")
    subresource = request.subresource
    if resource == _BINDING:
        subresource = ""
    elif request.resource and request.resource != resource:
        return "", "", ""
    return resource, subresource, request.operation


def _answer(
    request: AdmissionRequest, settings: AdmissionSettings, found: FoundViolations
) -> answers.AdmissionAnswer:
    causes: list[FieldError] = []
    refusals: list[answers.Refusal] = []
    warnings: list[str] = [
        item.text for item in found.said if settings.modes.get(item.advice) is not RuleMode.OFF
    ]
    counted = [
        (error, mode)
        for error in dict.fromkeys(found.errors)
        if (mode := settings.mode_of(error.rule)) is not RuleMode.OFF
    ]
    if len(counted) > VIOLATIONS_MAX:
        warnings.append(f"{len(counted) - VIOLATIONS_MAX} more violations are not shown")
    for violation, mode in counted[:VIOLATIONS_MAX]:
        error = _bounded(violation)
        refusals.append(answers.Refusal(rule=error.rule, mode=str(mode), error=error))
        if mode is RuleMode.ENFORCE:
            causes.append(error)
        else:
            warnings.append(f"{error} (rule {error.rule}, not enforced yet)")
    answer = (
        _refused(request, causes, warnings, refusals) if causes else _allowed(warnings, refusals)
    )
    rules = ",".join(dict.fromkeys(f"{item.rule}={item.mode}" for item in refusals))
    return replace(answer, audit={AUDIT_RULES: rules}) if rules else answer


def _bounded(error: FieldError) -> FieldError:
    """Return the violation without the middle of a value that nobody would read."""
    if len(error.field) <= _TEXT_LENGTH_MAX and len(error.message) <= _TEXT_LENGTH_MAX:
        return error
    return replace(error, field=_cut(error.field), message=_cut(error.message))


def _cut(text: str) -> str:
    half = _TEXT_LENGTH_MAX // 2
    return text if len(text) <= _TEXT_LENGTH_MAX else f"{text[:half]}...{text[-half:]}"


def _refused(
    request: AdmissionRequest,
    causes: list[FieldError],
    warnings: list[str],
    refusals: list[answers.Refusal],
) -> answers.AdmissionAnswer:
    """Refuse: a Binding as forbidden to its user, anything else as invalid."""
    bound = _path(request)[0] == _BINDING
    return answers.refuse(
        kind="pods" if bound else request.kind,
        name=request.shown_name,
        causes=causes,
        warnings=warnings,
        refusals=refusals,
        reason=answers.FORBIDDEN if bound else answers.INVALID,
    )


def _allowed(warnings: list[str], refusals: list[answers.Refusal]) -> answers.AdmissionAnswer:
    if not warnings:
        return answers.ALLOWED
    return answers.AdmissionAnswer(
        warnings=tuple(map(answers.warning, warnings)), refusals=tuple(refusals)
    )


def _without_facts(
    check: Callable[[AdmissionRequest, AdmissionSettings], FoundViolations],
) -> Check:
    return lambda request, settings, _facts: check(request, settings)


_check_device: Final = _without_facts(objects.check_device)
_check_topology: Final = _without_facts(objects.check_topology_object)
_check_node: Final = _without_facts(objects.check_node)
_CHECKS: Final[dict[tuple[str, str, str], Check]] = {
    ("pods", "", CREATE): pods.check_create,
    ("pods", "", UPDATE): updates.check_update,
    ("pods", "resize", UPDATE): updates.check_update,
    ("pods", "status", UPDATE): _without_facts(updates.check_status),
    ("pods", "ephemeralcontainers", UPDATE): pods.check_ephemeral,
    (_BINDING, "", CREATE): objects.check_binding,
    ("devices", "", CREATE): _check_device,
    ("devices", "", UPDATE): _check_device,
    ("devices", "status", UPDATE): _check_device,
    ("noderesourcetopologies", "", CREATE): _check_topology,
    ("noderesourcetopologies", "", UPDATE): _check_topology,
    ("nodes", "", CREATE): _check_node,
    ("nodes", "", UPDATE): _check_node,
    ("nodes", "status", UPDATE): _check_node,
}
"""(resource, subresource, operation) -> what is looked at. Whatever is not here is allowed."""
