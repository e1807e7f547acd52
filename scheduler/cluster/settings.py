"""The settings of deciding, as a ledger records them and as the cluster's objects amend them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from ledger.domain.kube.shared_templates import SharedTemplate
from ledger.domain.log.codec import decode_value, plain_value
from ledger.domain.proofs.canonical import canonical_json
from scheduler.decide.settings import SchedulingSettings


def settings_json(settings: SchedulingSettings, *, seed: int) -> str:
    """Return the settings and the seed of a run as canonical JSON, as the ledger records them."""
    return canonical_json({**plain_value(settings), "seed": seed})


def recorded_settings(text: str) -> SchedulingSettings:
    """
    Return the settings that an event of a ledger records, the defaults for an empty text.

    Raises:
        InputError: settings that this release does not know.
    """
    values = json.loads(text or "{}")
    values.pop("seed", None)
    settings: SchedulingSettings = decode_value(SchedulingSettings, values, "settings")
    return settings


def settings_hash(settings: SchedulingSettings, *, seed: int) -> str:
    """Return the hex SHA-256 of the canonical JSON; reservations quote it."""
    return hashlib.sha256(settings_json(settings, seed=seed).encode()).hexdigest()


def with_policy(settings: SchedulingSettings, policy: str) -> SchedulingSettings:
    """Return the settings with another node policy."""
    return replace(settings, node_policy=policy)


def simulated(settings: SchedulingSettings) -> SchedulingSettings:
    """Return the settings as a simulation decides by: every node grants CPUs of a Pod's own."""
    return replace(settings, cpu=replace(settings.cpu, bound_by="koordlet"))


def with_templates(
    settings: SchedulingSettings, templates: tuple[SharedTemplate, ...] | None
) -> SchedulingSettings:
    """Return the settings with the templates of the cluster's ConfigMap, where there is one."""
    if templates is None:
        return settings
    return replace(settings, devices=replace(settings.devices, shared_templates=templates))
