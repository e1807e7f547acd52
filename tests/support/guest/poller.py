"""
Looks every 5 ms at what the kernel lets each container use, and at who has CPUs to itself.

Where a look takes longer, it rests as long, 50 ms at most: who never rests keeps a machine busy.

Runs in the guest beside what is tested, shares no code with it, and uses the standard library
alone. It looks at the cgroups that have processes. Claims are one object of JSON in a file that is
replaced whole: cgroup -> its CPUs, and the cgroups that may use them as well. What it saw is one
object of JSON on its output, once there is a file named as that of the claims and `.end`.

    python -m tests.support.guest.poller CLAIMS TREE FILE
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypedDict

PERIOD_SECONDS: Final = 0.005
REST_SECONDS_MAX: Final = 0.05
_BYTES_MAX: Final = 4096


class Claim(TypedDict):
    """
    CPUs of one cgroup; nobody else's process runs there but that of a guest of it.

    `since` is another number for one that was lifted between two looks.
    """

    since: int
    cpus: list[int]
    guests: list[str]


class Exposure(TypedDict):
    """A cgroup whose processes could use a CPU of another's, from one look to another."""

    who: str
    whose: str
    cpus: list[int]
    began: float
    lasted: float
    at_birth: bool


class Seen(TypedDict):
    """Everything of one run; seconds, `longest` between the beginnings of two looks."""

    looks: int
    longest: float
    cgroups: int
    exposures: list[Exposure]


class Poller:
    """One run: what is known of cgroups, and exposures that last."""

    def __init__(self, claims: Path, tree: Path, file: str) -> None:
        self._claims_file = claims
        self._tree = tree
        self._file = file
        self._below: dict[str, tuple[int, list[str]]] = {}
        self._born: dict[str, int] = {}
        self._open: dict[tuple[str, str], Exposure] = {}
        self.seen = Seen(looks=0, longest=0.0, cgroups=0, exposures=[])

    def look(self) -> None:
        """Look once; a claim counts if it stood before and after."""
        now = time.monotonic()
        before = self._claims()
        usable = {path: cpus for path in self._peopled() if (cpus := self._usable(path))}
        after = self._claims()
        self.seen["looks"] += 1
        for path in usable:
            self._born.setdefault(path, self.seen["looks"])
        still = set()
        for whose, claim in after.items():
            if before.get(whose) != claim:
                continue
            for who, cpus in usable.items():
                taken = cpus & set(claim["cpus"])
                if taken and who != whose and who not in claim["guests"]:
                    still.add((who, whose))
                    self._expose(who, whose, taken, now)
        for ended in self._open.keys() - still:
            self.seen["exposures"].append(self._open.pop(ended))

    def end(self) -> Seen:
        """Return all that was seen."""
        self.seen["exposures"] += self._open.values()
        self.seen["cgroups"] = len(self._born)
        return self.seen

    def _expose(self, who: str, whose: str, cpus: set[int], now: float) -> None:
        known = self._open.get((who, whose))
        if known is not None:
            known["lasted"] = now - known["began"]
            return
        self._open[who, whose] = Exposure(
            who=who,
            whose=whose,
            cpus=sorted(cpus),
            began=now,
            lasted=0.0,
            at_birth=self._born[who] == self.seen["looks"],
        )

    def _claims(self) -> dict[str, Claim]:
        return dict(json.loads(self._claims_file.read_text()))

    def _peopled(self) -> list[str]:
        """Return the cgroups that have processes of their own."""
        top = str(self._tree)
        return [one for one in self._all(top, _links(top)) if _read(f"{one}/cgroup.procs")]

    def _all(self, folder: str, links: int) -> Iterator[str]:
        """Yield a folder and all below; what is in it is listed anew once it changed."""
        yield folder
        known, below = self._below.get(folder, (0, []))
        found = [(one, _links(one)) for one in below]
        if known != links or not all(count for _, count in found):
            below = _folders(folder)
            self._below[folder] = links, below
            found = [(one, _links(one)) for one in below]
        for one, count in found:
            if count:
                yield from self._all(one, count)

    def _usable(self, path: str) -> set[int]:
        return _numbers(_read(f"{path}/{self._file}"))


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [one.path for one in entries if one.is_dir()]
    except OSError:  # it is not there yet, or has just gone
        return []


def _links(folder: str) -> int:
    """Return what tells how many folders are in one; 0 = it is not there."""
    try:
        return os.lstat(folder).st_nlink
    except OSError:
        return 0


def _read(path: str) -> str:
    try:
        opened = os.open(path, os.O_RDONLY)
        try:
            return os.read(opened, _BYTES_MAX).decode().strip()
        finally:
            os.close(opened)
    except OSError:  # it has just gone, or goes
        return ""


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def main(claims: str, tree: str, file: str) -> None:
    """Look until the end, at the same distance as far as the machine lets us."""
    poller = Poller(Path(claims), Path(tree), file)
    began = time.monotonic()
    while not Path(f"{claims}.end").exists():
        poller.look()
        took = time.monotonic() - began
        time.sleep(max(PERIOD_SECONDS - took, min(took, REST_SECONDS_MAX)))
        poller.seen["longest"] = max(poller.seen["longest"], time.monotonic() - began)
        began = time.monotonic()
    json.dump(poller.end(), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
