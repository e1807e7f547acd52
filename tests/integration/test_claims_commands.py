"""What people are told of claims that a ledger knows: by every question, and by the proofs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.domain.dialects.dra.accounts import accounts_of
from ledger.domain.log.events import ClaimObserved, ClaimReserved, LedgerEvent, NodeInventoried
from ledger.domain.topology import Cpu
from tests.support.cli import CommandLine
from tests.support.dra import card, consumes, counters, part, pools, resource_slice
from tests.support.ledgers import EIGHT, MINUTE, write_ledger
from tests.support.stores import claim, claim_ended, reserved, seen_claim, share

pytestmark = pytest.mark.integration

SLICE = resource_slice(
    [
        card("gpu-0", "GPU-n-1-0"),
        card("gpu-1", "GPU-n-1-1", **consumes("s", slice_0=1)),
        part("gpu-1-mig", "GPU-n-1-1", **consumes("s", slice_0=1)),
    ],
    sets={"s": counters(slice_0=1, slice_1=1)},
)
ACCOUNTS = accounts_of("n-1", pools(SLICE)).records
STREAM = "node/uid-n-1"


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """A command line over a ledger with a claim of each kind, a Pod, and a claim that is over."""
    events: list[LedgerEvent] = [
        NodeInventoried(
            node_uid="uid-n-1",
            node_name="n-1",
            cpu_milli=8000,
            devices=ACCOUNTS,
            cpus=tuple(Cpu(id=n, core=n // 2, socket=0, numa=0) for n in range(8)),
        ),
        claim("over", share(0, 100, exclusive=True)),
        claim_ended("over"),
        claim("train", share(0, 40)),
        reserved("p", share(0, 20)),
        seen_claim("old", share(1, 50)),
        seen_claim("lost", unknown_types=("gpu",)),
        claim("pinned", cpus=(2, 3)),
    ]
    at = [(EIGHT + number * 10 * MINUTE, STREAM, event) for number, event in enumerate(events)]
    assert [type(each) for _, _, each in at].count(ClaimReserved) == 3
    assert [type(each) for _, _, each in at].count(ClaimObserved) == 2
    return CommandLine(write_ledger(tmp_path / "ledger.db", at), capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["map", "-o", "json"], ["train", "old", "p"], id="map"),
        pytest.param(["who", "n-1/0"], ["team-c/train", "team-a/p"], id="who has a card"),
        pytest.param(["who", "n-1"], ["team-c/train", "team-c/old", "team-c/lost"], id="who, node"),
        pytest.param(["who", "n-1/cpu/3"], ["team-c/pinned"], id="who has a CPU"),
        pytest.param(["map", "--cpus"], ["claim team-c/pinned: 2 CPUs, 2-3"], id="map of CPUs"),
        pytest.param(["usage", "--by", "namespace"], ["team-c", "team-a"], id="usage"),
        pytest.param(["status"], ["cards held                 2"], id="status"),
        pytest.param(["top"], [], id="top"),
        pytest.param(["pods"], ["train", "old", "lost"], id="pods"),
        pytest.param(["ledger", "state"], ["train", "old", "lost"], id="state"),
        pytest.param(["verify"], ["ok"], id="verify"),
        pytest.param(["why", "team-c/train"], ["CLAIM", "team-c/train"], id="why"),
        pytest.param(["ledger", "rebuild"], [], id="rebuild"),
    ],
)
def test_every_question_knows_claims(line: CommandLine, words: list[str], said: list[str]) -> None:
    """Nobody stumbles over a holder that is no Pod, and no counter is taken for a device."""
    done = line.ask(*words)

    assert done.code == 0, done
    for word in said:
        assert word in done.out, done.out
    assert "counter" not in done.out


def test_the_page_is_made(line: CommandLine, tmp_path: Path) -> None:
    """With the claims on its cards."""
    page = tmp_path / "report.html"
    assert line.ask("report", "--output", str(page)).code == 0
    assert "train" in page.read_text("utf-8")
