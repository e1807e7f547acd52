"""The dialects that need policies of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from webhook.decide.settings import AdmissionSettings
from webhook.manifests.dialects import mgpu
from webhook.manifests.policy import Policy

Policies: TypeAlias = Callable[[AdmissionSettings, Mapping[str, str]], list[Policy]]
"""
Makes the policies of one dialect, given the settings and the condition under which a Pod is no
static one that kubelet shows.
"""

POLICIES: Final[tuple[Policies, ...]] = (mgpu.policies,)
