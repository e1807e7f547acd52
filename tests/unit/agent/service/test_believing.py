"""Whose word a node believes, in every combination of who speaks and how; and never another's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from aiohttp import ClientSession
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.decide.believing import Believed, Believing, Source
from agent.decide.following import failed, told_all
from agent.decide.node_holdings import HeldByPod, NodeHoldings, Origin
from agent.https import Authority, Caller
from agent.service.keeping import Copy, CopyFile, Keeper
from agent.service.link import ServiceLink
from ledger.domain.errors import InputError
from tests.support.proofs import (
    ORIGIN,
    OTHER_KEY,
    OWN,
    annotation,
    believing,
    devices,
    held,
    holds,
    proven,
    word,
)

# The Pod `p` was reserved card `x` at 10, which ended at 20, and `y` at 30, by which it was bound.
X, Y, Z = holds("0", "x"), holds("0", "y"), holds("0", "z")
FIRST, SECOND = held("p", 10, X), held("p", 30, Y, attempt=2)
BOTH_KNOWN: Final = word(40, SECOND)
NOT_YET: Final = word(25)
RELEASED: Final = word(50)

SERVICES: Final[dict[str, NodeHoldings | None]] = {
    "down": None,
    "holds": BOTH_KNOWN,
    "holds nothing": RELEASED,
}
COPIES: Final[dict[str, NodeHoldings | None]] = {
    "none": None,
    "torn": BOTH_KNOWN,
    "of others": BOTH_KNOWN,
    "tampered": word(40, replace(SECOND, containers=(Z,))),
    "by another key": word(40, replace(SECOND, proof=proven("p", 30, Y, attempt=2, key=OTHER_KEY))),
    "of another node": word(
        40, SECOND, origin=Origin(node_name="b", node_uid="uid-b", cluster="ledger/test")
    ),
    "of a node made anew": word(40, SECOND, origin=replace(ORIGIN, node_uid="uid-b")),
    "there": BOTH_KNOWN,
    "of an older boot": BOTH_KNOWN,
    "before the reservation": NOT_YET,
    "after the release": RELEASED,
}
GOOD: Final = {"there", "of an older boot", "before the reservation", "after the release"}
ANNOTATIONS: Final[dict[str, str | None]] = {
    "there": SECOND.proof,
    "missing": None,
    "of the reservation before": FIRST.proof,
    "tampered": SECOND.proof.replace('"y"', '"z"'),
    "of another Pod": proven("q", 60, Z),
    "of another node": proven("p", 30, Z, attempt=2, node_uid="uid-b"),
    "by another key": proven("p", 60, Z, attempt=2, key=OTHER_KEY),
    "of another incarnation": proven("p", 60, Y, attempt=2, incarnation="i-2"),
    "no proof": "{}",
}


def expected(service: str, copy: str, said: str) -> tuple[Source | None, str] | None:
    """Return whose word counts and which card that is, (None, "") for nobody's; None: refused."""
    if service != "down":
        return (Source.SERVICE, "y") if service == "holds" else (None, "")
    if copy in {"there", "of an older boot"}:
        return (Source.COPY, "y")
    if said in {"missing", "not told"}:
        return (None, "")
    if copy in {"before the reservation", "after the release"}:
        is_later = (copy, said) == ("before the reservation", "there")
        return (Source.ANNOTATION, "y") if is_later else None
    believable = {"there": "y", "of another incarnation": "y", "of the reservation before": "x"}
    return (Source.ANNOTATION, believable[said]) if said in believable else None


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("copy", COPIES)
def test_whose_word_counts(tmp_path: Path, service: str, copy: str) -> None:
    """
    The service's, else the copy's, else the Pod's own; whatever is not ours is nobody's.

    A reservation that ended is believed where nobody knows of its end alone: no service, no copy.
    """
    file, known = CopyFile(tmp_path), COPIES[copy]
    if known is not None:
        file.write(Copy(known=known, at=1, boot_id="before" if "older" in copy else "now"))
    if copy == "torn":
        file.path.write_bytes(file.path.read_bytes()[:-100])
    if copy == "of others":
        file.path.chmod(0o644)
    keeper = Keeper(file=file, boot_id="now", now=lambda: 61.0)
    begun = keeper.begin(believing())
    assert (begun is not None, bool(keeper.problem)) == (copy in GOOD, copy not in GOOD | {"none"})
    assert begun is None or begun[1] == 60.0

    now = SERVICES[service]
    for said, text in (*ANNOTATIONS.items(), ("not told", None)):
        annotations = None if said == "not told" else annotation(text)
        last = now or (None if begun is None else begun[0])

        def of_pod(
            annotations: dict[str, str] | None = annotations, last: NodeHoldings | None = last
        ) -> Believed | None:
            return believing().of_pod("p", last, is_heard=now is not None, annotations=annotations)

        wanted = expected(service, copy, said)
        if wanted is None:
            with pytest.raises(InputError):
                of_pod()
            continue
        found = of_pod()
        card = "" if found is None else "".join(devices(found.proof.containers))
        assert (None if found is None else found.source, card) == wanted, said


