"""
A Pod whose request admission wrote as a claim, and the same Pod as its user wrote it.

Rule: docs/adr/0031. Nothing in here grants anything: what a claim may have is asked of its Pod.
Where a Pod or our annotation can't be read, InputError is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.annotations import tenure
from ledger.domain.annotations.wire import a_list, an_object
from ledger.domain.dialects.dra.asking import CLAIM, Asking, asking_of, template_name
from ledger.domain.kube.object_fields import annotations_of, metadata_of, spec_of, text_at
from ledger.domain.kube.original import with_containers
from ledger.domain.request.isolation import provider_of
from ledger.domain.request.normalise import examine_pod
from ledger.domain.request.requests import PlacementRules
from ledger.domain.resources import (
    ANNOTATION_TENURE_CLAIMED,
    GATE_TENURE_PLACE,
    LABEL_GPU_ISOLATION_PROVIDER,
)
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary

_SECTIONS: Final = ("requests", "limits")
_CLAIMS: Final = "resourceClaims"
_GATES: Final = "schedulingGates"

Body = Mapping[str, object]


def is_claimed(pod: Body) -> bool:
    """Tell whether admission wrote a Pod's request as a claim, or somebody says so."""
    annotations = an_object(metadata_of(pod).get("annotations"), "metadata.annotations")
    return ANNOTATION_TENURE_CLAIMED in annotations


def as_asked(pod: Body) -> Body:
    """Return the Pod as its user wrote it: with its devices' resources, and without our claim."""
    metadata, annotations = metadata_of(pod), annotations_of(pod)
    if ANNOTATION_TENURE_CLAIMED not in annotations:
        return pod
    original = tenure.read_original(annotations, ANNOTATION_TENURE_CLAIMED).containers

    def restored(container: dict[str, object], _: str) -> dict[str, object]:
        resources = an_object(container.get("resources"), "resources")
        claims = [one for one in _claims(resources.get("claims")) if one.get("name") != CLAIM]
        left = {key: value for key, value in resources.items() if key != "claims"}
        if claims:
            left["claims"] = claims
        words = original.get(str(container.get("name")), tenure.OriginalContainer())
        for section, amounts in (("requests", words.requests), ("limits", words.limits)):
            if amounts:
                left[section] = {**an_object(left.get(section), section), **amounts}
        return {**container, "resources": left}

    spec = spec_of(with_containers(pod, restored))
    claims = [one for one in _claims(spec.get(_CLAIMS)) if one.get("name") != CLAIM]
    spec = {key: value for key, value in spec.items() if key != _CLAIMS}
    if claims:
        spec[_CLAIMS] = claims
    gates = [one for one in _gates(spec) if one.get("name") != GATE_TENURE_PLACE]
    spec.pop(_GATES, None)
    if gates:
        spec[_GATES] = gates
    own = {key: text for key, text in annotations.items() if key != ANNOTATION_TENURE_CLAIMED}
    return {**pod, "metadata": {**metadata, "annotations": own}, "spec": spec}


def with_claim(pod: Body, asking: Asking, rules: PlacementRules, vocabulary: Vocabulary) -> Body:
    """Return a Pod whose devices are a claim's; it runs where what isolates its parts does."""
    replaced: dict[str, tenure.OriginalContainer] = {}

    def claiming(container: dict[str, object], place: str) -> dict[str, object]:
        resources = an_object(container.get("resources"), "resources")
        left, words = {**resources}, {}
        for section in _SECTIONS:
            amounts = an_object(resources.get(section), f"resources.{section}")
            taken = {key: str(amounts[key]) for key in amounts if key in vocabulary.device_names}
            if taken:
                words[section] = taken
                left[section] = {key: amounts[key] for key in amounts if key not in taken}
                if not left[section]:  # the API server writes none either
                    del left[section]
        if words:
            replaced[text_at(container, "name", "")] = tenure.OriginalContainer(**words)
        names = asking.users.get(place, ())
        if names:
            ours = [{"name": CLAIM, "request": name} for name in names]
            left["claims"] = [*_claims(resources.get("claims")), *ours]
        return {**container, "resources": left} if words or names else container

    spec = {**spec_of(with_containers(pod, claiming))}
    ours = {"name": CLAIM, "resourceClaimTemplateName": template_name(asking)}
    spec[_CLAIMS] = [*_claims(spec.get(_CLAIMS)), ours]
    spec[_GATES] = [*_gates(spec), {"name": GATE_TENURE_PLACE}]
    provider = provider_of(rules)
    if provider:
        selector = an_object(spec.get("nodeSelector"), "spec.nodeSelector")
        spec["nodeSelector"] = {**selector, LABEL_GPU_ISOLATION_PROVIDER: provider}
    words = tenure.encode_original(
        tenure.OriginalRequest(containers=replaced), ANNOTATION_TENURE_CLAIMED
    )
    metadata = {**metadata_of(pod), "annotations": {**annotations_of(pod), **words}}
    return {**pod, "metadata": metadata, "spec": spec}


def asked_by_claim(pod: Body, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> Asking | None:
    """
    Return what the claim of a Pod has to ask for; None of one whose claim is not ours.

    That is one that names another template than its request has, or asks for what is no claim.
    """
    name = template_named(pod)
    if not name or not is_claimed(pod):
        return None
    request, errors = examine_pod(as_asked(pod), vocabulary)
    asking = () if errors else asking_of(request)
    if not isinstance(asking, Asking) or template_name(asking) != name:
        return None
    return asking


def template_named(pod: Body) -> str:
    """Return the template that a Pod names for a claim of ours, empty for none."""
    for one in _claims(spec_of(pod).get(_CLAIMS)):
        if one.get("name") == CLAIM:
            return text_at(one, "resourceClaimTemplateName", f"spec.{_CLAIMS}")
    return ""


def _gates(spec: Body) -> list[dict[str, object]]:
    return [an_object(one, _GATES) for one in a_list(spec.get(_GATES), f"spec.{_GATES}")]


def _claims(value: object) -> list[dict[str, object]]:
    return [an_object(one, _CLAIMS) for one in a_list(value, _CLAIMS)]
