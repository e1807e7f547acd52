"""Whether the way from the API server to the gate is whole, by what the API says and answers."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.gate.configuration import OPEN, WEBHOOK

OK: Final = "ok"
WRONG: Final = "wrong"
WARNING: Final = "warning"
UNKNOWN: Final = "not known"

_DRIVERS: Final = re.compile(r"r\.driver in \[([^\]]*)\]")
_ANSWERED: Final = re.compile(r": ([A-Z][A-Za-z]+: .*)", re.DOTALL)
_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
NOBODY: Final = "tenure-doctor"
"""What the claim asks for that is written on trial, and where it is given: no such thing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    What one check found.

    Attributes:
        mend: what to do about it, empty where nothing is wrong.
    """

    check: str
    state: str
    says: str
    mend: str = ""


def of_configurations(
    configurations: Iterable[Mapping[str, Any]], drivers: Collection[str]
) -> tuple[list[Finding], tuple[str, ...]]:
    """
    Return what is found of the gate's configuration, and the drivers that it lists.

    Args:
        drivers: those that the service is started with; empty = not told.
    """
    apply = "apply what `tenure manifests dra` prints"
    for one in configurations:
        name = one.get("metadata", {}).get("name", "")
        for hook in one.get("webhooks") or ():
            if hook.get("name") == WEBHOOK:
                listed = _listed(hook)
                return [*_of_hook(name, hook, listed, drivers)], listed
    says = f"no MutatingWebhookConfiguration has the webhook {WEBHOOK}"
    return [Finding(check="configuration", state=WRONG, says=says, mend=apply)], ()


def _of_hook(
    name: str, hook: Mapping[str, Any], listed: tuple[str, ...], drivers: Collection[str]
) -> Iterator[Finding]:
    again = "apply what `tenure manifests dra` prints again"
    says, state = f"{name} lists {', '.join(listed) or 'no driver'}", OK
    if not listed or (drivers and set(drivers) != set(listed)):
        state = WRONG
        says += f", the service guards {', '.join(sorted(drivers))}" if drivers else ""
    elif hook.get("failurePolicy") != "Fail":
        says, state = f"{name} lets writes through that are not answered", WRONG
    yield Finding(check="configuration", state=state, says=says, mend=again * (state == WRONG))
    bundle = hook.get("clientConfig", {}).get("caBundle") or ""
    try:
        is_there = _BEGIN in base64.b64decode(bundle, validate=True)
    except (binascii.Error, ValueError):
        is_there = False
    yield Finding(
        check="authority",
        state=OK if is_there else WRONG,
        says=f"{name} {'has' if is_there else 'lacks'} an authority to know the gate by",
        mend="" if is_there else f"{again}, with --ca",
    )


def _listed(hook: Mapping[str, Any]) -> tuple[str, ...]:
    text = " ".join(str(one.get("expression")) for one in hook.get("matchConditions") or ())
    found = _DRIVERS.search(text)
    return tuple(re.findall(r"'([^']*)'", found[1])) if found else ()


def trial_claim(name: str) -> dict[str, Any]:
    """Return a claim that nothing satisfies."""
    exactly = {"deviceClassName": NOBODY}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "trial", "exactly": exactly}]}},
    }


def trial_status(driver: str) -> dict[str, Any]:
    """Return a status that gives the claim a device which nobody has."""
    device = {"request": "trial", "driver": driver, "pool": NOBODY, "device": NOBODY}
    named = {"key": "metadata.name", "operator": "In", "values": [NOBODY]}
    selector = {"nodeSelectorTerms": [{"matchFields": [named]}]}
    return {"allocation": {"devices": {"results": [device]}, "nodeSelector": selector}}


def of_trial(refusal: str) -> Finding:
    """
    Return what is found by a dry run of that status.

    Args:
        refusal: the API server's words; empty = it would have been stored.
    """

    def found(state: str, says: str, mend: str = "") -> Finding:
        return Finding(check="dry run", state=state, says=says, mend=mend)

    if not refusal:
        says = "the API server would have stored it without asking: the configuration is not in"
        mend = "wait some seconds; else look whether this namespace is exempt from webhooks"
        return found(WRONG, f"{says} force here", mend)
    if "failed calling webhook" in refusal:
        mend = "mend the way: the service leads, its port is open to the control plane, its"
        return found(WRONG, refusal, f"{mend} certificate is of the configuration's authority")
    if WEBHOOK not in refusal or "denied the request" not in refusal:
        return found(UNKNOWN, refusal, "ask as somebody who may write claims and their status")
    answer = _ANSWERED.search(refusal)
    return found(OK, f"the gate answered: {answer[1] if answer else refusal}")


def of_deployments(deployments: Iterable[Mapping[str, Any]]) -> Finding:
    """Return what is found of who may ask the gate."""
    check = "callers"
    for one in deployments:
        for container in one["spec"]["template"]["spec"]["containers"]:
            words = [*(container.get("command") or ()), *(container.get("args") or ())]
            names = {each["name"] for each in container.get("env") or ()}
            if "--gate" not in words and "TENURE_SCHEDULER_GATE" not in names:
                continue
            name = one["metadata"]["name"]
            if "--gate-client-ca" in words or "TENURE_SCHEDULER_GATE_CLIENT_CA" in names:
                return Finding(check=check, state=OK, says=f"{name} asks callers who they are")
            if "--gate-open" in words or "TENURE_SCHEDULER_GATE_OPEN" in names:
                mend = "give --gate-client-ca instead of --gate-open"
                return Finding(check=check, state=WARNING, says=f"{name}: {OPEN}", mend=mend)
            says = f"{name} does not start: it says not who may ask the gate"
            return Finding(check=check, state=WRONG, says=says, mend="give --gate-client-ca")
    says = "no Deployment here serves the gate: whether callers show a certificate is not known"
    return Finding(check=check, state=UNKNOWN, says=says)


def of_pods(pods: Iterable[Mapping[str, Any]]) -> Finding:
    """Return whether one of Tenure's own Pods waits for what it has to answer itself."""
    names = sorted(one["metadata"]["name"] for one in pods if one["spec"].get("resourceClaims"))
    if not names:
        return Finding(check="own Pods", state=OK, says="none of Tenure's own Pods uses a claim")
    says = f"Pods of Tenure's namespace use claims: {', '.join(names)}"
    mend = "run them without: who answers the gate must not wait for it"
    return Finding(check="own Pods", state=WRONG, says=says, mend=mend)
