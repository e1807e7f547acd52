"""Objects for a cluster as YAML on stdout."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.serving.settings_file import admission_settings
from webhook.manifests.hooks import HookOptions, webhook_configurations
from webhook.manifests.policies import policies
from webhook.manifests.policy import PolicyOptions
from webhook.manifests.rights import rights


def print_webhook(
    *, config: Path | None, name: str, url: str, namespace: str, service: str, cert_manager: str
) -> None:
    """
    Print the webhook configurations.

    Raises:
        InputError: the settings file is wrong, the URL is not one the API server would call, or
            `cert_manager` is no NAMESPACE/NAME.
    """
    if cert_manager and not re.fullmatch(r"[^/\s]+/[^/\s]+", cert_manager):
        raise InputError(f"expected NAMESPACE/NAME: value={cert_manager!r}", field="--cert-manager")
    if url and not url.startswith("https://"):
        fact = f"the API server calls webhooks by https alone: value={url!r}"
        raise with_next(InputError(fact, field="--url"), "give a URL such as https://10.0.0.1:8443")
    options = HookOptions(
        name=name,
        url=url.rstrip("/"),
        namespace=namespace,
        service=service,
        settings=admission_settings(config),
    )
    things = webhook_configurations(options)
    if cert_manager:
        for thing in things:
            thing["metadata"]["annotations"] = {"cert-manager.io/inject-ca-from": cert_manager}
    _print(things)


def print_policies(*, config: Path | None, name: str, namespace: str, warn: bool) -> None:
    """
    Print the policies with their bindings; to warn is to let through and say what would be refused.

    Raises:
        InputError: the settings file is wrong.
    """
    actions = ("Warn", "Audit") if warn else ("Deny",)
    settings = admission_settings(config)
    options = PolicyOptions(name=name, namespace=namespace, actions=actions, settings=settings)
    _print(policies(options))


def print_rights(*, name: str, namespace: str, secret: str) -> None:
    """Print service account, roles and bindings."""
    _print(rights(HookOptions(name=name, namespace=namespace), secret=secret))


def _print(things: list[dict[str, Any]]) -> None:
    yaml.safe_dump_all(things, sys.stdout, sort_keys=False, width=100, explicit_start=True)
