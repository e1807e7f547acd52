"""What we find on this machine beside what the driver's own tool says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.discover.host_files import HostFiles
from agent.discover.nvml import NvmlProbe
from tests.support.nvidia_smi import differences, printed

pytestmark = pytest.mark.gpu


def test_the_cards_of_this_machine_are_those_that_nvidia_smi_prints() -> None:
    """UUID, minor, model, memory, PCI address, NUMA node, MIG mode, and what connects each two."""
    assert shutil.which("nvidia-smi"), "no nvidia-smi: run this on a machine with NVIDIA's driver"
    probe = NvmlProbe(HostFiles(root=Path("/")))
    found = probe.look()
    probe.close()
    assert found.cards
    assert not found.problems
    assert differences(printed(), found) == []
