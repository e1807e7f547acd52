"""A settings file of both services (`kind: TenureConfiguration`), with one vocabulary."""

from __future__ import annotations

from typing import Literal

from tenure.admission_config import AdmissionConfiguration
from tenure.config import SchedulerConfiguration


class TenureConfiguration(SchedulerConfiguration, AdmissionConfiguration):
    """Each service reads its part of it, and both the same of what requests mean."""

    kind: Literal["TenureConfiguration"]  # type: ignore[assignment]  # the kind of neither alone
