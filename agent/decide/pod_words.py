"""What an agent needs of a Pod as kubelet knows it: its containers' places, and its annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import section, text_in


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWords:
    """
    A Pod of this node.

    Attributes:
        places: name of a container -> its index in the spec, `<i>` or `init-<i>`. They never
            change while a Pod lives, nor does a name come twice.
    """

    pod_uid: str
    places: Mapping[str, str]
    annotations: Mapping[str, str]


def pod_words(pod: Mapping[str, Any]) -> PodWords:
    """
    Return what is said of a Pod.

    A static Pod has the UID of its file here, and another one in the API: nobody reserves for it.

    Raises:
        InputError: a container has no name, or that of another; with its place.
    """
    places: dict[str, str] = {}
    spec = pod["spec"]
    for field, prefix in (("containers", ""), ("initContainers", "init-")):
        listed = spec.get(field)
        for number, container in enumerate(listed if isinstance(listed, list) else ()):
            place = f"spec.{field}[{number}].name"
            name = text_in(container, "name")
            if not name:
                raise InputError("expected a name", field=place)
            if name in places:
                raise InputError(f"the name is there twice: name={name}", field=place)
            places[name] = f"{prefix}{number}"
    written = section(pod, "metadata", "annotations")
    annotations = {key: value for key, value in written.items() if isinstance(value, str)}
    return PodWords(pod_uid=pod["metadata"]["uid"], places=places, annotations=annotations)
