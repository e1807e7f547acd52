"""The request that room is wanted for: a Pod that waits, a manifest, or a few options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ledger.domain.devices import GPU
from ledger.domain.dialects.registry import reader_of
from ledger.domain.errors import InputError
from ledger.domain.quantity import parse_quantity
from ledger.domain.request.normalise import examine_pod
from ledger.domain.request.requests import PodRequest
from ledger.domain.resources import (
    ANNOTATION_RESOURCE_SPEC,
    CPU,
    LABEL_PRIORITY_CLASS,
    LABEL_QOS_CLASS,
    MEMORY,
)
from ledger.domain.vocabulary import Vocabulary
from tenure.exits import with_next
from tenure.manifests import as_admitted, read_manifests
from tenure.units import parse_decimal
from tenure.whatif.options import Options

UID: Final = "wanted"
_GPUS_MAX: Final = 1024


def check_wanted(wanted: Options) -> None:
    """Raise InputError unless there is just one of a name, a file and options."""
    given = [wanted.name is not None, wanted.file is not None, wanted.has_amounts]
    if sum(given) != 1:
        error = InputError("one request is needed: NAMESPACE/POD, --file, or --gpus and the like")
        raise with_next(error, "see `tenure defrag plan --help`")


def request_of_file(path: Path, vocabulary: Vocabulary) -> PodRequest:
    """Return the request of a file's one Pod. Raises InputError: unreadable, or it breaks rules."""
    pods = as_admitted(read_manifests([str(path)])).of_kind("Pod")
    if len(pods) != 1:
        raise InputError(f"one Pod is needed: pods={len(pods)}", field="--file", place=str(path))
    try:
        request, errors = examine_pod(pods[0].body, vocabulary)
        errors = (*pods[0].errors, *errors)
    except InputError as error:
        raise pods[0].blame(error) from None
    if errors:
        raise pods[0].blame(InputError("; ".join(map(str, errors))))
    return request


def request_of_options(wanted: Options, vocabulary: Vocabulary) -> PodRequest:
    """Return the options' request, as a Pod of that dialect. Raises InputError: a wrong amount."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    if wanted.own_cpus:
        labels = {LABEL_QOS_CLASS: "LSR", LABEL_PRIORITY_CLASS: "koord-prod"}
        spec = {"preferredCPUBindPolicy": vocabulary.default_bind_policy}
        annotations[ANNOTATION_RESOURCE_SPEC] = json.dumps(spec)
    amounts = _amounts(wanted, vocabulary)
    spec_of: dict[str, Any] = {
        "containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]
    }
    pod = {
        "metadata": {
            "name": UID,
            "namespace": "default",
            "uid": UID,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": spec_of,
    }
    request, errors = examine_pod(pod, vocabulary)
    if errors:
        raise InputError("; ".join(map(str, errors)), field="the request")
    return request if wanted.gpu_model is None else _on_model(request, wanted.gpu_model)


def _on_model(request: PodRequest, model: str) -> PodRequest:
    devices = tuple(
        replace(demand, model_names=(model,)) if demand.device_type == GPU else demand
        for demand in request.devices
    )
    if devices == request.devices:
        raise InputError("only for a request for GPUs", field="--gpu-model")
    return replace(request, devices=devices)


def _amounts(wanted: Options, vocabulary: Vocabulary) -> Mapping[str, str]:
    amounts: dict[str, str] = {}
    for name, value, option in (
        (CPU, wanted.cpu, "--cpu"),
        (MEMORY, wanted.memory, "--memory"),
    ):
        if value is not None:
            _bytes(value, option)
            amounts[name] = value
    percent = None if wanted.gpus is None else _percent(wanted.gpus)
    size = None if wanted.gpu_memory is None else _bytes(wanted.gpu_memory, "--gpu-memory")
    amounts |= reader_of(wanted.dialect).amounts(percent, size, vocabulary)
    return amounts


def _percent(text: str) -> int:
    cards = parse_decimal(text)
    if cards is None or not 0 < cards <= _GPUS_MAX or cards * 100 % 1:
        fact = f"not a number of GPUs, such as 4 or 0.25: value={text!r}"
        raise InputError(fact, field="--gpus")
    return int(cards * 100)


def _bytes(text: str, option: str) -> int:
    try:
        amount = parse_quantity(text)
    except InputError as error:
        raise InputError(error.message, field=option) from None
    if amount.nanos <= 0:
        raise InputError(f"must be above 0: value={text!r}", field=option)
    return amount.ceil()
