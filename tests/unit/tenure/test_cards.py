import pytest

from ledger.domain.devices import DeviceShare
from tenure.card_totals import cards_text

GIB = 1 << 30


def share(
    kind: str = "gpu", minor: int = 0, core: int = 0, gib: int = 0, ratio: int = 0
) -> DeviceShare:
    """Return a part of a device."""
    return DeviceShare(
        device_type=kind,
        minor=minor,
        device_id="",
        core_percent=core,
        memory_bytes=gib * GIB,
        memory_ratio_percent=ratio,
    )


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param(
            [share(minor=0, core=100, gib=80, ratio=100), share(minor=3, core=100)],
            "gpu:0,3",
            id="whole cards",
        ),
        pytest.param([share(core=30, gib=24, ratio=30)], "gpu:0(30%)", id="a part of the core"),
        pytest.param([share(gib=8, ratio=10)], "gpu:0(8 GiB)", id="memory alone"),
        pytest.param([share(gib=80, ratio=100)], "gpu:0", id="all of the memory"),
        pytest.param(
            [share(core=10), share(minor=2, core=20), share("rdma", core=100), share("fpga")],
            "gpu:0(10%),2(20%) rdma:0 fpga:0",
            id="several types",
        ),
    ],
)
def test_a_whole_card_is_told_from_a_part(parts: list[DeviceShare], text: str) -> None:
    """In one cell."""
    assert cards_text(parts) == text
