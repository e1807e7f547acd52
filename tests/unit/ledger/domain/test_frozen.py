"""A value made through its twin is the value that its class makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError

import pytest

from ledger.domain.devices import DeviceShare
from ledger.domain.frozen import replacer_of, twin_of

SHARE = DeviceShare(device_type="gpu", minor=3, device_id="GPU-3", core_percent=50)


def made(share: DeviceShare) -> DeviceShare:
    """Return the same share, made through the twin."""
    names = sorted(field.name for field in dataclasses.fields(DeviceShare))
    twin = twin_of(DeviceShare)(*(getattr(share, name) for name in names))
    twin.__class__ = DeviceShare
    value: DeviceShare = twin
    return value


def test_it_is_equal_and_hashes_alike() -> None:
    """Nobody can tell how it was made."""
    assert type(made(SHARE)) is DeviceShare
    assert made(SHARE) == SHARE
    assert hash(made(SHARE)) == hash(SHARE)
    assert repr(made(SHARE)) == repr(SHARE)
    assert copy.deepcopy(made(SHARE)) == pickle.loads(pickle.dumps(made(SHARE))) == SHARE


def test_it_is_frozen() -> None:
    """The lock is the class's, and the class is the frozen one."""
    with pytest.raises(FrozenInstanceError):
        made(SHARE).minor = 4  # type: ignore[misc]


def test_one_field_is_replaced_in_a_copy() -> None:
    """As `dataclasses.replace` does it."""
    replaced = replacer_of(DeviceShare, "minor")(SHARE, 4)

    assert replaced == dataclasses.replace(SHARE, minor=4)
    assert SHARE.minor == 3
    assert type(replaced) is DeviceShare


def test_a_class_that_checks_itself_has_no_twin() -> None:
    """The twin would go past the check."""

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Checked:
        number: int

        def __post_init__(self) -> None:
            assert self.number > 0

    with pytest.raises(AssertionError):
        twin_of(Checked)
