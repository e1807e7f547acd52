"""Which runtimes show CDI devices, by what they say of themselves."""

from __future__ import annotations

import asyncio

import pytest

from agent.decide.runtime_cdi import RuntimeSaid, why_no_cdi
from agent.plugin.runtime import RuntimeCheck
from agent.witness.asking import AwayError

ON, OFF = '{"enableCDI": true}', '{"enableCDI": false}'


@pytest.mark.parametrize(
    ("name", "version", "config", "why"),
    [
        ("containerd", "v2.4.2", "", ""),
        ("containerd", "2.4.2", '{"cdiSpecDirs": ["/etc/cdi"]}', ""),
        ("containerd", "v2.0.1", OFF, "CDI is turned off: containerd v2.0.1"),
        ("containerd", "1.7.22", ON, ""),
        ("containerd", "1.7.22", OFF, "write enable_cdi = true into its configuration"),
        ("containerd", "1.7.22", "{}", "CDI is turned off"),
        ("containerd", "1.6.20~ds1", "", "has no CDI: containerd 1.6.20~ds1; take containerd 1.7"),
        ("containerd", "v1.10.0", ON, ""),
        ("containerd", "2.4.2", "{", "configuration can't be read: containerd 2.4.2"),
        ("cri-o", "1.31.2", "", ""),
        ("cri-o", "1.22.5", "", "has no CDI: cri-o 1.22.5; take cri-o 1.23 or newer, or set"),
        ("docker", "26.1.0", "", "nobody knows whether this runtime has CDI: docker 26.1.0"),
        ("containerd", "main", "", "nobody knows whether this runtime has CDI: containerd main"),
    ],
)
def test_a_runtime_has_cdi_or_it_is_said_why_not(
    name: str, version: str, config: str, why: str
) -> None:
    """What nobody knows is not taken for granted."""
    said = why_no_cdi(RuntimeSaid(name=name, version=version, config=config))

    assert why in said
    assert bool(said) is bool(why)


class Runtime:
    """A runtime that may be away."""

    def __init__(self) -> None:
        self.said: RuntimeSaid | None = None

    async def itself(self) -> RuntimeSaid:
        """Return what it says."""
        if self.said is None:
            raise AwayError("no answer")
        return self.said


def test_what_a_runtime_said_counts_while_it_is_away() -> None:
    """Before that nobody is told of slots; one that was replaced by an older one is found."""
    runtime = Runtime()
    check = RuntimeCheck(runtime)
    assert "not asked yet" in check.why_not()
    asyncio.run(check.look())
    assert "can't be asked whether it has CDI: no answer" in check.why_not()
    runtime.said = RuntimeSaid(name="containerd", version="2.4.2")
    asyncio.run(check.look())
    assert check.why_not() == ""
    runtime.said = None
    asyncio.run(check.look())
    assert check.why_not() == ""
    runtime.said = RuntimeSaid(name="containerd", version="1.6.20")
    asyncio.run(check.look())
    assert "has no CDI" in check.why_not()
