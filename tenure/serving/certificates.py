"""`tenure certs`: what the cluster's certificates are, and asking for new ones."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from certs.material import CertificateError, CertificateFacts, bundle_facts
from certs.plan import Replica, RotationRecord
from certs.ports import ApiError, ConflictError, Objects
from certs.record import REQUESTED, read_record
from certs.reports import Reports
from certs.rotator import configuration_paths
from ledger.domain.errors import InputError
from tenure.exits import AnswerIsNo, note, with_next
from tenure.kube.objects import connected
from tenure.output import Column, write_answer
from tenure.serving.certs import RotateOptions, SecretOptions, StatusOptions

_T = TypeVar("_T")

_COLUMNS: Final = (
    Column(key="what", title="WHAT"),
    Column(key="name", title="NAME"),
    Column(key="state", title="STATE"),
    Column(key="not_after", title="ENDS"),
    Column(key="fingerprint", title="FINGERPRINT", wide=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A cluster's certificates; `trusted`: configuration -> fingerprints, None = it is absent."""

    recorded: RotationRecord
    trusted: dict[str, frozenset[str] | None]
    replicas: tuple[Replica, ...]


def print_status(options: StatusOptions) -> None:
    """
    Print authority, leaf, configurations and replicas.

    Raises:
        AnswerIsNo: somebody would be refused now: a configuration that does not trust the leaf's
            authority, or a certificate that has ended.
        InputError: the cluster or its Secret can't be read.
    """
    found = _in_cluster(options, lambda api: _read(api, options))
    now = datetime.now(UTC)
    rows = list(_rows(found, now))
    write_answer(options.output, rows, _COLUMNS)
    if any(row["bad"] for row in rows):
        raise AnswerIsNo


def ask_rotation(options: RotateOptions) -> None:
    """Have the leader issue authority and leaf anew. Raises InputError: no Secret to write."""

    async def ask(api: Objects) -> None:
        found = await api.read(options.path)
        if found is None or read_record(found) is None:
            raise _missing(options)
        if options.dry_run:
            return
        metadata = {**found["metadata"]}
        annotations = metadata.get("annotations") or {}
        asked = datetime.now(UTC).isoformat(timespec="seconds")
        metadata["annotations"] = {**annotations, REQUESTED: asked}
        await api.replace(options.path, {**found, "metadata": metadata})

    _in_cluster(options, ask)
    verb, secret = "would ask" if options.dry_run else "asked", _title(options)
    sys.stdout.write(f"{verb} for a new authority and leaf: {secret}\n")
    if not options.dry_run:
        note("watch it: tenure certs status")


async def _read(api: Objects, options: StatusOptions) -> Status:
    found = await api.read(options.path)
    record = None if found is None else read_record(found)
    if record is None:
        raise _missing(options)
    trusted: dict[str, frozenset[str] | None] = {}
    for path in configuration_paths(options.configuration):
        one = await api.read(path)
        shown = "/".join(path.rsplit("/", 2)[1:])
        trusted[shown] = None if one is None else _trusted(one)
    replicas = await Reports(api, options.namespace, options.secret).all()
    return Status(recorded=record.facts(), trusted=trusted, replicas=replicas)


def _trusted(configuration: Any) -> frozenset[str]:  # noqa: ANN401 - JSON
    each = [
        frozenset(one.fingerprint for one in bundle_facts(base64.b64decode(bundle)))
        for hook in configuration.get("webhooks") or ()
        for bundle in [hook["clientConfig"].get("caBundle") or ""]
    ]
    return frozenset.intersection(*each) if each else frozenset()


def _rows(found: Status, now: datetime) -> list[dict[str, Any]]:
    recorded = found.recorded
    rows = [
        _certificate("authority", str(recorded.phase), recorded.authority, now),
        _certificate("leaf", ", ".join(recorded.leaf.names), recorded.leaf, now),
    ]
    if recorded.other is not None:
        rows.insert(1, _certificate("other authority", "", recorded.other, now))
    for name, trusted in found.trusted.items():
        good = trusted is not None and recorded.authority.fingerprint in trusted
        state = "absent" if trusted is None else "trusts the leaf" if good else "REFUSES THE LEAF"
        rows.append(_row("configuration", name, state, bad=trusted is not None and not good))
    for replica in found.replicas:
        same = replica.leaf == recorded.leaf.fingerprint
        state = "serves the leaf" if same else "serves another leaf"
        row = _row("replica", replica.name, state, fingerprint=replica.leaf)
        rows.append(row | {"reported_at": replica.at.isoformat()})
    return rows


def _certificate(what: str, name: str, facts: CertificateFacts, now: datetime) -> dict[str, Any]:
    ended = now >= facts.not_after
    state = "HAS ENDED" if ended else f"{(facts.not_after - now).days} days left"
    row = _row(what, name, state, bad=ended, fingerprint=facts.fingerprint)
    return row | {"not_after": facts.not_after.isoformat()}


def _row(
    what: str, name: str, state: str, *, bad: bool = False, fingerprint: str = ""
) -> dict[str, Any]:
    return {
        "what": what,
        "name": name,
        "state": state,
        "not_after": "",
        "fingerprint": fingerprint,
        "bad": bad,
    }


def _title(options: SecretOptions) -> str:
    return f"secret={options.namespace}/{options.secret}"


def _missing(options: SecretOptions) -> InputError:
    fact = f"no certificates are there: {_title(options)}"
    return with_next(InputError(fact), "is the webhook running, and with which --secret?")


def _in_cluster(options: SecretOptions, act: Callable[[Objects], Coroutine[Any, Any, _T]]) -> _T:
    async def run() -> _T:
        async with connected(options.kubeconfig) as api:
            return await act(api)

    try:
        return asyncio.run(run())
    except (ApiError, ConflictError, CertificateError) as error:
        step = "check --kubeconfig, --namespace and your rights there"
        raise with_next(InputError(str(error)), step) from error
