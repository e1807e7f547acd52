"""What admission answers: allowed or not, why, what to change and what to say besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ledger.domain.errors import FieldError, InputError

WARNING_LENGTH_MAX: Final = 255
"""Kubernetes asks for warnings of fewer than 256 characters and cuts longer ones."""

INVALID: Final = "Invalid"
FORBIDDEN: Final = "Forbidden"
_CUT: Final = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchOperation:
    """One JSON Patch operation (RFC 6902). `value` is not written for `remove`."""

    op: str
    path: str
    value: object = None

    def as_json(self) -> dict[str, object]:
        """Return the operation as it is sent."""
        shown: dict[str, object] = {"op": self.op, "path": self.path}
        return shown if self.op == "remove" else {**shown, "value": self.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """
    One violation, and what was made of it.

    Attributes:
        rule: the rule's stable CamelCase name, as in settings, metrics and the documentation.
        mode: `enforce` when it refused the object, `warn` when it was only said.
    """

    rule: str
    mode: str
    error: FieldError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionAnswer:
    """
    What becomes of one request.

    Attributes:
        causes: what refused it, in the order found; empty when it is allowed.
        warnings: one sentence each, at most `WARNING_LENGTH_MAX` characters.
        patch: the operations that make the object ours; empty when it is refused.
        message: why it is refused, in the API server's words; empty when it is allowed.
        reason: the metav1 status reason of a refusal, `Invalid` or `Forbidden`.
        audit: audit annotations, key (without our prefix) -> text.
        refusals: every violation with its rule, those that were only warned about too.
    """

    allowed: bool = True
    causes: tuple[FieldError, ...] = ()
    warnings: tuple[str, ...] = ()
    patch: tuple[PatchOperation, ...] = ()
    message: str = ""
    reason: str = INVALID
    audit: Mapping[str, str] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()


ALLOWED: Final = AdmissionAnswer()


def refuse(
    *,
    kind: str,
    name: str,
    causes: Sequence[FieldError],
    warnings: Iterable[str] = (),
    refusals: Sequence[Refusal] = (),
    reason: str = INVALID,
) -> AdmissionAnswer:
    """Return the answer that refuses an object with every violation at once."""
    assert causes, "a refusal names at least one violation"
    return AdmissionAnswer(
        allowed=False,
        causes=tuple(causes),
        warnings=tuple(map(warning, warnings)),
        message=refusal_message(kind, name, causes, reason=reason),
        reason=reason,
        refusals=tuple(refusals),
    )


def refusal_message(
    kind: str, name: str, causes: Sequence[FieldError], *, reason: str = INVALID
) -> str:
    """
    Return why an object is refused, in the API server's words.

    Rule: apimachinery, NewInvalid: `Pod "x" is invalid: spec.a: Invalid value: 1: why`, with
    several violations in brackets; NewForbidden reads `pods "x" is forbidden: why` alike.
    """
    texts = list(dict.fromkeys(map(str, causes)))
    shown = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    verdict = "forbidden" if reason == FORBIDDEN else "invalid"
    return f'{kind} "{name}" is {verdict}: {shown}'


def unreadable(error: InputError) -> FieldError:
    """Return the field error for an object that can't be read."""
    return FieldError(
        field=error.field, reason="FieldValueInvalid", message=f"Invalid value: {error.message}"
    )


def warning(text: str) -> str:
    """Return a warning that the API server passes on whole: one line, cut where it is too long."""
    line = " ".join(text.split())
    if len(line) <= WARNING_LENGTH_MAX:
        return line
    return f"{line[: WARNING_LENGTH_MAX - len(_CUT)]}{_CUT}"
