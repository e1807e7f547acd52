"""Carries out the plan: one step at a time, each a write that only succeeds on what was read."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from certs import plan
from certs.material import CertificateError, KeyPair, bundle_facts, issue_authority, issue_leaf
from certs.ports import ConflictError, Object, Objects, api_path
from certs.record import SecretRecord, new_secret, read_record, write_record
from certs.reports import Reports

AUTHORITY_NAME: Final = "tenure webhook authority"
_STEPS_MAX: Final = 20


_REGISTRATION: Final = "admissionregistration.k8s.io/v1"
_KINDS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


def configuration_paths(name: str) -> tuple[str, ...]:
    """Return the API paths of the two webhook configurations of this name."""
    return tuple(api_path(_REGISTRATION, kind, name) for kind in _KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationObjects:
    """Where certificates are published; `configurations`: API paths of those with our caBundle."""

    namespace: str
    secret: str
    configurations: tuple[str, ...]

    @property
    def secrets_path(self) -> str:
        """Path of the collection that the Secret is in."""
        return api_path("v1", "namespaces", self.namespace, "secrets")

    @property
    def secret_path(self) -> str:
        """Path of the Secret."""
        return api_path("v1", "namespaces", self.namespace, "secrets", self.secret)


@dataclass(slots=True, eq=False)
class Rotator:
    """Looks and does the next step; only whoever holds the Lease should run one."""

    objects: Objects
    reports: Reports
    place: RotationObjects
    settings: plan.Settings
    clock: Callable[[], datetime]

    async def advance(self) -> plan.Wait:
        """
        Do what is due, and return until when nothing is.

        Raises:
            CertificateError: the Secret can't be read; it is left as it is.
            ApiError: the API fails; what was done is recorded, the rest is done next time.
        """
        for _ in range(_STEPS_MAX):
            try:
                step = await self.step()
            except ConflictError:
                continue  # somebody wrote in between: look again
            if isinstance(step, plan.Wait):
                return step
        return plan.Wait(until=self.clock() + self.settings.pause, reason="others keep writing")

    async def step(self) -> plan.Step:
        """Do the next step and return it."""
        secret = await self.objects.read(self.place.secret_path)
        record = None if secret is None else read_record(secret)
        targets = await self._targets()
        step = plan.next_step(
            None if record is None else record.facts(),
            [_target(name, one) for name, one in targets.items()],
            await self._replicas(record),
            self.settings,
            now=self.clock(),
        )
        match step:
            case plan.Wait():
                pass
            case plan.Create():
                await self._write(self._created(), secret)
            case plan.Publish():
                assert record is not None, "there is something to publish"
                for name in step.targets:
                    await self._publish(name, targets[name], record.bundle)
                await self._write(replace(record, published_at=self.clock()), secret)
            case _:
                assert record is not None, "there is something to rotate"
                await self._write(self._rotated(step, record), secret)
        if isinstance(step, plan.Finish):
            await self.reports.forget(self.clock() - self.settings.forget)
        return step

    def _rotated(
        self, step: plan.Begin | plan.Renew | plan.Switch | plan.Finish, record: SecretRecord
    ) -> SecretRecord:
        now = self.clock()
        match step:
            case plan.Begin():
                lifetime = self.settings.authority_lifetime
                authority = issue_authority(AUTHORITY_NAME, now=now, lifetime=lifetime)
                return replace(
                    record,
                    phase=plan.Phase.PUBLISHING,
                    since=now,
                    published_at=None,
                    other=authority,
                    requested=False,
                )
            case plan.Renew():
                return replace(record, since=now, leaf=self._leaf(record.authority))
            case plan.Switch():
                assert record.other is not None, "a new authority was published"
                return replace(
                    record,
                    phase=plan.Phase.SERVING,
                    since=now,
                    authority=record.other,
                    other=record.authority,
                    leaf=self._leaf(record.other),
                )
            case plan.Finish():
                return replace(
                    record, phase=plan.Phase.STABLE, since=now, published_at=None, other=None
                )

    def _created(self) -> SecretRecord:
        now = self.clock()
        lifetime = self.settings.authority_lifetime
        authority = issue_authority(AUTHORITY_NAME, now=now, lifetime=lifetime)
        return SecretRecord(
            phase=plan.Phase.STABLE,
            since=now,
            published_at=None,
            authority=authority,
            leaf=self._leaf(authority),
        )

    def _leaf(self, authority: KeyPair) -> KeyPair:
        return issue_leaf(
            authority,
            self.settings.names,
            now=self.clock(),
            lifetime=self.settings.leaf_lifetime,
        )

    async def _targets(self) -> dict[str, Object]:
        found = {}
        for path in self.place.configurations:
            configuration = await self.objects.read(path)
            if configuration is not None and configuration.get("webhooks"):
                found[path] = configuration
        return found

    async def _replicas(self, record: SecretRecord | None) -> tuple[plan.Replica, ...]:
        if record is None or record.phase is not plan.Phase.SERVING:
            return ()
        return await self.reports.all()

    async def _publish(self, path: str, configuration: Object, bundle: bytes) -> None:
        version = configuration["metadata"]["resourceVersion"]
        operations: list[Mapping[str, Any]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        ]
        encoded = base64.b64encode(bundle).decode()
        operations += [
            {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": encoded}
            for number in range(len(configuration["webhooks"]))
        ]
        await self.objects.patch(path, operations)

    async def _write(self, record: SecretRecord, secret: Object | None) -> None:
        place = self.place
        if secret is None:
            body = write_record(record, new_secret(place.namespace, place.secret))
            await self.objects.create(place.secrets_path, body)
        else:
            await self.objects.replace(place.secret_path, write_record(record, secret))


def _target(name: str, configuration: Object) -> plan.Target:
    """Return what a configuration trusts; webhooks that differ trust what all of them do."""
    trusted: list[frozenset[str]] = []
    for webhook in configuration["webhooks"]:
        bundle = base64.b64decode(webhook["clientConfig"].get("caBundle") or "")
        try:
            trusted.append(frozenset(one.fingerprint for one in bundle_facts(bundle)))
        except CertificateError:
            trusted.append(frozenset())  # whatever it is, ours replaces it
    same = trusted[0] if len(set(trusted)) == 1 else frozenset()
    return plan.Target(name=name, trusted=same)
