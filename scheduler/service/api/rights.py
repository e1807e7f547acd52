"""
What a caller may see, by the cluster's own rights.

Rule: design section 2, aggregated API: a SubjectAccessReview per namespace; none is all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from certs.ports import Objects
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import RefusedError
from scheduler.service.api.remembered import Remembered
from scheduler.service.api.words import GROUP, RESOURCE, VERSION

REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
REMEMBERED_SECONDS: Final = 10.0
VERB: Final = "get"


class Rights:
    """Tells what callers may get."""

    def __init__(self, api: Objects, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._known: Remembered[tuple[Caller, str, str], bool] = Remembered(
            monotonic, seconds=REMEMBERED_SECONDS
        )

    async def expect(self, caller: Caller, question: str, namespace: str) -> None:
        """
        Let a caller pass who may get the answers to a question.

        Args:
            namespace: whose lines; empty = everybody's, which takes the right for all of them.

        Raises:
            RefusedError: 403, in the words of the Kubernetes API.
            ApiError, TooManyError: the API server can't be asked now.
        """
        key = (caller, question, namespace)
        asked = partial(self._review, caller, question, namespace)
        if await self._known.get(key, asked, caller.user):
            return
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        raise RefusedError(
            403,
            "Forbidden",
            f'{RESOURCE}.{GROUP} "{question}" is forbidden: User "{caller.user}" cannot {VERB}'
            f' resource "{RESOURCE}" in API group "{GROUP}" {where}',
        )

    async def _review(self, caller: Caller, question: str, namespace: str) -> bool:
        attributes = {
            "verb": VERB,
            "group": GROUP,
            "version": VERSION,
            "resource": RESOURCE,
            "name": question,
        }
        if namespace:
            attributes["namespace"] = namespace
        return await may(self._api, caller, attributes)


async def may(api: Objects, caller: Caller, attributes: Mapping[str, str]) -> bool:
    """Tell whether a caller has a right, as a SubjectAccessReview says. Raises ApiError."""
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": caller.user,
            "groups": list(caller.groups),
            "uid": caller.uid,
            "extra": {key: list(values) for key, values in caller.extra},
            "resourceAttributes": dict(attributes),
        },
    }
    answer = await api.create(REVIEWS, body)
    status = answer.get("status") or {}
    return status.get("allowed") is True and status.get("denied") is not True
