"""
NVIDIA's cards, as their driver tells of them through NVML.

The binding is thin and blocks. It looks a driver's library up by itself; without one there are no
cards, which is said apart from a driver that is there and does not answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, TypeVar

import pynvml

from agent.discover import machine
from agent.discover.faults import CardFault
from agent.discover.host_files import HostFiles
from agent.discover.sysfs import place_of

T = TypeVar("T")
Handle = Any

NO_DRIVER: Final = "NoDriver"
DRIVER_GONE: Final = "DriverGone"
CARD_UNREADABLE: Final = "CardUnreadable"

DOUBLE_BIT_ECC: Final = "DoubleBitECC"
UNCORRECTED_ECC: Final = "UncorrectedECC"
ROWS_PENDING: Final = "RowRemapPending"
ROWS_FAILED: Final = "RowRemapFailure"

_DRIVER_GONE: Final = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""These are about no single card."""
_GONE: Final = _DRIVER_GONE | {pynvml.NVML_ERROR_GPU_IS_LOST}
"""After these nothing that a card still says of itself counts."""
_ABSENT: Final = frozenset(
    {pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
)
_LINKS_END: Final = frozenset({pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED})
_COMMON: Final = {
    pynvml.NVML_TOPOLOGY_INTERNAL: machine.Common.INTERNAL,
    pynvml.NVML_TOPOLOGY_SINGLE: machine.Common.SINGLE,
    pynvml.NVML_TOPOLOGY_MULTIPLE: machine.Common.MULTIPLE,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: machine.Common.HOST_BRIDGE,
    pynvml.NVML_TOPOLOGY_NODE: machine.Common.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: machine.Common.SYSTEM,
}
_LINK_MBPS: Final = {
    pynvml.NVML_NVLINK_VERSION_1_0: 20_000,
    pynvml.NVML_NVLINK_VERSION_2_0: 25_000,
    pynvml.NVML_NVLINK_VERSION_2_2: 25_000,
    pynvml.NVML_NVLINK_VERSION_3_0: 25_000,
    pynvml.NVML_NVLINK_VERSION_3_1: 25_000,
    pynvml.NVML_NVLINK_VERSION_4_0: 25_000,
    pynvml.NVML_NVLINK_VERSION_5_0: 50_000,
}
"""Nominal, of one link and direction."""
_SWITCH: Final = "switch"
_MIG_WORD: Final = " MIG "
_EVENTS: Final = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
_VENDOR: Final = "0x10de"
_DISPLAY: Final = ("0x0300", "0x0302")


class NvmlProbe:
    """
    Looks at the cards of the driver on this machine.

    NVML stays open between looks; whatever says that the driver is gone closes it, so that the next
    look begins anew.

    Args:
        host: the host's files, for where cards sit and whether there are any.
    """

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self._is_open = False

    def look(self) -> machine.Discovery:
        """Return the cards that can be read, by minor, and what connects them."""
        try:
            if not self._is_open:
                pynvml.nvmlInit()
                self._is_open = True
            return self._found()
        except pynvml.NVMLError as error:
            self.close()
            return self._without_driver(error)

    def close(self) -> None:
        """Let go of the driver, which can then be unloaded."""
        if self._is_open:
            self._is_open = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _without_driver(self, error: pynvml.NVMLError) -> machine.Discovery:
        """Return what a driver that does not answer means: no cards, or cards that nobody sees."""
        there = _displays(self._host)
        absent = _code(error) in _ABSENT
        if absent and not there:
            return machine.Discovery()
        reason = NO_DRIVER if absent else DRIVER_GONE
        fact = f"{error}: NVIDIA cards on the PCI bus: {there}"
        return machine.Discovery(
            unknown=(machine.Kind.GPU,), problems=(machine.Fault(reason=reason, message=fact),)
        )

    def _found(self) -> machine.Discovery:
        version = _asked("", pynvml.nvmlSystemGetDriverVersion)
        read: list[_Read] = []
        problems: list[machine.Fault] = []
        count = int(pynvml.nvmlDeviceGetCount())
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                card, lanes = _card(handle, self._host), _nvlinks(handle)
                read.append(_Read(handle=handle, card=card, lanes=lanes))
            except pynvml.NVMLError as error:
                if _code(error) in _DRIVER_GONE:
                    raise
                problems.append(
                    machine.Fault(reason=CARD_UNREADABLE, message=f"index {index}: {error}")
                )
        return machine.checked(
            machine.Discovery(
                driver_version=version,
                unknown=(machine.Kind.GPU,) if problems else (),
                cards=tuple(one.card for one in read),
                links=tuple(_links(read)),
                problems=tuple(problems),
            )
        )


@contextmanager
def card_events(probe: NvmlProbe) -> Iterator[Callable[[int], tuple[CardFault, ...]]]:
    """
    Listen for Xids and double-bit ECC errors of all cards until the block ends.

    What is given waits so many milliseconds for the next event and returns it, if there is one. A
    card that tells of no events is a fault of nobody: the next look says what state it is in.

    Raises:
        pynvml.NVMLError: the driver is gone, or tells of no events at all.
    """
    probe.look()
    handles = pynvml.nvmlEventSetCreate()
    uuids: dict[int, str] = {}
    try:
        for index in range(int(pynvml.nvmlDeviceGetCount())):
            with suppress(pynvml.NVMLError):
                card = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuids[_address(card)] = str(pynvml.nvmlDeviceGetUUID(card))
                pynvml.nvmlDeviceRegisterEvents(card, _EVENTS, handles)
        yield lambda milliseconds: _next_event(handles, milliseconds, uuids)
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(handles)


def _next_event(
    handles: Handle, milliseconds: int, uuids: Mapping[int, str]
) -> tuple[CardFault, ...]:
    """
    Return the event that comes in time; of a card that was never named, with an empty UUID.

    A card that fell off the bus (Xid 79) tells its UUID no more: it is known from before.
    """
    try:
        event = pynvml.nvmlEventSetWait(handles, milliseconds)
    except pynvml.NVMLError as error:
        if _code(error) == pynvml.NVML_ERROR_TIMEOUT:
            return ()
        raise
    uuid = uuids.get(_address(event.device), "")
    if event.eventType == pynvml.nvmlEventTypeDoubleBitEccError:
        return (CardFault(uuid=uuid, reason=DOUBLE_BIT_ECC),)
    return (CardFault(uuid=uuid, reason=f"Xid{int(event.eventData)}"),)


def _address(handle: Handle) -> int:
    """Return what the driver's library knows a card by, the same for as long as it is open."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _card(handle: Handle, host: HostFiles) -> machine.Card:
    """Return a card; what makes it a card has to be readable, the rest may be missing."""
    uuid = str(pynvml.nvmlDeviceGetUUID(handle))
    total, reserved = _memory(handle)
    pci = _asked(None, pynvml.nvmlDeviceGetPciInfo, handle)
    mig = bool(_asked((0, 0), pynvml.nvmlDeviceGetMigMode, handle)[0])
    instances = tuple(_instances(handle)) if mig else ()
    faults = list(_memory_faults(handle))
    if mig:
        named = ", ".join(f"{one.profile} {one.uuid}" for one in instances) or "no instances"
        faults.append(machine.Fault(reason=machine.MIG_NOT_SERVED, message=named))
    return machine.Card(
        uuid=uuid,
        minor=int(pynvml.nvmlDeviceGetMinorNumber(handle)),
        model=_asked("", pynvml.nvmlDeviceGetName, handle),
        memory_bytes=max(0, total - reserved),
        reserved_bytes=reserved,
        place=place_of(host, "" if pci is None else _bus_id(pci)),
        mig=mig,
        instances=instances,
        faults=tuple(sorted(faults, key=lambda fault: fault.reason)),
        processes=_asked(None, _processes, handle),
    )


def _memory(handle: Handle) -> tuple[int, int]:
    """
    Return the bytes of a card in all, and those that the driver keeps.

    Rule: design section 8: capacity is NVML's total less what the driver reserves. A driver that is
    too old to say what it reserves has none told apart.
    """
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if _code(error) not in {
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        }:
            raise
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), 0
    return int(memory.total), int(memory.reserved)


def _memory_faults(handle: Handle) -> Iterator[machine.Fault]:
    """Yield what the card's own memory says against it; a card without ECC says nothing."""
    uncorrected, volatile = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    errors = _asked(0, pynvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, volatile)
    if errors:
        yield machine.Fault(reason=UNCORRECTED_ECC, message=f"{errors} since the driver was loaded")
    _, _, pending, failed = _asked((0, 0, 0, 0), pynvml.nvmlDeviceGetRemappedRows, handle)
    if pending:
        yield machine.Fault(
            reason=ROWS_PENDING, message="rows are remapped at the next reset of the card"
        )
    if failed:
        yield machine.Fault(reason=ROWS_FAILED, message="a row could not be remapped")


def _instances(handle: Handle) -> Iterator[machine.MigInstance]:
    for index in range(_asked(0, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        with suppress(pynvml.NVMLError):  # no instance has this number now
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            uuid = str(pynvml.nvmlDeviceGetUUID(part))
            name: str = _asked("", pynvml.nvmlDeviceGetName, part)
            yield machine.MigInstance(uuid=uuid, profile=name.rpartition(_MIG_WORD)[2])


def _processes(handle: Handle) -> tuple[machine.CardProcess, ...]:
    """Return who computes or draws on a card, by pid; one that does both has the larger amount."""
    found: dict[int, int] = {}
    # Without the version in its name the binding turns a call that the driver lacks into an error
    # that is no NVMLError.
    compute = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    graphics = _asked((), pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle)
    for process in (*compute, *graphics):
        found[process.pid] = max(found.get(process.pid, 0), process.usedGpuMemory or 0)
    return tuple(
        machine.CardProcess(pid=pid, memory_bytes=size) for pid, size in sorted(found.items())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lanes:
    """The NVLinks of a card that are up: PCI address or `_SWITCH` -> how many, and their speed."""

    to: dict[str, int]
    mbps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A card that could be read, and by what the driver knows it."""

    handle: Handle
    card: machine.Card
    lanes: _Lanes


def _links(read: Sequence[_Read]) -> Iterator[machine.GpuLink]:
    for a, b in combinations(sorted(read, key=lambda one: one.card.minor), 2):
        direct = a.lanes.to.get(b.card.place.bus_id, 0)
        count = direct + min(a.lanes.to.get(_SWITCH, 0), b.lanes.to.get(_SWITCH, 0))
        level = _level(a, b)
        yield machine.GpuLink(
            first=a.card.minor,
            second=b.card.minor,
            nvlinks=count,
            nvlink_mbps=min(a.lanes.mbps, b.lanes.mbps) if count else 0,
            common=None if level is None else _COMMON.get(level),
        )


def _level(a: _Read, b: _Read) -> int | None:
    """Return what lies between two cards; one that is lost by now is the next look's."""
    try:
        level: int = pynvml.nvmlDeviceGetTopologyCommonAncestor(a.handle, b.handle)
    except pynvml.NVMLError as error:
        if _code(error) in _DRIVER_GONE:
            raise
        return None
    return level


def _nvlinks(handle: Handle) -> _Lanes:
    found: dict[str, int] = {}
    speeds: set[int] = set()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
        except pynvml.NVMLError as error:
            if _code(error) in _LINKS_END:
                break
            if _code(error) in _GONE:
                raise
            continue
        kind = _asked(None, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        far = _SWITCH
        if kind != pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            pci = _asked(None, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            far = "" if pci is None else _bus_id(pci)
        if far:
            found[far] = found.get(far, 0) + 1
            version = _asked(0, pynvml.nvmlDeviceGetNvLinkVersion, handle, link)
            speeds.add(_LINK_MBPS.get(version, 0))
    return _Lanes(to=found, mbps=min(speeds, default=0))


def _bus_id(pci: Any) -> str:  # noqa: ANN401 - a structure of the binding
    """Return the PCI address as sysfs writes it; NVML has eight digits of domain."""
    text = pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest else ""


def _asked(otherwise: T, ask: Callable[..., T], *about: object) -> T:
    """Return what the driver says, or something else where it says nothing of this card."""
    try:
        return ask(*about)
    except pynvml.NVMLError as error:
        if _code(error) in _GONE:
            raise
        return otherwise


def _code(error: pynvml.NVMLError) -> int:
    return int(error.value)


def _displays(host: HostFiles) -> int:
    """Return how many of NVIDIA's cards are on the PCI bus, whatever driver they have."""
    folder = "sys/bus/pci/devices"
    return sum(
        host.text_or(f"{folder}/{name}/vendor") == _VENDOR
        and host.text_or(f"{folder}/{name}/class").startswith(_DISPLAY)
        for name in host.names(folder)
    )
