"""A machine out of several probes, each of which knows a part of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agent.discover.bandwidth import TEXT_MAX, read_bandwidth
from agent.discover.machine import Discovery, Fault, Identity, Kind, Probe, checked
from agent.durable import read_regular
from ledger.domain.errors import InputError

BAD_FILE: Final = "BadFile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A probe, and the kinds of devices that nobody knows while it can't look."""

    probe: Probe
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedProbe:
    """
    Looks at all parts; one that fails leaves the others as they are, and its own kinds unknown.

    Attributes:
        measured: what a tool printed of the bandwidth between GPUs; None = nobody measured it.
    """

    parts: tuple[Part, ...]
    measured: Path | None = None

    def look(self) -> Discovery:
        """Return the whole machine."""
        whole = Discovery()
        for part in self.parts:
            try:
                found = part.probe.look()
            except InputError as error:
                problem = Fault(reason=BAD_FILE, message=str(error))
                found = Discovery(unknown=part.kinds, problems=(problem,))
            whole = _joined(whole, found)
        try:
            whole = checked(whole)
        except InputError as error:
            problem = Fault(reason=BAD_FILE, message=str(error))
            whole = Discovery(
                identity=whole.identity, unknown=tuple(Kind), problems=(*whole.problems, problem)
            )
        return self._with_measured(whole)

    def _with_measured(self, found: Discovery) -> Discovery:
        if self.measured is None or Kind.GPU in found.unknown:
            return found
        try:
            text = read_regular(self.measured, TEXT_MAX + 1, follows=True).decode(
                "ascii", "replace"
            )
            return replace(found, measured=read_bandwidth(text, found.cards))
        except (InputError, OSError) as error:
            fact = f"{self.measured}: {error}; links are told by their kind"
            return replace(found, problems=(*found.problems, Fault(reason=BAD_FILE, message=fact)))


def _joined(a: Discovery, b: Discovery) -> Discovery:
    return Discovery(
        identity=a.identity if a.identity != Identity() else b.identity,
        driver_version=a.driver_version or b.driver_version,
        unknown=tuple(kind for kind in Kind if kind in a.unknown or kind in b.unknown),
        cards=a.cards + b.cards,
        links=a.links + b.links,
        nics=a.nics + b.nics,
        others=a.others + b.others,
        measured=a.measured or b.measured,
        problems=a.problems + b.problems,
    )
