"""API objects as decoding takes them, each with its place for messages, wherever it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ledger.domain.annotations.volcano_vgpu import VGPU_GIVEN_NODE
from ledger.domain.dialects.names import FOREIGN_WORDS
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import found_in, section, text_in
from ledger.domain.resources import SCHEDULER_NAME

_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """
    One API object, as the API server gave it; one out of a file knows its place there too.

    Attributes:
        kind: with its API group where another group has a kind of our name: `Device.acme.io`.
        ours: it means something to Tenure.
        namespace: empty for a kind that has none.
        body: the object; its metadata has name, namespace and uid.
        errors: what admission refuses of a Pod that it has not seen yet.
    """

    kind: str
    ours: bool
    namespace: str
    name: str
    uid: str
    body: dict[str, Any]
    errors: tuple[FieldError, ...] = ()

    @property
    def title(self) -> str:
        """Return the object's name for people: `Pod default/web`, `Node n1`."""
        return (
            f"{self.kind} {self.namespace}/{self.name}"
            if self.namespace
            else f"{self.kind} {self.name}"
        )

    def place(self, field: str = "") -> str:
        """Return where a field stands: in the object, wherever that is."""
        return field or "the API"

    def blame(self, error: InputError) -> InputError:
        """Return the error with place and object of this document."""
        return error.at(f"{self.place(error.field)}: {self.title}")


class Documents(Protocol):
    """The objects of one cluster, in their order."""

    @property
    def documents(self) -> Sequence[Document]:
        """All of them."""

    def of_kind(self, kind: str) -> Sequence[Document]:
        """Return the objects of one kind of ours."""

    def documents_in(self, name: str, text: str) -> tuple[Any, ...]:
        """
        Return the YAML documents of a text inside an object.

        Raises:
            InputError: broken YAML; with its line.
        """


def is_ended(body: Mapping[str, Any]) -> bool:
    """Tell whether a Pod has ended, in whichever phase."""
    return text_in(body, "status", "phase") in _ENDED


def node_of(body: Mapping[str, Any]) -> str:
    """
    Return the node that a Pod is on, empty while it has none.

    One that another system's scheduler has given cards is on the node that it names, bound or not
    (docs/contracts/hami.md 3, volcano-vgpu.md); admission leaves it to that one unless it names
    our scheduler.

    Raises:
        InputError: its node is no text.
    """
    bound = found_in(body, "spec", "nodeName")
    if bound:
        if not isinstance(bound, str):
            raise InputError("must be text", field="spec.nodeName")
        return bound
    if found_in(body, "spec", "schedulerName") == SCHEDULER_NAME:
        return ""
    annotations = section(body, "metadata", "annotations")
    keys = (*(words.given_node for words in FOREIGN_WORDS if words.given_node), VGPU_GIVEN_NODE)
    given = map(annotations.get, keys)
    return next((name for name in given if isinstance(name, str) and name), "")
