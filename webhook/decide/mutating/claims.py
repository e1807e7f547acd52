"""A Pod's cards as one claim, for namespaces where the cluster's own scheduler gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ledger.domain.dialects.dra.asking import Asking, asking_of
from ledger.domain.errors import FieldError, InputError
from ledger.domain.request.claimed import as_asked, is_claimed, with_claim
from ledger.domain.request.normalise import examine_spec, read_asked
from ledger.domain.request.requests import PodRequest
from webhook.decide.counting import uncounted_by_claims
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.parts import Pod
from webhook.decide.review import readable_pod
from webhook.decide.settings import AdmissionSettings

_SETS: Final = frozenset({"claims", "resourceClaims", "schedulingGates"})


def claiming(
    pod: Pod, settings: AdmissionSettings, facts: NamespaceFacts, *, namespace: str
) -> Pod:
    """
    Return a Pod with a claim in place of its devices' resources.

    Rule: docs/adr/0031. One that breaks rules, or asks for what no claim can say, stays as it is:
    validation refuses it in the words of its user.
    """
    if is_claimed(pod):
        return pod
    try:
        spec = read_asked(readable_pod(pod, namespace), settings.vocabulary)
        request, errors = examine_spec(spec)
    except InputError:
        return pod
    asking = () if errors or request.by_plugin else asking_of(request)
    if not isinstance(asking, Asking) or any(uncounted_by_claims(spec, facts)):
        return pod
    return with_claim(pod, asking, request.placement, settings.vocabulary)


def unclaimed(pod: Pod, request: PodRequest | None) -> tuple[FieldError, ...]:
    """Return why a legal request is no claim, for a Pod that was left as it is."""
    if request is None or is_claimed(pod) or request.by_plugin:
        return ()
    asking = asking_of(request)
    return () if isinstance(asking, Asking) else asking


def is_as_claimed(pod: Pod, settings: AdmissionSettings, *, namespace: str) -> bool:
    """Tell whether a Pod is what admission makes of the request that its annotation says."""
    try:
        asked = as_asked(pod)
        request, errors = examine_spec(
            read_asked(readable_pod(asked, namespace), settings.vocabulary)
        )
        asking = () if errors else asking_of(request)
        if not isinstance(asking, Asking):
            return False
        wanted = with_claim(asked, asking, request.placement, settings.vocabulary)
    except InputError:
        return False
    return _in_order(wanted.get("spec")) == _in_order(pod.get("spec"))


def _in_order(value: object, key: str = "") -> object:
    """Return a spec with what is a set in it in one order: others may add to it behind us."""
    if isinstance(value, Mapping):
        return {name: _in_order(item, name) for name, item in value.items()}
    if not isinstance(value, list):
        return value
    if key in _SETS:
        return sorted(value, key=lambda item: msgspec.json.encode(item, order="deterministic"))
    return [_in_order(item) for item in value]
