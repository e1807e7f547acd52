"""
CPUs by claims: the words of dra-driver-cpu, and what a claim's allocation says in them.

Rule: docs/contracts/dra.md, 8. The driver gives all CPUs of a machine as one device and takes from
whoever writes the allocation which of them a request has, in a configuration for it:

    {"source": "FromClaim", "requests": ["cpus"],
     "opaque": {"driver": "dra.cpu",
                "parameters": {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "2-5"}}}}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ledger.domain.annotations.wire import a_cpuset, a_list, a_quantity, a_text, an_object, each
from ledger.domain.cpuset import CpuSet, format_cpuset
from ledger.domain.errors import InputError
from ledger.domain.quantity import NANO

CPU_DRIVER: Final = "dra.cpu"
MACHINE: Final = "cpudevmachine"
"""The device that is all CPUs of a machine; of every other one the driver chooses by itself."""
AMOUNT: Final = "dra.cpu/cpu"
CPU: Final = "cpu"
"""The type of what somebody holds of whom nobody knows which CPUs."""
_VERSION: Final = "v1alpha1"
_SOURCE: Final = "FromClaim"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusSaid:
    """
    What an allocation's configurations say of CPUs.

    Attributes:
        by_request: the CPUs of each request that has one.
        fault: why the driver would take none of them, empty where it would.
    """

    by_request: Mapping[str, CpuSet] = field(default_factory=dict)
    fault: str = ""

    def of(self, request: str) -> CpuSet:
        """Return the CPUs of a request, or of that which it is an alternative of."""
        main, _, _ = request.partition("/")
        return self.by_request.get(request) or self.by_request.get(main, CpuSet())


def cpus_said(value: object, path: str) -> CpusSaid:
    """
    Read `allocation.devices.config`; what other drivers are told is passed over.

    Raises:
        InputError: it is not as the API describes it; parameters, which are anybody's, may be.
    """
    found: dict[str, CpuSet] = {}
    fault = ""
    for number, one in enumerate(each(value, path, an_object)):
        at = f"{path}[{number}]"
        opaque = an_object(one.get("opaque"), f"{at}.opaque")
        if opaque.get("driver") != CPU_DRIVER:
            continue
        try:
            request, cpus = _said(one, opaque, at)
        except InputError as error:
            fault = fault or str(error)
            continue
        if request in found:
            fault = fault or f"{at}: request {request} has two of them"
        found[request] = found.get(request, CpuSet()) | cpus
    return CpusSaid(by_request=found, fault=fault)


def _said(one: Mapping[str, object], opaque: Mapping[str, object], path: str) -> tuple[str, CpuSet]:
    if one.get("source") != _SOURCE:
        raise InputError("CPUs of a class would be those of all its claims", field=f"{path}.source")
    requests = a_list(one.get("requests"), f"{path}.requests")
    if len(requests) != 1:
        raise InputError("expected one request", field=f"{path}.requests")
    at = f"{path}.opaque.parameters"
    parameters = an_object(opaque.get("parameters"), at)
    _check_names(parameters, {"apiVersion", "cpuConfig"}, at)
    if parameters.get("apiVersion") != _VERSION:
        raise InputError(f"expected {_VERSION}", field=f"{at}.apiVersion")
    config = an_object(parameters.get("cpuConfig"), f"{at}.cpuConfig")
    _check_names(config, {"cpuset"}, f"{at}.cpuConfig")
    cpus = a_cpuset(config.get("cpuset"), f"{at}.cpuConfig.cpuset")
    if not cpus:
        raise InputError("missing; expected CPUs", field=f"{at}.cpuConfig.cpuset")
    return a_text(requests[0], f"{path}.requests[0]"), cpus


def _check_names(body: Mapping[str, object], known: Collection[str], path: str) -> None:
    """
    Refuse a field that the driver takes for one of these, of which it is another one to us.

    Go reads names in whichever case: of `{"cpuset": "2-3", "CPUSET": "8-9"}` it gives 8 and 9.
    """
    for name in body:
        if name not in known and name.casefold() in map(str.casefold, known):
            raise InputError("its driver takes it for another field", field=f"{path}.{name}")


def cpu_config(request: str, cpus: CpuSet) -> dict[str, Any]:
    """Return the configuration that gives a request these CPUs."""
    parameters = {"apiVersion": _VERSION, "cpuConfig": {"cpuset": format_cpuset(cpus)}}
    return {
        "source": _SOURCE,
        "requests": [request],
        "opaque": {"driver": CPU_DRIVER, "parameters": parameters},
    }


def cpus_asked(consumed: Mapping[str, str]) -> int:
    """Return how many CPUs a result consumes. Raises InputError: no whole number of them."""
    text = consumed.get(AMOUNT, "")
    nanos = a_quantity(text, AMOUNT).nanos if text else 0
    if nanos <= 0 or nanos % NANO:
        raise InputError(f"expected a whole number of CPUs: value={text!r}", field=AMOUNT)
    return nanos // NANO
