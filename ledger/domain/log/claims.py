"""What a claim holds, as who decides and who draws counts it: a holder that others brought."""

from __future__ import annotations

from ledger.domain.log.events import BY_CLAIM, ClaimObserved, ClaimReserved, PodObserved


def claim_as_observed(event: ClaimReserved | ClaimObserved) -> PodObserved:
    """Return what a claim holds as what a running Pod holds."""
    return PodObserved(
        pod_uid=event.claim_uid,
        attempt=event.attempt,
        namespace=event.namespace,
        pod_name=event.claim_name,
        node_uid=event.node_uid,
        node_name=event.node_name,
        source=BY_CLAIM,
        shares=event.shares,
        cpuset=event.cpuset,
        unknown_types=event.unknown_types if isinstance(event, ClaimObserved) else (),
    )
