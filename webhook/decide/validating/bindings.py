"""Bindings: whose Pod it is decides who may bind it, and nobody else may say what it holds."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.domain.annotations.wire import an_object
from ledger.domain.errors import FieldError
from ledger.domain.kube.object_fields import text_at
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, of_rule
from webhook.decide.facts import NamespaceFacts
from webhook.decide.review import AdmissionRequest
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating import forgery
from webhook.decide.validating.findings import (
    Advice,
    FoundViolations,
    Said,
    say,
    scheduler_of,
    shown,
)


def check_binding(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> FoundViolations:
    """
    Return everything that speaks against a Binding, by either of its two paths.

    Rule: design section 5.1. The Pod's scheduler makes it ours. A Pod that is not known is let
    through with a warning: a check that failed closed could stop a whole cluster, and what slips
    through is found by reconciliation. Nothing on the Pod switches the check off, since its author
    could write that too.
    """
    return FoundViolations(
        errors=(
            *forgery.check_allocations(request, settings),
            *check_takeover(request, settings, facts),
        ),
        said=tuple(_unknown(request, settings, facts)),
    )


@of_rule(Rule.BINDING_TAKEOVER)
def check_takeover(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> Iterator[FieldError]:
    """
    Yield the violation when someone else binds a Pod of our scheduler's.

    Rule: design section 5.1.
    """
    if facts.pod is None or forgery.is_ours(request.user, settings):
        return
    if scheduler_of(facts.pod) == settings.scheduler_name:
        fact = (
            f"pod {request.namespace}/{request.shown_name} is placed by the scheduler "
            f"{settings.scheduler_name}, which records what it holds; {shown(request.user.name)} "
            f"must not bind it to node {shown(_target(request))}: leave it to that scheduler, or "
            "create the pod with another spec.schedulerName"
        )
        yield forbidden("target", fact)


def _unknown(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> Iterator[Said]:
    if facts.pod is None and not forgery.is_ours(request.user, settings):
        name = f"{request.namespace}/{request.shown_name}"
        text = f"pod {name} could not be looked up, so nobody checked who may bind it"
        yield say(Advice.UNKNOWN_POD, text)


def _target(request: AdmissionRequest) -> str:
    target = an_object((request.obj or {}).get("target"), "target")
    return text_at(target, "name", "target")
