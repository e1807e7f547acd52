"""The live scheduler's process before it has its ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.cut_wire import Cut, wire_to
from tests.support.kube.fake_api import fake_api
from tests.support.kube.schedulers import issue
from tests.support.process import COMMAND, SECONDS_MAX, environment
from tests.support.stores import PostgresStore

pytestmark = pytest.mark.integration


def test_it_ends_when_it_is_told_to_while_postgres_is_silent(
    postgres_store: PostgresStore, tmp_path: Path
) -> None:
    """It lets in and never answers: the process does not wait for its own thread that asks."""
    identities = issue(tmp_path / "identities")

    async def main() -> int | None:
        with wire_to(postgres_store.url) as wire:
            wire.cut = Cut.SILENCE_ONCE_CONNECTED
            async with fake_api() as api:
                api.objects["/api/v1/namespaces/kube-system"] = {"metadata": {"uid": "c-1"}}
                process = await asyncio.create_subprocess_exec(
                    *COMMAND,
                    *("serve", "scheduler", "--ledger", wire.url),
                    *("--extender", "127.0.0.1:0", "--probes", "127.0.0.1:0"),
                    *("--kubeconfig", str(api.kubeconfig(tmp_path))),
                    *("--certificates", str(identities.server), "--name", "127.0.0.1"),
                    *("--proof-key", str(identities.keys / "proof.key")),
                    *("--ledger-key", str(identities.keys / "ledger.key")),
                    cwd=tmp_path,
                    env=environment(),
                )
                try:
                    async with asyncio.timeout(SECONDS_MAX):
                        while not wire.silenced:
                            assert process.returncode is None, "it ended by itself"
                            await asyncio.sleep(0.05)
                        process.terminate()
                        return await process.wait()
                finally:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()

    assert asyncio.run(main()) == 0
