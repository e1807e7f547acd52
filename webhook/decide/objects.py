"""Objects as requests carry them, made readable for the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.annotations.wire import an_object

_UNNAMED: Final = "unnamed"


def readable_pod(pod: Mapping[str, object], namespace: str = "") -> Mapping[str, object]:
    """
    Return a Pod with the name and the namespace that it has only once it is stored.

    On CREATE a Pod may carry a `generateName` alone, and no namespace: the request names that.

    Raises:
        InputError: `metadata` is no object.
    """
    metadata = an_object(pod.get("metadata"), "metadata")
    missing: dict[str, object] = {}
    if not metadata.get("name"):
        missing["name"] = metadata.get("generateName") or _UNNAMED
    if namespace and not metadata.get("namespace"):
        missing["namespace"] = namespace
    return {**pod, "metadata": {**metadata, **missing}} if missing else pod
