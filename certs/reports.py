"""
What every replica serves, as one Lease each, so that an old authority is dropped in time.

    kind: Lease
    metadata.labels:      tenure.sh/serving: SECRET
    metadata.annotations: tenure.sh/leaf: FINGERPRINT
    spec:                 holderIdentity: REPLICA, renewTime: NOW

Which report comes before and which after its leaf is served is in `certs.following`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from certs.plan import Replica
from certs.ports import ConflictError, Object, Objects, api_path

LEAF: Final = "tenure.sh/leaf"
SERVING: Final = "tenure.sh/serving"


class Reports:
    """Reads and writes the reports of one Secret's replicas."""

    def __init__(self, objects: Objects, namespace: str, secret: str) -> None:
        self._objects = objects
        self._leases = "coordination.k8s.io/v1", "namespaces", namespace, "leases"
        self._namespace = namespace
        self._secret = secret

    async def all(self) -> tuple[Replica, ...]:
        """Return what every replica said last, by name. Raises ApiError."""
        query = f"{api_path(*self._leases)}?labelSelector=tenure.sh%2Fserving%3D{self._secret}"
        found = await self._objects.read(query)
        replicas = [_replica(item) for item in (found or {}).get("items", ())]
        return tuple(sorted(replicas, key=lambda replica: replica.name))

    async def say(self, replica: str, leaf: str, now: datetime) -> None:
        """Record what a replica serves from now on. Raises ApiError."""
        path = api_path(*self._leases, self._name(replica))
        for _ in range(3):
            known = await self._objects.read(path)
            try:
                if known is None:
                    made = self._lease(replica, leaf, now)
                    await self._objects.create(api_path(*self._leases), made)
                else:
                    lease = self._lease(replica, leaf, now)
                    version = known["metadata"]["resourceVersion"]
                    lease["metadata"]["resourceVersion"] = version
                    await self._objects.replace(path, lease)
            except ConflictError:
                continue
            return
        raise ConflictError(f"the report of a replica keeps changing: lease={path}")

    async def forget(self, before: datetime) -> None:
        """Remove older reports: of killed processes. A live one reports again. Raises ApiError."""
        for replica in await self.all():
            if replica.at < before:
                await self.leave(replica.name)

    async def leave(self, replica: str) -> None:
        """Remove a replica's report: it serves no more. Raises ApiError."""
        await self._objects.remove(api_path(*self._leases, self._name(replica)))

    def _name(self, replica: str) -> str:
        return f"{self._secret}-{replica}"

    def _lease(self, replica: str, leaf: str, now: datetime) -> dict[str, Any]:
        renewed = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "namespace": self._namespace,
                "name": self._name(replica),
                "labels": {SERVING: self._secret},
                "annotations": {LEAF: leaf},
            },
            "spec": {"holderIdentity": replica, "renewTime": renewed},
        }


def _replica(lease: Object) -> Replica:
    metadata, spec = lease["metadata"], lease.get("spec") or {}
    said = spec.get("renewTime") or metadata["creationTimestamp"]
    return Replica(
        name=spec.get("holderIdentity") or metadata["name"],
        leaf=(metadata.get("annotations") or {}).get(LEAF, ""),
        at=datetime.fromisoformat(said),
    )
