from __future__ import annotations

import pytest

from agent.decide.cgroups import CgroupFile, Write

CPUS, PARTITION, MAX, QUOTA = (
    CgroupFile.CPUS,
    CgroupFile.PARTITION,
    CgroupFile.MAX,
    CgroupFile.QUOTA,
)


@pytest.mark.parametrize(
    ("file", "value", "text", "stands"),
    [
        pytest.param(CPUS, "0-1,8", "8,0-1\n", True, id="the same CPUs in other words"),
        pytest.param(CPUS, "0-1", "0\n", False, id="other CPUs"),
        pytest.param(CPUS, "0-1", "\n", False, id="no CPUs"),
        pytest.param(CPUS, "0-1", "torn-", False, id="no list of CPUs"),
        pytest.param(PARTITION, "root", "root\n", True, id="a partition"),
        pytest.param(PARTITION, "root", "root invalid (x)\n", False, id="the kernel refuses it"),
        pytest.param(MAX, "max", "max 100000\n", True, id="no quota of any period"),
        pytest.param(MAX, "max", "20000 100000\n", False, id="a quota again"),
        pytest.param(MAX, "max", "", False, id="an empty file"),
        pytest.param(QUOTA, "-1", "-1\n", True, id="no quota on v1"),
    ],
)
def test_a_write_stands_if_the_file_says_the_same(
    file: CgroupFile, value: str, text: str, *, stands: bool
) -> None:
    """Lists are compared as sets, the rest by the word that was written."""
    assert Write(path="burstable", file=file, value=value).is_read_back(text) is stands
