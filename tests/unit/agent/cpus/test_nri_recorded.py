"""A real runtime's bytes, recorded, and the answers that it took."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from agent.cpus.nri import INDEX, NAME, REGISTER_SECONDS, Answering, Snapshot
from agent.cpus.nri_messages import RUNTIME_SERVICE, Bound, Happening, call_of, register
from agent.cpus.ttrpc import REQUEST, Incoming, asked_in, refused_in, request, response
from ledger.domain.cpuset import parse_cpuset

_FILE: Final = Path(__file__).parents[3] / "samples" / "nri" / "containerd-2.4.2.hex"
LINES: Final = [line.split() for line in _FILE.read_text().splitlines()]
UID: Final = "11111111-2222-3333-4444-555555555555"
HAPPENED: Final = [
    Happening.RUN_POD_SANDBOX,
    Happening.CREATE_CONTAINER,
    Happening.POST_CREATE_CONTAINER,
    Happening.POST_START_CONTAINER,
    Happening.UPDATE_CONTAINER,
    Happening.REMOVE_CONTAINER,
    Happening.STOP_POD_SANDBOX,
]


def said(who: str) -> bytes:
    """Return all that one end said."""
    return b"".join(bytes.fromhex(read) for one, read in LINES if one == who)


@pytest.mark.parametrize("size", [1, 7, 4096, 10**6])
def test_what_the_runtime_took_is_answered_again(size: int) -> None:
    """Byte for byte, however the runtime's own bytes are cut."""
    bound = {(UID, "main"): Bound(cpus=parse_cpuset("1"))}
    named = register(NAME, INDEX)
    ours = request(RUNTIME_SERVICE, "RegisterPlugin", named, REGISTER_SECONDS)
    incoming, answering = Incoming(), Answering(lambda: 0.0)
    theirs = said("runtime")
    for at in range(0, len(theirs), size):
        for one in incoming.feed(theirs[at : at + size]):
            if one.kind != REQUEST:
                assert refused_in(one) == ""
                continue
            answer, _, _ = answering.answer(Snapshot(bound=bound), *asked_in(one))
            ours += response(one, answer)
    assert ours == said("plugin")


def test_each_call_is_read() -> None:
    """Of the Pod with its cgroup, and of its container with what it has by then."""
    calls = []
    for one in Incoming().feed(said("runtime")):
        if one.kind == REQUEST:
            method, payload = asked_in(one)
            calls += [call_of(method, payload)] if method in METHODS else []
    assert [one.happening for one in calls if one] == HAPPENED
    assert {one.pod_uid for one in calls if one} == {UID}
    assert {one.pod_uid for one in calls if one} == {UID}
    containers = [one for one in calls if one and one.container]
    assert {one.container for one in containers} == {"main"}
    assert len({one.container_id for one in containers}) == 1
    assert [one.cpus for one in containers] == ["", "1", "1", "1", "1"]


METHODS: Final = {one.name.title().replace("_", "") for one in HAPPENED}
