"""The fast path writes and reads what the domain's own encoder does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.bounds import bounds_of
from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.devices import ContainerShare, DeviceShare
from ledger.domain.log.events import (
    EVENT_TYPES,
    LedgerEvent,
    PodAssigned,
    PodBound,
    PodReleased,
    PodReserved,
    PodVoided,
    encode_event,
)
from ledger.domain.log.recorded import Envelope
from ledger.domain.proofs.hashing import body_hash, leaf_hash
from ledger.domain.request.requests import PodSnapshot
from ledger.store.writing.bodies import body_of, leaf_of

WORDS = st.text(max_size=12)
NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1)
MAPS = st.dictionaries(st.text(st.characters(max_codepoint=127), max_size=9), WORDS, max_size=3)


def of(kind: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return values of a dataclass, every field by the type it is declared with."""
    by_type = {"str": WORDS, "bool": st.booleans(), "Mapping[str, str]": MAPS}
    by_type |= {"tuple[str, ...]": st.lists(WORDS, max_size=3).map(tuple)}
    missing = {
        each.name: by_type.get(str(each.type), st.integers(*bounds_of(each.name)))
        for each in dataclasses.fields(kind)
        if each.name not in fields
    }
    return st.builds(kind, **missing, **fields)


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return tuples of a few."""
    return st.lists(strategy, max_size=2).map(tuple)


CPUSETS = st.one_of(st.just(CpuSet()), st.sets(st.integers(0, 200), max_size=9).map(cpuset_of))
SHARES = of(DeviceShare, containers=some(of(ContainerShare)))
RESERVED = of(
    PodReserved,
    shares=some(SHARES),
    cpuset=CPUSETS,
    snapshot=of(PodSnapshot),
)
ENDED = st.one_of(of(PodReleased), of(PodVoided), of(PodBound), of(PodAssigned))


@given(event=st.one_of(RESERVED, ENDED))
def test_the_fast_body_is_the_canonical_body(event: LedgerEvent) -> None:
    """Byte for byte, whatever the words; a field that the fast path forgot would differ here."""
    assert body_of(event) == encode_event(event)


@given(
    envelope=of(
        Envelope,
        causation_position=st.one_of(st.none(), NUMBERS),
        args_hash=st.binary(min_size=32, max_size=32).map(bytes.hex),
    )
)
def test_the_fast_leaf_is_the_leaf(envelope: Envelope) -> None:
    """The hash of an envelope does not depend on who writes its text."""
    words = {each.name: getattr(envelope, each.name) for each in dataclasses.fields(Envelope)}
    body = words.pop("body")

    assert leaf_of(body_sha256=body_hash(body).hex(), **words) == leaf_hash(envelope)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(True, id="a truth value"),
        pytest.param(0.5, id="a fraction"),
        pytest.param("1", id="text"),
        pytest.param(2**53, id="beyond what JSON numbers carry"),
    ],
)
def test_only_an_integer_is_written_as_one(number: Any) -> None:  # noqa: ANN401 - any of them
    """What the domain's encoder asserts, the fast path asserts too."""
    event = PodReleased(pod_uid="p", attempt=number, node_uid="n", reason="completed")
    for write in (body_of, encode_event):
        with pytest.raises(AssertionError):
            write(event)


def test_every_event_type_has_a_body() -> None:
    """Types without a fast path are encoded by the domain."""
    assert set(EVENT_TYPES) >= {"pod.reserved.v1", "epoch.started.v1", "node.inventoried.v1"}
