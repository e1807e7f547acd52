"""Pods whose requests are claims, and these claims as the claim controller makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledger.domain.dialects.dra.asking import Asking, Giver, asking_of, claim_spec
from ledger.domain.request.claimed import with_claim
from ledger.domain.request.normalise import decode_pod
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from tests.support.gated import DRIVER, claim
from tests.support.objects import gpu_pod

GIVER = Giver(driver=DRIVER, device_class=DRIVER, sizes=(16 << 30,))


def asked(limits: Mapping[str, str]) -> Asking:
    """Return what these limits are as a claim."""
    found = asking_of(decode_pod(gpu_pod(limits)))
    assert isinstance(found, Asking)
    return found


def by_claim(name: str, limits: Mapping[str, str]) -> dict[str, Any]:
    """Return a Pod as admission leaves it."""
    made = gpu_pod(limits, name=name, uid=f"uid-{name}")
    return dict(with_claim(made, asked(limits), decode_pod(made).placement, DEFAULT_VOCABULARY))


def own_claim(
    name: str, version: int, limits: Mapping[str, str], *results: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the claim of a Pod of that name, with these results."""
    made = claim(name, version, *results, pods=[name] if results else ())
    made["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "tenure"}
    made["metadata"]["ownerReferences"] = [
        {"kind": "Pod", "name": name, "uid": f"uid-{name}", "controller": True}
    ]
    made["spec"] = claim_spec(asked(limits), GIVER)
    return made
