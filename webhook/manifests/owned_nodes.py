"""Nodes of ours, in CEL: what `webhook.decide.validating.owned` says, for the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.resources import (
    DOMAIN_TENURE,
    LABEL_TENURE_OWNED,
    SHARED_GPU_NAMES,
    TAINT_TENURE_OWNED,
)
from webhook.decide.settings import AdmissionSettings
from webhook.manifests.cel import takes, text

CLAIMS: Final = "(has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > 0)"
_BY_NAME: Final = f"has(t.key) && t.key == {text(TAINT_TENURE_OWNED)}"
_EVERYTHING: Final = "(!has(t.key) || t.key == '') && has(t.operator) && t.operator == 'Exists'"
_TERMS: Final = (
    "object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    ".nodeSelectorTerms"
)


def owned_nodes(settings: AdmissionSettings) -> Mapping[str, str]:
    """
    Return the validations of a Pod that our scheduler does not place.

    Rule: design section 5.1, In all namespaces, by policy. A Pod can gain tolerations after it was
    created; one that had them before may still change otherwise. `variables.asks_devices` is there.
    """
    ours = settings.scheduler_name
    words = settings.vocabulary
    offered = words.advertised_names()
    ours_alone = words.device_names - SHARED_GPU_NAMES
    return {
        f"a Pod that asks for a device tolerates {TAINT_TENURE_OWNED} by the scheduler {ours}"
        " alone": f"!{_gains(_BY_NAME)} || !(variables.asks_devices || {CLAIMS})",
        "a Pod that asks for a device that nodes of Tenure's advertise and tolerates everything is"
        f" kept off them: node affinity {LABEL_TENURE_OWNED} DoesNotExist, or node selector"
        f" {LABEL_TENURE_OWNED}=false": (
            f"!{_gains(_EVERYTHING)} || {_kept_off()} || !{takes('object', offered)}"
        ),
        "a Pod that asks for a device of Tenure's can't choose its node: leave spec.nodeName out": (
            "request.operation != 'CREATE' || !has(object.spec.nodeName)"
            f" || object.spec.nodeName == '' || !{takes('object', ours_alone)}"
        ),
        f"what is in {DOMAIN_TENURE} is given to Pods of the scheduler {ours} alone": (
            f"request.operation != 'CREATE' || !{takes('object', (), (DOMAIN_TENURE,))}"
        ),
    }


def may_meet_owned_nodes(settings: AdmissionSettings) -> str:
    """Return what is true of every Pod that `owned_nodes` refuses, without variables."""
    words = settings.vocabulary
    some = takes("object", words.device_names | words.advertised_names(), (DOMAIN_TENURE,))
    gains = f"({_gains(_BY_NAME)} || {_gains(_EVERYTHING)})"
    return f"(request.operation == 'CREATE' || {gains}) && ({some} || ({CLAIMS} && {gains}))"


def _gains(toleration: str) -> str:
    now, before = (
        f"(has({pod}.spec.tolerations) && {pod}.spec.tolerations.exists(t, {toleration}))"
        for pod in ("object", "oldObject")
    )
    return f"({now} && (oldObject == null || !{before}))"


def _kept_off() -> str:
    label = text(LABEL_TENURE_OWNED)
    selected = (
        f"(has(object.spec.nodeSelector) && {label} in object.spec.nodeSelector"
        f" && object.spec.nodeSelector[{label}] != 'true')"
    )
    excluded = (
        f"e.key == {label} && (e.operator == 'DoesNotExist'"
        " || (e.operator == 'NotIn' && 'true' in e.values)"
        " || (e.operator == 'In' && !('true' in e.values)))"
    )
    nowhere = "!has(t.matchExpressions) && !has(t.matchFields)"
    term = f"({nowhere}) || (has(t.matchExpressions) && t.matchExpressions.exists(e, {excluded}))"
    required = _TERMS.rpartition(".")[0]
    there = f"has(object.spec.affinity) && has({required.rpartition('.')[0]}) && has({required})"
    return f"({selected} || ({there} && {_TERMS}.all(t, {term})))"
