"""The devices a Pod got: `scheduling.koordinator.sh/device-allocated`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

from ledger.domain.annotations import wire
from ledger.domain.quantity import ZERO, Quantity, decimal_text
from ledger.domain.resources import ANNOTATION_DEVICE_ALLOCATED
from ledger.domain.typed import read
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary

_PATH: Final = wire.annotation_path(ANNOTATION_DEVICE_ALLOCATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class VfAllocation:
    """One virtual function of the device. `minor` is -1 where the agent does not number VFs."""

    minor: Annotated[int, wire.at_least(-1)] = 0
    bus_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAllocation:
    """
    What the Pod got of one device, already divided per device.

    Attributes:
        id: device UUID or PF bus id; empty where the inventory names none.
        resources: released names, sorted; core percent, bytes, ratio percent.
        template: vendor template of a shared device, such as `vir02`.
    """

    minor: int
    id: str = ""
    resources: wire.Amounts = ()
    vfs: tuple[VfAllocation, ...] = ()
    template: str = ""

    def quantity(self, name: str) -> Quantity:
        """Return the amount of one resource, zero when the entry does not list it."""
        return dict(self.resources).get(name, ZERO)


# {"gpu": [{"minor": 3, "id": "GPU-5d0f6c1e-0b7a-4f0e-9b1e-2f5b7c1d9a44",
#           "resources": {"koordinator.sh/gpu-core": "40",
#                         "koordinator.sh/gpu-memory": "9019431321",
#                         "koordinator.sh/gpu-memory-ratio": "35"},
#           "extension": {"gpuSharedResourceTemplate": "vir02"}}],
#  "rdma": [{"minor": 11, "id": "0000:5e:00.0", "resources": {"koordinator.sh/rdma": "1"},
#            "extension": {"vfs": [{"minor": 4, "busID": "0000:5e:01.4"}]}}]}
#
# In the proposal: {"gpu": [{"minor": 0, "resouurces": {"kubernetes.io/gpu-core": 100,
#                            "kubernetes.io/gpu-mem": "16Gi"}}]}


def decode_device_allocated(
    text: str, vocabulary: Vocabulary = DEFAULT_VOCABULARY
) -> dict[str, tuple[DeviceAllocation, ...]]:
    """
    Read the allocations by device type, each in the order written (which carries no meaning).

    Rule: Koordinator contract 2.2. Takes `resouurces` for `resources`, both domains, the typo keys,
    numbers for quantities, and a VF without `minor` as minor 0.

    Raises:
        InputError: broken JSON, a missing or negative device minor, a bad or negative quantity.
    """
    by_type = wire.an_object(wire.load(text, _PATH), _PATH)

    def decode(entry: object, path: str) -> DeviceAllocation:
        return _decode_entry(entry, path, vocabulary)

    return {
        device_type: wire.each(entries, f"{_PATH}.{device_type}", decode)
        for device_type, entries in by_type.items()
    }


def encode_device_allocated(
    allocations: Mapping[str, tuple[DeviceAllocation, ...]],
    vocabulary: Vocabulary = DEFAULT_VOCABULARY,
    *,
    proposal_domain: bool = False,
) -> str:
    """
    Write the release's shape: entries by minor, quantities as decimal strings in base units.

    Rule: Koordinator contract 2.2 and 11. Types without entries are left out. `proposal_domain`
    writes `kubernetes.io/` names, for nodes that advertise that domain.
    """
    names = vocabulary if proposal_domain else None
    return wire.dump(
        {
            device_type: [
                _encode_entry(entry, names)
                for entry in sorted(entries, key=lambda entry: entry.minor)
            ]
            for device_type, entries in allocations.items()
            if entries
        }
    )


def _decode_entry(value: object, path: str, vocabulary: Vocabulary) -> DeviceAllocation:
    entry = wire.an_object(value, path)
    key = "resouurces" if entry.get("resources") is None else "resources"
    extension_path = f"{path}.extension"
    extension = wire.an_object(entry.get("extension"), extension_path)
    return DeviceAllocation(
        minor=wire.an_integer(entry.get("minor"), f"{path}.minor", least=0),
        id=wire.a_text(entry.get("id"), f"{path}.id"),
        resources=wire.amounts(entry.get(key), f"{path}.{key}", vocabulary),
        vfs=read(tuple[VfAllocation, ...], extension.get("vfs"), f"{extension_path}.vfs"),
        template=wire.a_text(
            extension.get("gpuSharedResourceTemplate"),
            f"{extension_path}.gpuSharedResourceTemplate",
        ),
    )


def _encode_entry(entry: DeviceAllocation, names: Vocabulary | None) -> dict[str, object]:
    vfs = [wire.present({"minor": vf.minor or None, "busID": vf.bus_id}) for vf in entry.vfs]
    extension = wire.present({"vfs": vfs, "gpuSharedResourceTemplate": entry.template})
    return {
        "minor": entry.minor,
        "resources": _encode_amounts(entry.resources, names),
        **wire.present({"id": entry.id, "extension": extension}),
    }


@lru_cache(maxsize=4096)
def _encode_amounts(resources: wire.Amounts, names: Vocabulary | None) -> Mapping[str, str]:
    rename = str if names is None else names.proposal_name
    return {rename(name): decimal_text(quantity) for name, quantity in resources}
