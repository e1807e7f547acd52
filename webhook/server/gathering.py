"""Which facts a request needs, and no more: most need none but the namespace's labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ledger.domain.resources import LABEL_TENURE_MANAGED, NVIDIA_GPU
from webhook.decide.facts import NamespaceFacts, QuotaFact
from webhook.decide.review import CREATE, AdmissionRequest
from webhook.decide.settings import AdmissionSettings
from webhook.server.ports import LookupFailedError, Lookups

_BINDING: Final = "Binding"
_POD: Final = "Pod"
_SECTIONS: Final = ("containers", "initContainers")


async def gather_facts(
    request: AdmissionRequest, settings: AdmissionSettings, lookups: Lookups
) -> NamespaceFacts:
    """
    Look up what deciding this request needs.

    Raises:
        LookupFailedError: the API could not be asked. For a Binding the Pod then counts as
            unknown, and the decision is made without it.
    """
    if not request.namespace:
        return NamespaceFacts()
    labels = await lookups.namespace_labels(request.namespace)
    managed = labels.get(LABEL_TENURE_MANAGED) == "true"
    if request.kind == _BINDING:
        return NamespaceFacts(labels=labels, managed=managed, pod=await _bound(request, lookups))
    quotas: tuple[QuotaFact, ...] = ()
    if managed and settings.rewrite_whole_cards and _asks_whole_cards(request):
        quotas = await lookups.quotas(request.namespace)
    return NamespaceFacts(labels=labels, managed=managed, quotas=quotas)


async def _bound(request: AdmissionRequest, lookups: Lookups) -> Mapping[str, object] | None:
    try:
        return await lookups.pod(request.namespace, request.name)
    except LookupFailedError:
        return None


def _asks_whole_cards(request: AdmissionRequest) -> bool:
    if request.kind != _POD or request.operation != CREATE:
        return False
    return any(NVIDIA_GPU in amounts for amounts in _amounts(request.obj or {}))


def _amounts(pod: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """Yield the requests and the limits of every container, whatever else the Pod may be."""
    spec = pod.get("spec")
    for section in _SECTIONS:
        containers = spec.get(section) if isinstance(spec, Mapping) else None
        for container in containers if isinstance(containers, list) else ():
            resources = container.get("resources") if isinstance(container, Mapping) else None
            for kind in ("requests", "limits"):
                amounts = resources.get(kind) if isinstance(resources, Mapping) else None
                if isinstance(amounts, Mapping):
                    yield amounts
