"""Whom the API server takes this process for, and whether admission lets that user bind."""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from typing import Final

from certs.ports import ApiError
from scheduler.service.outcomes import is_definite
from tenure.kube.objects import KubeObjects

WRONG: Final = "WrongIdentity"
_GROUP: Final = "authentication.k8s.io/v1"
_REVIEWS: Final = f"/apis/{_GROUP}/selfsubjectreviews"

_log: Final = logging.getLogger("tenure.scheduler")


async def why_not_expected(objects: KubeObjects, expected: AbstractSet[str]) -> str:
    """
    Return that this process is none of the expected users; empty where it is, or none can tell.

    Raises:
        ApiError: the API can't be asked.
    """
    review = {"apiVersion": _GROUP, "kind": "SelfSubjectReview"}
    try:
        answer = await objects.create(_REVIEWS, review)
    except ApiError as error:
        if not is_definite(error):
            raise
        _log.warning("the API server does not tell who we are", extra={"reason": str(error)})
        return ""
    user = str(answer["status"]["userInfo"]["username"])
    if user in expected:
        return ""
    names = ", ".join(sorted(expected))
    why = f"{WRONG}: the API server takes us for {user}; serviceAccounts expects one of {names}"
    _log.error("admission refuses what we bind", extra={"reason": why})
    return why
