"""Faults outlive the agent, and a broken file is put aside and named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.discover.fault_file import read_faults, write_faults
from agent.discover.faults import CardFault, Faults
from ledger.domain.log.codec import encode_value

KEPT = Faults(kept=(CardFault(uuid="GPU-a", reason="Xid79", message="fell off"),))


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    """Over and over; none where nobody wrote any."""
    path = tmp_path / "faults.json"
    assert read_faults(path) == (Faults(), ())
    for faults in (KEPT, Faults(), KEPT):
        write_faults(path, faults)
        assert read_faults(path) == (faults, ())
    assert [one.name for one in tmp_path.iterdir()] == ["faults.json"]


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'{"kept":[{"uuid":1}]}', b"\xff", b"x" * (5 << 20), b'{"kept":[],"a":1}'],
    ids=["empty", "broken", "a list", "no text", "no characters", "endless", "another field"],
)
def test_a_file_that_is_none_of_ours_is_put_aside_and_named(tmp_path: Path, raw: bytes) -> None:
    """Never trusted and never fatal; the next start has none to read."""
    path = tmp_path / "faults.json"
    path.write_bytes(raw)
    faults, (problem,) = read_faults(path)

    assert (faults, problem.reason) == (Faults(), "FaultsForgotten")
    assert (tmp_path / "faults.json.unread").read_bytes() == raw
    assert read_faults(path) == (Faults(), ())


def test_no_link_is_read_or_written_through(tmp_path: Path) -> None:
    """What lies elsewhere is nobody's faults, and stays as it is."""
    (tmp_path / "elsewhere").write_text(encode_value(KEPT))
    path = tmp_path / "faults.json"
    path.symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        read_faults(path)
    path.unlink()
    (tmp_path / "faults.json.new").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        write_faults(path, Faults())
    assert (tmp_path / "elsewhere").read_text() == encode_value(KEPT)


@given(st.data())
def test_a_file_that_was_changed_anywhere_is_refused_or_says_what_it_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A flipped byte gives a refusal or another fault, and nothing else."""
    path = tmp_path_factory.mktemp("faults") / "faults.json"
    raw = bytearray(encode_value(KEPT).encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    faults, problems = read_faults(path)

    assert bool(problems) == (faults == Faults())
    if not problems:
        assert encode_value(faults).encode() == bytes(raw)
