"""Whether the container runtime of this node shows CDI devices, asked again and again."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from agent.decide.runtime_cdi import RuntimeSaid, why_no_cdi
from agent.witness.asking import AwayError

SOON_SECONDS: Final = 1.0
ROUND_SECONDS: Final = 60.0
"""A runtime that was replaced by another was ended for that, and containers were not."""


class AsksRuntime(Protocol):
    """The runtime, as far as it tells of itself."""

    async def itself(self) -> RuntimeSaid:
        """Return what it says. Raises AwayError."""


class RuntimeCheck:
    """What was found out of the runtime; nothing yet means that nobody may be shown cards."""

    def __init__(self, runtime: AsksRuntime) -> None:
        self._runtime = runtime
        self._why = "the runtime was not asked yet whether it has CDI"
        self._knows = False

    def why_not(self) -> str:
        """Return why a container would be started without its cards; nothing when it would not."""
        return self._why

    async def look(self) -> None:
        """Ask it once; what it said before counts where it does not answer."""
        try:
            self._why = why_no_cdi(await self._runtime.itself())
            self._knows = True
        except AwayError as error:
            if not self._knows:
                self._why = f"the runtime can't be asked whether it has CDI: {error}"

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(ROUND_SECONDS if self._knows else SOON_SECONDS)