def test_a_word_is_kept_though_nobody_answers_before_it_is_written(tmp_path: Path) -> None:
    """As of when it was said; what came from the copy is not written as if it were heard."""
    file = CopyFile(tmp_path)

    async def act(session: ClientSession) -> None:
        caller = Caller(session=session, url="", authority=Authority(tmp_path), token=tmp_path)
        seconds = iter((100.0, 130.0))
        link = ServiceLink(caller, clock=lambda: next(seconds), draw=lambda: 0.0)
        link._become(told_all(link.state, ORIGIN, 40, [SECOND]))
        link._become(failed(link.state, "away"))
        keeper = Keeper(file=file, boot_id="now", now=lambda: 1030.0)
        assert keeper.begin(believing()) is None
        assert await keeper.write(link)
        copy = file.read()
        assert copy is not None
        assert (copy.known, copy.at) == (link.holdings, 1000)

        begun = keeper.begin(believing())
        assert begun is not None
        file.path.unlink()
        known, age = begun
        link = ServiceLink(
            caller, clock=lambda: 0.0, draw=lambda: 0.0, known=known, age_seconds=age
        )
        assert await keeper.write(link)
        assert file.read() is None

    async def with_session() -> None:
        async with ClientSession() as session:
            await act(session)

    asyncio.run(with_session())


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda one: replace(one, proof=""), id="no proof"),
        pytest.param(lambda one: replace(one, containers=(Z,)), id="other devices"),
        pytest.param(lambda one: replace(one, position=31), id="another position"),
        pytest.param(lambda one: replace(one, attempt=3), id="another attempt"),
        pytest.param(lambda one: replace(one, proof=FIRST.proof), id="another holding's proof"),
    ],
)
def test_the_services_own_word_is_verified_too(spoil: Callable[[HeldByPod], HeldByPod]) -> None:
    """It comes over a network; whoever answers in its place has no key."""
    with pytest.raises(InputError):
        believing().of_pod("p", word(40, spoil(SECOND)), is_heard=True, annotations=None)


def test_a_machine_that_is_another_believes_nothing() -> None:
    """A disk that was put into another machine has its copy, and the Node's name."""
    other = believing(replace(OWN, machine=("system-b", "machine-a")))
    with pytest.raises(InputError, match="machine"):
        other.copy(BOTH_KNOWN)
    with pytest.raises(InputError, match="machine"):
        other.of_pod("p", None, is_heard=False, annotations=annotation(SECOND.proof))


def test_what_ended_beyond_the_position_has_ended() -> None:
    """A change that was told beside an answer counts before the position has come to it."""
    known = replace(NOT_YET, ended={"p": 35})
    with pytest.raises(InputError, match="released"):
        believing().of_pod("p", known, is_heard=False, annotations=annotation(SECOND.proof))


_STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "bind", "end", "hear", "tear", "forge", "start"]),
        st.integers(0, 3),
        st.integers(0, 2),
    ),
    min_size=5,
    max_size=40,
)


class World:
    """A ledger of three cards, each whole, four Pods, and a node that hears of it now and then."""

    def __init__(self) -> None:
        self.position = 1
        self.attempts = [0] * 4
        self.holders: dict[int, tuple[int, HeldByPod]] = {}  # card -> Pod, holding
        self.bound: dict[int, str] = {}  # Pod -> proof on it
        self.forged: dict[int, str] = {}
        self.told: NodeHoldings | None = None

    def reserve(self, pod: int, card: int) -> None:
        """Reserve a free card for a Pod that has none; a reservation may also come to nothing."""
        if card in self.holders or pod in self.bound:
            return
        for other, (holder, _) in list(self.holders.items()):
            if holder == pod:
                self.position += 1
                del self.holders[other]
        self.position += 1
        self.attempts[pod] += 1
        one = held(f"p{pod}", self.position, holds("0", f"card-{card}"), attempt=self.attempts[pod])
        self.holders[card] = (pod, one)

    def bind(self, pod: int) -> None:
        """Bind a Pod by its reservation: kubelet has it, with the proof on it."""
        for holder, one in self.holders.values():
            if holder == pod:
                self.position += 1
                self.bound[pod] = one.proof

    def end(self, pod: int) -> None:
        """End a Pod: kubelet has it no more, and the ledger releases it then."""
        self.bound.pop(pod, None)
        self.forged.pop(pod, None)
        for card, (holder, _) in list(self.holders.items()):
            if holder == pod:
                self.position += 1
                del self.holders[card]

    def hear(self) -> None:
        """Let the node hear the service."""
        self.told = word(self.position, *(one for _, one in self.holders.values()))


@settings(max_examples=150, deadline=None)
@given(steps=_STEPS)
def test_none_starts_with_anothers_cards(steps: list[tuple[str, int, int]]) -> None:
    """Whatever was heard when, lost, or written on a Pod by somebody else."""
    world, node = World(), believing()
    for step, pod, card in steps:
        match step:
            case "reserve":
                world.reserve(pod, card)
            case "bind":
                world.bind(pod)
            case "end":
                world.end(pod)
            case "hear":
                world.hear()
            case "tear":
                world.told = None
            case "forge":
                other = world.bound.get((pod + 1) % 4, "")
                texts = (other, world.bound.get(pod, "").replace("card-0", "card-1"))
                world.forged[pod] = texts[card % 2]
            case _:
                _check_starts(world, node, pod)
    for pod in range(4):
        _check_starts(world, node, pod)


def _check_starts(world: World, node: Believing, pod: int) -> None:
    """Start a Pod that kubelet has, with the service up and down."""
    if pod not in world.bound:
        return
    mine = {f"card-{card}" for card, (holder, _) in world.holders.items() if holder == pod}
    for is_up, text in itertools.product(
        (True, False), (world.bound[pod], world.forged.get(pod), None)
    ):
        now = word(world.position, *(one for _, one in world.holders.values()))
        try:
            found = node.of_pod(
                f"p{pod}",
                now if is_up else world.told,
                is_heard=is_up,
                annotations=annotation(text),
            )
        except InputError:
            assert not is_up
            assert text != world.bound[pod]
            continue
        if found is not None:
            assert set(devices(found.proof.containers)) == mine
        else:
            assert not is_up
            assert text is None
