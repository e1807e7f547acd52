"""Ephemeral containers: debugging a Pod gives nobody its devices."""

from __future__ import annotations

from webhook.decide.facts import NamespaceFacts
from webhook.decide.review import AdmissionRequest
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating import forgery, visible
from webhook.decide.validating.findings import Findings
from webhook.decide.validating.pods import is_managed


def check_ephemeral(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> Findings:
    """
    Return everything that speaks against new ephemeral containers.

    Rule: design section 5.1.
    """
    pod = request.obj or {}
    errors = [*forgery.check_allocations(request, settings)]
    if is_managed(pod, settings, facts):
        errors += visible.check_ephemeral(pod, request.old)
    return Findings(errors=tuple(errors))
