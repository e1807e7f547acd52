"""Nodes of ours: nobody gets a device there whom our scheduler did not place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ledger.domain import resources
from ledger.domain.annotations.wire import TRUE, a_list
from ledger.domain.errors import FieldError
from ledger.domain.kube.object_fields import spec_of
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.request.requests import MatchExpression, PlacementRules, Toleration
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, of_rule
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating.findings import Json, scheduler_of, shown


@of_rule(Rule.OWNED_NODE)
def check_owned(pod: Json, spec: PodSpec, settings: AdmissionSettings) -> Iterator[FieldError]:
    """
    Yield how a Pod that our scheduler does not place would get a device of our nodes.

    Rule: design section 5.1, In all namespaces, by policy. Whoever made it, and wherever; what it
    asks for counts as it is written, zero is nothing.
    """
    if scheduler_of(pod) == settings.scheduler_name:
        return
    asked = _asked(spec)
    yield from _our_names(asked, settings)
    devices = [*filter(spec.vocabulary.device_type_of, asked), *_claims(pod)]
    offered = spec.vocabulary.advertised_names()
    for number, toleration in enumerate(spec.placement.tolerations):
        field = f"spec.tolerations[{number}]"
        if toleration.key == resources.TAINT_TENURE_OWNED and devices:
            fact = (
                f"a pod that asks for {devices[0]} gets onto nodes of that taint by the scheduler"
            )
            yield forbidden(field, f"{fact} {shown(settings.scheduler_name)} alone")
        elif tolerates_everything(toleration) and not is_kept_off_owned(spec.placement):
            for name in [name for name in asked if name in offered][:1]:
                fact = (
                    f"a pod that asks for {name} and tolerates everything gets onto nodes of ours"
                )
                way = f"keep it off them: node affinity {resources.LABEL_TENURE_OWNED} DoesNotExist"
                yield forbidden(field, f"{fact}; {way}, or name the taints that it tolerates")


@of_rule(Rule.OWNED_NODE)
def check_opted_in(
    pod: Json, asked: str, settings: AdmissionSettings, *, opted_in: bool
) -> Iterator[FieldError]:
    """
    Yield the violation when our scheduler is asked from a namespace that has not opted in.

    Rule: design section 8, Guests in the cluster. Nobody completes such a Pod.

    Args:
        asked: the first thing of ours that it asks for, or nothing.
    """
    asked = asked or "".join(_claims(pod))
    if asked and not opted_in and scheduler_of(pod) == settings.scheduler_name:
        fact = f"a pod that asks for {asked} names the scheduler {shown(settings.scheduler_name)}"
        way = f"label the namespace {resources.LABEL_TENURE_MANAGED}=true"
        yield forbidden("spec.schedulerName", f"{fact} in managed namespaces alone: {way}")


def tolerates_everything(toleration: Toleration) -> bool:
    """Tell whether a toleration covers every taint, of some effect at least."""
    return not toleration.key and toleration.operator == "Exists"


def is_kept_off_owned(rules: PlacementRules) -> bool:
    """Tell whether node selector or required affinity take no node with the label of ours."""
    if dict(rules.node_selector).get(resources.LABEL_TENURE_OWNED, TRUE) != TRUE:
        return True
    return rules.affinity_terms is not None and all(
        any(map(_excludes, term)) for term in rules.affinity_terms
    )


def _excludes(expression: MatchExpression) -> bool:
    if expression.is_field or expression.key != resources.LABEL_TENURE_OWNED:
        return False
    match expression.operator:
        case "DoesNotExist":
            return True
        case "NotIn":
            return TRUE in expression.values
        case "In":
            return TRUE not in expression.values
        case _:
            return False


def _our_names(asked: Mapping[str, str], settings: AdmissionSettings) -> Iterator[FieldError]:
    for name, field in asked.items():
        if name.startswith(resources.DOMAIN_TENURE):
            fact = (
                f"{name} is given to pods of the scheduler {shown(settings.scheduler_name)} alone"
            )
            yield forbidden(field, fact)


def _asked(spec: PodSpec) -> dict[str, str]:
    return {
        container.written.get(name, name): container.field(name, section)
        for container in reversed(spec.containers)
        for section, amounts in (("limits", container.limits), ("requests", container.requests))
        for name, quantity in amounts.items()
        if quantity
    }


def _claims(pod: Json) -> list[str]:
    claims = a_list(spec_of(pod).get("resourceClaims"), "spec.resourceClaims")
    return ["a device by spec.resourceClaims"] if claims else []
