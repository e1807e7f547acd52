"""`tenure doctor`: whether the API server reaches the gate before claims, proved by a dry run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ledger.domain.errors import InputError
from tenure.exits import AnswerIsNo, with_next
from tenure.options import Output
from tenure.output import Column, OutputFormat, write_answer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from scheduler.gate.examine import Finding
    from tenure.kube.objects import KubeObjects

_COLUMNS: Final = (
    Column(key="check", title="CHECK"),
    Column(key="state", title="STATE"),
    Column(key="says", title="SAYS"),
    Column(key="mend", title="MEND"),
)
_HOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


def doctor(
    *,
    driver: Annotated[
        list[str] | None,
        typer.Option(help="DRA driver that the service guards; may be given again."),
    ] = None,
    namespace: Annotated[
        str, typer.Option(help="Namespace of Tenure's own, where a claim is made for the trial.")
    ] = "tenure-system",
    kubeconfig: Annotated[
        str | None, typer.Option(help="Credentials; the default is kubectl's.", show_default=False)
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Whether the API server asks the gate before a claim is allocated, and is answered.

    A claim is made that nothing satisfies, its allocation is written as a dry run, and the
    claim is deleted: nothing is reserved. Exit 1 where something is wrong.

    Example: tenure doctor --driver gpu.nvidia.com
    """
    import asyncio

    from certs.ports import ApiError
    from scheduler.gate.examine import WRONG
    from tenure.extras import needs

    with needs("service"):
        from tenure.kube.objects import connected

    try:
        found = asyncio.run(_examined(connected(kubeconfig), namespace, tuple(driver or ())))
    except ApiError as error:
        step = "give --kubeconfig a file by which you may list webhooks and write claims"
        raise with_next(InputError(str(error)), step) from error
    rows = [asdict(one) for one in found]
    write_answer(output, rows, _COLUMNS, document=rows)
    if any(one.state == WRONG for one in found):
        raise AnswerIsNo


async def _examined(
    cluster: AbstractAsyncContextManager[KubeObjects], namespace: str, drivers: Sequence[str]
) -> list[Finding]:
    from certs.ports import api_path
    from scheduler.gate import examine

    async with cluster as objects:
        hooks = await objects.read(_HOOKS)
        found, listed = examine.of_configurations((hooks or {}).get("items", ()), drivers)
        for driver in listed[:1]:
            found.append(examine.of_trial(await _refusal(objects, namespace, driver)))
        for path, judge in (
            (("apps/v1", "namespaces", namespace, "deployments"), examine.of_deployments),
            (("v1", "namespaces", namespace, "pods"), examine.of_pods),
        ):
            there = await objects.read(api_path(*path))
            found.append(judge((there or {}).get("items", ())))
    return found


async def _refusal(objects: KubeObjects, namespace: str, driver: str) -> str:
    """Return why the API server would not store an allocation; empty where it would."""
    from secrets import token_hex

    from certs.ports import ApiError, ConflictError, api_path
    from scheduler.gate.examine import NOBODY, trial_claim, trial_status

    claims = "resource.k8s.io/v1", "namespaces", namespace, "resourceclaims"
    name = f"{NOBODY}-{token_hex(4)}"
    made = await objects.create(api_path(*claims), trial_claim(name))
    try:
        body = {**made, "status": trial_status(driver)}
        await objects.replace(f"{api_path(*claims, name, 'status')}?dryRun=All", body)
    except (ApiError, ConflictError) as error:
        return str(error)
    finally:
        await objects.remove(api_path(*claims, name))
    return ""
