"""What a real API server answers is what `KubeObjects` takes it for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from certs.ports import ApiError, ConflictError
from tenure.kube.lease import SKEW_MAX
from tenure.kube.objects import connected
from tests.support.kube.control_plane import ADMIN, MALLORY, ControlPlane


def test_conflicts_refusals_and_absences_are_told_apart(
    plane: ControlPlane, namespace: Callable[..., str]
) -> None:
    """A rotation leans on each of them."""
    where = namespace(managed=False)
    secrets = f"/api/v1/namespaces/{where}/secrets"
    body = {"metadata": {"name": "a"}}
    failing = [{"op": "test", "path": "/metadata/resourceVersion", "value": "0"}]
    senseless = [{"op": "add", "path": "/metadata/labels", "value": {"a b": "c"}}]

    async def run() -> None:
        async with connected(str(plane.kubeconfig(ADMIN))) as objects:
            assert await objects.read(f"{secrets}/a") is None
            made = await objects.create(secrets, body)
            assert abs(objects.skew()) < SKEW_MAX
            changed = await objects.replace(f"{secrets}/a", {**made, "stringData": {"k": "v"}})
            for conflict in (
                objects.create(secrets, body),
                objects.replace(f"{secrets}/a", made),
                objects.patch(f"{secrets}/a", failing),
                objects.replace(f"{secrets}/absent", {**changed, "metadata": {"name": "absent"}}),
            ):
                with pytest.raises(ConflictError):
                    await conflict
            for refusal in (
                objects.create("/api/v1/namespaces/absent/secrets", body),
                objects.patch(f"{secrets}/a", senseless),
            ):
                with pytest.raises(ApiError):
                    await refusal
            await objects.remove(f"{secrets}/a")
            await objects.remove(f"{secrets}/a")

    asyncio.run(run())


def test_whoever_is_not_known_is_an_error_and_no_absence(plane: ControlPlane) -> None:
    """Else a token that has ended would look like an empty cluster."""
    kubeconfig = plane.kubeconfig(MALLORY)
    kubeconfig.write_text(kubeconfig.read_text().replace(plane.tokens[MALLORY], "ended"))

    async def run() -> None:
        async with connected(str(kubeconfig), timeout_seconds=5.0) as objects:
            with pytest.raises(ApiError, match="status=401"):
                await objects.read("/api/v1/namespaces/default")
            assert objects.skew() < timedelta(seconds=5)

    asyncio.run(run())
