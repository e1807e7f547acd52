"""One way of asking for cards: `nvidia.com/gpu` and `gpu` become cores, memory and a count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ledger.domain.annotations.tenure import OriginalContainer
from ledger.domain.annotations.wire import an_object
from ledger.domain.dialects.registry import rewritten
from ledger.domain.kube.original import device_units
from ledger.domain.resources import GPU, KOORDINATOR_GPU_NAMES, NVIDIA_GPU
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.mutating.parts import Container
from webhook.decide.settings import DomainSetting

_CARDS_MAX: Final = 80_000
"""More whole cards than this stay as they are: no node has them, and percents are counted too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A container after the rewrite, and what it asked for before; None when that is the same."""

    container: Container
    original: OriginalContainer | None = None


def rewrite(
    container: Container, vocabulary: Vocabulary, *, domain: DomainSetting, whole_cards: bool
) -> Rewrite:
    """
    Return a container as admission writes it; its requests and limits are known to be legal.

    Rule: Koordinator contract 1.1 (domains; limits equal requests) and 5.1, step 4, ours with
    `nvidia.com/gpu`. `koordinator.sh/gpu.shared` has no name under `kubernetes.io/`.

    Args:
        domain: under which domain names are written; kept: each as it is, new ones as `gpu` was.
        whole_cards: the Pod asks for `nvidia.com/gpu`, which is rewritten; a zero in our words
            beside that would break a rule then, and is left out.
    """
    resources = an_object(container.get("resources"), "resources")
    requests = an_object(resources.get("requests"), "resources.requests")
    limits = an_object(resources.get("limits"), "resources.limits")
    before = _devices({**limits, **requests}, vocabulary)
    if not before:
        return Rewrite(container=container)
    after = _rewritten(
        before,
        device_units(resources, vocabulary),
        vocabulary,
        domain=domain,
        whole_cards=whole_cards,
    )
    new_requests = _with_devices(requests, after, vocabulary)
    new_limits = _with_devices(limits, after, vocabulary)
    if new_requests == requests and new_limits == limits:
        return Rewrite(container=container)
    changed = {
        **container,
        "resources": resources | {"requests": new_requests, "limits": new_limits},
    }
    if after == before:
        return Rewrite(container=changed)  # only filled in, requests from limits or back
    original = OriginalContainer(
        requests=_texts(requests, vocabulary), limits=_texts(limits, vocabulary)
    )
    return Rewrite(container=changed, original=original)


def filled(container: Container, vocabulary: Vocabulary) -> Container:
    """
    Return a container whose device requests and limits are filled in from one another.

    Rule: cli.md, Defaults; the API server wants both for extended resources.
    """
    resources = an_object(container.get("resources"), "resources")
    requests = an_object(resources.get("requests"), "resources.requests")
    limits = an_object(resources.get("limits"), "resources.limits")
    new_requests = _devices(limits, vocabulary) | requests
    new_limits = _devices(requests, vocabulary) | limits
    if new_requests == requests and new_limits == limits:
        return container
    return {**container, "resources": resources | {"requests": new_requests, "limits": new_limits}}


def _rewritten(
    before: Mapping[str, object],
    units: Mapping[str, int],
    vocabulary: Vocabulary,
    *,
    domain: DomainSetting,
    whole_cards: bool,
) -> dict[str, object]:
    written = _written(before, vocabulary)
    kept = NVIDIA_GPU in units and (not whole_cards or units[NVIDIA_GPU] > _CARDS_MAX)
    target = dict(units) if kept else rewritten(units)
    zeros = {vocabulary.canonical(key) for key in before} & KOORDINATOR_GPU_NAMES - units.keys()
    gone = (units.keys() - target.keys()) | (zeros if whole_cards else set())
    names = domain
    if domain is DomainSetting.KEPT and written.get(GPU, GPU) != GPU:
        names = DomainSetting.KUBERNETES
    new = {
        _named(name, names, vocabulary): str(target[name]) for name in target if name not in units
    }
    if domain is DomainSetting.KEPT:
        return {
            key: value for key, value in before.items() if vocabulary.canonical(key) not in gone
        } | new
    old = {
        _named(name, domain, vocabulary): before[key]
        for name, key in written.items()
        if name not in gone
    }
    return old | new


def _written(before: Mapping[str, object], vocabulary: Vocabulary) -> dict[str, str]:
    """
    Return released name -> the spelling that counts.

    Rule: Koordinator contract 1.1, alias rule: the released one, else the first in text order.
    """
    result: dict[str, str] = {}
    for key in sorted(before):
        name = vocabulary.canonical(key)
        if key == name or name not in result:
            result[name] = key
    return result


def _named(name: str, domain: DomainSetting, vocabulary: Vocabulary) -> str:
    kubernetes = domain is DomainSetting.KUBERNETES
    return vocabulary.proposal_name(name) if kubernetes else vocabulary.canonical(name)


def _devices(amounts: Mapping[str, object], vocabulary: Vocabulary) -> dict[str, object]:
    names = vocabulary.device_names
    return {key: value for key, value in amounts.items() if key in names}


def _with_devices(
    amounts: Mapping[str, object], devices: Mapping[str, object], vocabulary: Vocabulary
) -> dict[str, object]:
    kept = {
        key: devices.get(key, value)
        for key, value in amounts.items()
        if key in devices or key not in vocabulary.device_names
    }
    return {**kept, **devices}


def _texts(amounts: Mapping[str, object], vocabulary: Vocabulary) -> dict[str, str]:
    return {key: str(value) for key, value in _devices(amounts, vocabulary).items()}
