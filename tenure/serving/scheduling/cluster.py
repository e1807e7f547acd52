"""The cluster of the process: whose it is, whom it takes us for, what of it is followed."""

from __future__ import annotations

import logging
import time
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from certs.ports import ApiError
from ledger.domain import resources
from ledger.domain.kube.pod_spec import SelfSubjectReviewObject
from scheduler.service.assembly import Assembly
from scheduler.service.claims import CLAIMS
from scheduler.service.outcomes import is_definite
from scheduler.service.slices import CLASSES, SLICES
from scheduler.service.tainting import VERSIONS as RULE_VERSIONS
from scheduler.service.tainting import rules_path
from tenure.kube.objects import KubeObjects
from tenure.kube.reflector import Reflector

PATHS: Final = {
    "nodes": "/api/v1/nodes",
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
    "configmaps": f"/api/v1/namespaces/{resources.UNHEALTHY_GPU_NAMESPACE}/configmaps",
    "poddisruptionbudgets": "/apis/policy/v1/poddisruptionbudgets",
    "templates": f"/api/v1/namespaces/{resources.GPU_TEMPLATES_NAMESPACE}/configmaps",
    "resourceslices": SLICES,
    "resourceclaims": CLAIMS,
    "deviceclasses": CLASSES,
    **{f"devicetaintrules {version}": rules_path(version) for version in RULE_VERSIONS},
    "devices": "/apis/scheduling.koordinator.sh/v1alpha1/devices",
    "noderesourcetopologies": "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies",
}
"""Where the collections are that are followed."""
NAMES: Final = {"templates": resources.GPU_TEMPLATES_NAME}
"""Of which of them one object alone is followed."""
_CLUSTER: Final = "/api/v1/namespaces/kube-system"
_GROUP: Final = "authentication.k8s.io/v1"

_log: Final = logging.getLogger("tenure.scheduler")


def reflectors(live: Assembly, objects: KubeObjects) -> dict[str, Reflector]:
    """Return who follows what, by the name of the collection; kinds of others may be absent."""
    return {
        name: Reflector(
            _Lists(objects),
            PATHS[name],
            sink,
            monotonic=time.monotonic,
            may_be_absent=PATHS[name].startswith("/apis/"),
            may_be_set_back=False,
            name=NAMES.get(name, ""),
        )
        for name, sink in live.sinks().items()
    }


class _Lists:
    """What is followed, object by object: what a start makes of a list at once is never small."""

    def __init__(self, objects: KubeObjects) -> None:
        self.read = objects.read_list
        self.watch = objects.watch


async def origin_of(objects: KubeObjects) -> str:
    """Return the origin of our ledger: the cluster's. Raises ApiError: it can't be asked."""
    cluster = await objects.read(_CLUSTER)
    if cluster is None:
        raise ApiError(f"there is no such namespace: path={_CLUSTER}", status=404)
    return f"ledger/{cluster['metadata']['uid']}"


async def why_not_expected(objects: KubeObjects, expected: AbstractSet[str]) -> str:
    """Return why this process is no expected user; empty = it is, or unknown. Raises ApiError."""
    review = {"apiVersion": _GROUP, "kind": "SelfSubjectReview"}
    try:
        answer = await objects.create(f"/apis/{_GROUP}/selfsubjectreviews", review)
        user = msgspec.convert(answer, SelfSubjectReviewObject).status.user_info.username
    except (ApiError, msgspec.ValidationError) as error:
        if isinstance(error, ApiError) and not is_definite(error):
            raise
        _log.warning("the API server does not tell who we are", extra={"reason": str(error)})
        return ""
    if user in expected:
        return ""
    names = ", ".join(sorted(expected))
    why = (
        f"WrongIdentity: the API server takes us for {user}; serviceAccounts expects one of {names}"
    )
    _log.error("admission refuses what we bind", extra={"reason": why})
    return why
