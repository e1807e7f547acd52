"""
What the words of a request mean: one value, part of the settings of scheduling and of admission.

Whatever reads an object takes it as an argument, and what was read carries it: nothing in a process
decides for all of it what a name means, so one process reads by as many vocabularies as it likes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Final, TypeVar

from ledger.domain import resources
from ledger.domain.device_types import BUILT_IN, DeviceType, read_device_types
from ledger.domain.log.codec import encode_value
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.setting import Setting

T = TypeVar("T")

_UNITS_MAX: Final = 8_000_000

_LOCAL_ID: Final = re.compile(
    r"([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]|[0-9]+"
)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """
    The settings that change what a request means (cli.md, Settings of scheduling).

    It has no slots, so that each table of names is made once, when it is first asked for.

    Attributes:
        device_types: types beside the built-in ones, which they may replace (docs, Device types).
        gpushare_unit: what `aliyun.com/gpu-mem` counts, `MiB` or `GiB`.
        mgpu_multi_min_memory_mib: least memory on each card of a multi-card mGPU container.
        mgpu_max_memory_mib: most mGPU memory on one card; more is a wrong unit.
        default_bind_policy, default_exclusive_policy: for LSE and LSR Pods that name none.
        whole_cards: who gives the cards of `nvidia.com/gpu` where a namespace does not say it,
            `ours` or `nvidia` (docs/adr/0033).
        slot_mode: how containers are shown their cards, `env`, `plugin` or `gpushare`.
    """

    gpushare_unit: Annotated[str, Setting(key="gpushare.unit", words=("MiB", "GiB"))] = "MiB"
    mgpu_multi_min_memory_mib: Annotated[
        int, Setting(key="mgpu.multiMinMemoryMiB", least=1, most=1 << 20)
    ] = 256
    mgpu_max_memory_mib: Annotated[
        int, Setting(key="mgpu.maxMemoryMiB", least=256, most=1 << 33)
    ] = 1 << 20
    default_bind_policy: Annotated[
        str,
        Setting(
            key="cpu.defaultBindPolicy", words=("FullPCPUs", "SpreadByPCPUs", "ConstrainedBurst")
        ),
    ] = "FullPCPUs"
    default_exclusive_policy: Annotated[
        str,
        Setting(key="cpu.defaultExclusivePolicy", words=("None", "PCPULevel", "NUMANodeLevel")),
    ] = "None"
    whole_cards: Annotated[str, Setting(words=("ours", "nvidia"))] = "ours"
    slot_mode: Annotated[str, Setting(words=("env", "plugin", "gpushare"))] = "env"
    device_types: Annotated[
        tuple[DeviceType, ...], Setting(given=dict[Any, Any], read=read_device_types)
    ] = ()

    def __hash__(self) -> int:
        """Return a hash that is worked out once: what remembers words is keyed by it."""
        return hash(self.digest)

    @property
    def by_slots(self) -> bool:
        """Tell whether a device plugin knows a container by its slot, and shows it its devices."""
        in_mib = self.slot_mode == "gpushare" and self.gpushare_unit == "MiB"
        return in_mib or self.slot_mode == "plugin"

    @cached_property
    def digest(self) -> str:
        """
        Return the hex SHA-256 of what the words mean, as canonical JSON.

        Vocabularies that say the same in other ways have one digest: the built-in types are part of
        it, and types are in order of their names.
        """
        meant = encode_value(replace(self, device_types=self.unit_types))
        return hashlib.sha256(meant.encode()).hexdigest()

    @cached_property
    def unit_types(self) -> tuple[DeviceType, ...]:
        """Every type beside GPUs that can be asked for, by name."""
        return tuple(kind for _, kind in sorted(self._types.items()))

    @cached_property
    def known_types(self) -> tuple[str, ...]:
        """The names of all types that can be asked for, GPUs too."""
        return tuple(sorted({resources.TYPE_GPU, *self._types}))

    @cached_property
    def device_names(self) -> frozenset[str]:
        """Every resource name that asks for a device, in all spellings that are read."""
        return frozenset(self._type_by_spelling)

    @cached_property
    def units_max(self) -> Mapping[str, int]:
        """
        The most that is counted of each resource that asks for a device, in all its spellings.

        Rule: design section 3, base units: bytes as they are; cards, percent, MiB and GiB as many
        as have bytes that can be counted exactly as GiB.
        """
        memories = {resources.GPU_MEMORY, *(kind.memory for kind in self._types.values())}
        return {
            name: INTEGER_MAX if self.canonical(name) in memories else _UNITS_MAX
            for name in self.device_names
        }

    @cached_property
    def released(self) -> Mapping[str, str]:
        """Other spellings of resources, of devices and not, -> the released name."""
        return {**resources.ALIASES, **self._aliases}

    @cached_property
    def _types(self) -> Mapping[str, DeviceType]:
        return {kind.name: kind for kind in (*BUILT_IN, *self.device_types)}

    @cached_property
    def _aliases(self) -> Mapping[str, str]:
        return {alias: kind.resource for kind in self._types.values() for alias in kind.aliases}

    @cached_property
    def _proposal(self) -> Mapping[str, str]:
        return {
            name: alias
            for alias, name in {**resources.RELEASED_BY_PROPOSAL, **self._aliases}.items()
            if alias.startswith(resources.DOMAIN_KUBERNETES)
        }

    @cached_property
    def _type_by_spelling(self) -> Mapping[str, str]:
        types = {
            **dict.fromkeys(resources.GPU_NAMES, resources.TYPE_GPU),
            **{name: kind.name for kind in self._types.values() for name in kind.resources},
        }
        spelt = {alias: types[name] for alias, name in self.released.items() if name in types}
        return {**types, **spelt}

    def canonical(self, name: str) -> str:
        """Return the released name of a resource, itself without one (Koordinator contract 1.1)."""
        return self.released.get(name, name)

    def canonical_resources(self, amounts: Mapping[str, T]) -> dict[str, T]:
        """
        Return the amounts under released names, sorted by name.

        Rule: Koordinator contract 1.1, alias rule. Where both spellings are present the released
        one counts; of two alias spellings the first in text order.
        """
        result: dict[str, T] = {}
        for name in sorted(amounts):
            released = self.canonical(name)
            if released == name or (released not in amounts and released not in result):
                result[released] = amounts[name]
        return dict(sorted(result.items()))

    def proposal_name(self, name: str) -> str:
        """Return the `kubernetes.io/` spelling of a released device resource, or the name."""
        return self._proposal.get(name, name)

    def device_type_of(self, name: str) -> str | None:
        """Return the device type of a resource in any spelling (Koordinator contract 1.1)."""
        return self._type_by_spelling.get(name)

    def type_named(self, name: str) -> DeviceType:
        """Return the type of a name; an unknown one counts percent of `koordinator.sh/<name>`."""
        return self._types.get(name) or DeviceType(
            name=name, resource=f"{resources.DOMAIN_KOORDINATOR}{name}"
        )

    def is_known_type(self, name: str) -> bool:
        """Tell whether devices of the type can be asked for."""
        return name == resources.TYPE_GPU or name in self._types

    def is_unique_id(self, device_type: str, device_id: str) -> bool:
        """
        Tell whether the id is of one device in the whole world, by the type's rule.

        Rule: design section 4, "One account per physical device". GPUs have UUIDs; what is a bus
        address or a number is of one machine alone, whatever the type says.
        """
        kind = self._types.get(device_type)
        unique = device_type == resources.TYPE_GPU or (kind is not None and kind.unique_ids)
        return unique and bool(device_id) and not _LOCAL_ID.fullmatch(device_id)

    def advertised_names(self) -> frozenset[str]:
        """
        Return every resource name by which a node of ours may offer its devices.

        Rule: design section 8, "nothing else advertises the cards". `nvidia.com/gpu` and what is
        said beside it are the device plugins' own.
        """
        return self.device_names - (
            resources.SHARED_GPU_NAMES - {resources.AMD_GPU, resources.DCU_GPU}
        )


DEFAULT_VOCABULARY: Final = Vocabulary()
