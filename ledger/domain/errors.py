"""The few kinds of failure, told apart by what the catcher does about them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


class TenureError(Exception):
    """Base of every error that Tenure raises on purpose."""


class InputError(TenureError):
    """
    A value from outside can't be read. Refuse the input, name the place, write nothing.

    `field` is the path inside the object (`spec.containers[0].resources.limits[cpu]`), `place`
    the object or the file and line; the outer layers fill in what the inner ones can't know.
    """

    def __init__(self, message: str, *, field: str = "", place: str = "") -> None:
        self.message = message
        self.field = field
        self.place = place
        super().__init__(": ".join(part for part in (place, field, message) if part))

    def within(self, prefix: str) -> InputError:
        """Return the same error, notes and all, with its field path below `prefix`."""
        joint = "" if not prefix or not self.field or self.field.startswith("[") else "."
        return self._placed(f"{prefix}{joint}{self.field}", self.place)

    def at(self, place: str) -> InputError:
        """Return the same error, notes and all, with the object or `file:line` it was found in."""
        return self._placed(self.field, place)

    def _placed(self, field: str, place: str) -> InputError:
        placed = InputError(self.message, field=field, place=place)
        for note in getattr(self, "__notes__", ()):
            placed.add_note(note)
        return placed


class LedgerError(TenureError):
    """The ledger did not do what was asked. The subclasses say what to do next."""


class StaleStreamError(LedgerError):
    """Another writer extended the stream first. Re-read, decide again, retry."""

    def __init__(self, *, stream: str, expected_version: int) -> None:
        self.stream = stream
        self.expected_version = expected_version
        super().__init__(f"stream moved on: stream={stream}, expected_version={expected_version}")


class NotAfterError(LedgerError):
    """What was counted as recorded is not. Decide again, retry."""


class FencedError(LedgerError):
    """The head moved or the epoch changed: this process is no longer the writer. Give up."""


class CapacityError(LedgerError):
    """The database refused a second holder. The decision was wrong: refuse it, raise an alarm."""


class IdempotencyError(LedgerError):
    """The same key was used for another command. Refuse."""


class BusyError(LedgerError):
    """Another process holds what an answer needs. Nothing was recorded: ask again."""


class ClockSkewError(LedgerError):
    """Our clock moved: nothing is granted until this process is started with a right one."""


class OverloadedError(LedgerError):
    """More commands wait than the writer takes on. Nothing was recorded: say so, retry later."""


class UnknownOutcomeError(LedgerError):
    """The database's answer was lost: recorded or not. Ask again with the same keys."""


class UnknownEventError(LedgerError):
    """The ledger holds an event of a newer version. Stop and say so; never guess."""


class CorruptLedgerError(LedgerError):
    """The recorded bytes contradict themselves. Stop; `position` is the first bad event."""

    def __init__(self, message: str, *, position: int) -> None:
        self.position = position
        super().__init__(f"{message}: position={position}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """
    One way an object breaks a rule, in Kubernetes' words (metav1 StatusCause).

    Attributes:
        field: a path from the object's root.
        reason: a cause type such as FieldValueInvalid or FieldValueForbidden.
        rule: the stable name of the rule, which says nothing about what is wrong with the object.
    """

    field: str
    reason: str
    message: str
    rule: str = dataclasses.field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class RefusedError(TenureError):
    """A Pod breaks rules of ours. It is refused with every violation; others go on."""

    def __init__(self, errors: tuple[FieldError, ...]) -> None:
        assert errors, "a refusal names at least one violation"
        self.errors = errors
        super().__init__("; ".join(str(error) for error in errors))
