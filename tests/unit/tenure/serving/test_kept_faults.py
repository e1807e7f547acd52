"""What counts against cards, beside what the driver says while a word is heard."""

from __future__ import annotations

from pathlib import Path

from agent.discover.fault_file import read_faults
from agent.discover.faults import CardFault, Faults
from tenure.serving.agent_reporting import KeptFaults

OLD, NEW = (CardFault(uuid="GPU-a", reason=reason) for reason in ("Xid48", "Xid79"))


def kept(path: Path, *faults: CardFault) -> KeptFaults:
    """Return what is kept with these faults, of which the file has none."""
    return KeptFaults(path=path / "faults.json", faults=Faults(kept=faults), saved=Faults())


def test_a_word_takes_away_what_was_there_when_it_was_said(tmp_path: Path) -> None:
    """What the driver says in the round that hears the word stays, and the same again too."""
    for late in (NEW, OLD):
        faults = kept(tmp_path, OLD)
        faults.note((late,))

        faults.recover("GPU-a")

        assert faults.faults == Faults(kept=(late,))
    faults = kept(tmp_path, OLD)
    assert faults.recover("GPU-a")
    assert not faults.recover("GPU-a")


def test_a_storm_of_events_is_bounded(tmp_path: Path) -> None:
    """However long a round takes."""
    faults = kept(tmp_path)
    for number in range(2_000):
        faults.note((CardFault(uuid="GPU-a", reason=f"Xid{number}"),))

    assert len(faults.late) == len(faults.faults.kept) == 16


def test_what_could_not_be_kept_is_said_until_it_is(tmp_path: Path) -> None:
    """And is kept then."""
    faults = kept(tmp_path / "later", OLD)
    assert [one.reason for one in faults.save()] == ["FaultsNotKept"]
    (tmp_path / "later").mkdir()

    assert faults.save() == ()
    assert read_faults(faults.path) == (Faults(kept=(OLD,)), ())
