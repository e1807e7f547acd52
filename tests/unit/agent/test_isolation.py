"""A container is kept to its parts of cards, by the names and units that HAMi-core reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.decide.isolation import Provider, UnknownSizeError, limited, limits_of
from agent.discover.host_files import HostFiles
from agent.plugin.isolating import Isolation
from ledger.domain.annotations.proof import ProvenDevice
from ledger.domain.errors import InputError

GIB: Final = 1 << 30
SIZES: Final = {"GPU-a": 80 * GIB, "GPU-b": 80 * GIB, "GPU-c": 24 * GIB}
LIBRARY: Final = PurePosixPath("/usr/local/vgpu/libvgpu.so")


def part(card: str, core: int, size: int, minor: int | None = None) -> ProvenDevice:
    """Return a part of a card."""
    number = "abc".index(card) if minor is None else minor
    return ProvenDevice(
        device_type="gpu",
        device_id=f"GPU-{card}",
        minor=number,
        core_percent=core,
        memory_bytes=size,
    )


WHOLE: Final = part("a", 100, 80 * GIB)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        pytest.param(
            [part("a", 40, 9019431321)],
            {"CUDA_DEVICE_MEMORY_LIMIT": "9019431321", "CUDA_DEVICE_SM_LIMIT": "40"},
            id="the example of contract 9.2",
        ),
        pytest.param(
            [part("a", 0, GIB)], {"CUDA_DEVICE_MEMORY_LIMIT": str(GIB)}, id="memory alone"
        ),
        pytest.param([part("a", 30, 80 * GIB)], {"CUDA_DEVICE_SM_LIMIT": "30"}, id="compute alone"),
        pytest.param(
            [part("a", 100, GIB)],
            {"CUDA_DEVICE_MEMORY_LIMIT": str(GIB)},
            id="a card alone, and part of its memory",
        ),
        pytest.param([WHOLE], {}, id="a whole card"),
        pytest.param([WHOLE, part("b", 100, 80 * GIB)], {}, id="whole cards"),
        pytest.param(
            [ProvenDevice(device_type="rdma", device_id="0000:5e:00.0", minor=1, core_percent=1)],
            {},
            id="a NIC",
        ),
    ],
)
def test_the_limits_of_a_container(held: list[ProvenDevice], said: dict[str, str]) -> None:
    """Bytes and percent, as they are held."""
    assert limits_of(held, SIZES) == said


def test_of_several_cards_each_has_its_place_by_minor() -> None:
    """In the order of the bus, which the environment says too; a whole one has no limit."""
    held = [part("c", 50, 12 * GIB), part("b", 25, GIB), WHOLE]

    assert limits_of(held, SIZES) == {
        "CUDA_DEVICE_MEMORY_LIMIT_1": str(GIB),
        "CUDA_DEVICE_SM_LIMIT_1": "25",
        "CUDA_DEVICE_MEMORY_LIMIT_2": str(12 * GIB),
        "CUDA_DEVICE_SM_LIMIT_2": "50",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1,2",
    }


@given(
    st.lists(
        st.builds(
            part,
            st.sampled_from("abc"),
            st.integers(0, 100),
            st.integers(0, 90 * GIB),
            st.integers(0, 15),
        ),
        max_size=6,
        unique_by=lambda one: one.minor,
    )
)
def test_every_part_is_limited_and_by_no_more_than_it_has(held: list[ProvenDevice]) -> None:
    """Whatever is held beside it."""
    said = limits_of(held, SIZES)
    for place, one in enumerate(sorted(held, key=lambda one: one.minor)):
        suffix = f"_{place}" if len(held) > 1 else ""
        is_part = 0 < one.memory_bytes < SIZES[one.device_id]
        memory = said.get(f"CUDA_DEVICE_MEMORY_LIMIT{suffix}")
        assert memory == (str(one.memory_bytes) if is_part else None)
        cores = said.get(f"CUDA_DEVICE_SM_LIMIT{suffix}")
        assert cores == (str(one.core_percent) if 0 < one.core_percent < 100 else None)


def test_a_card_of_unknown_size_is_waited_for() -> None:
    """Nobody could tell a part of it from all of it."""
    with pytest.raises(UnknownSizeError, match="device=GPU-a"):
        limits_of([part("a", 40, GIB)], {})


def test_limits_come_with_library_locks_and_a_cache() -> None:
    """The library first of all; nothing for who has no limit."""
    assert limited({}, library="/l", locks="/k") == {}
    edits = limited({"CUDA_DEVICE_SM_LIMIT": "40"}, library="/opt/l.so", locks="/opt/locks")

    assert edits["env"] == [
        "CUDA_DEVICE_MEMORY_SHARED_CACHE=/run/vgpu-cache/cache",
        "CUDA_DEVICE_SM_LIMIT=40",
        "LD_PRELOAD=/usr/local/vgpu/libvgpu.so",
    ]
    assert [(one["hostPath"], one["containerPath"]) for one in edits["mounts"]] == [
        ("/opt/l.so", "/usr/local/vgpu/libvgpu.so"),
        ("/opt/locks", "/tmp/vgpulock"),
        ("tmpfs", "/run/vgpu-cache"),
    ]
    assert ["ro" in one["options"] for one in edits["mounts"]] == [True, False, False]


def isolation(root: Path, provider: Provider = Provider.HAMI_CORE) -> Isolation:
    """Return a provider on the node whose files are these."""
    host = HostFiles(root=root)
    return Isolation(provider=provider, host=host, sizes=lambda: SIZES, library=LIBRARY)


def installed(root: Path) -> Path:
    """Install the library, as a link to its version, and return its folder."""
    folder = root / "usr/local/vgpu"
    (folder / "locks").mkdir(parents=True)
    (folder / "libvgpu.so.2").write_text("")
    (folder / "libvgpu.so").symlink_to("libvgpu.so.2")
    return folder


def test_the_nodes_own_paths_are_mounted(tmp_path: Path) -> None:
    """With no link in them, and as the node says them, whatever we see them below."""
    installed(tmp_path)
    mounts = isolation(tmp_path).edits([part("a", 40, GIB)])["mounts"]

    assert [one["hostPath"] for one in mounts[:2]] == [
        "/usr/local/vgpu/libvgpu.so.2",
        "/usr/local/vgpu/locks",
    ]


@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        (lambda folder: (folder / "libvgpu.so.2").unlink(), "/usr/local/vgpu/libvgpu.so: .*no lib"),
        (lambda folder: (folder / "locks").rmdir(), "/usr/local/vgpu/locks: .*no folder"),
        (
            lambda folder: [(folder / "libvgpu.so.2").unlink(), (folder / "libvgpu.so.2").mkdir()],
            "/usr/local/vgpu/libvgpu.so: .*something else",
        ),
    ],
    ids=["no library", "no folder of locks", "a folder in its place"],
)
def test_what_the_node_lacks_is_refused_with_its_path(
    tmp_path: Path,
    breaks: Callable[[Path], object],
    why: str,
) -> None:
    """A part is never given without its limits; who holds whole cards needs no library."""
    breaks(installed(tmp_path))

    with pytest.raises(InputError, match=why):
        isolation(tmp_path).edits([part("a", 40, GIB)])
    assert isolation(tmp_path).edits([WHOLE]) == {}


def test_a_node_without_a_provider_limits_nobody(tmp_path: Path) -> None:
    """Parts are accounting there, and nobody has to know a size."""
    assert isolation(tmp_path, Provider.NONE).edits([part("a", 40, GIB)]) == {}


def test_providers_are_named_as_people_write_them() -> None:
    """And nothing else is one."""
    assert [Provider.named(text) for text in ("none", "hami-core", "HAMi-core")] == [
        Provider.NONE,
        Provider.HAMI_CORE,
        Provider.HAMI_CORE,
    ]
    with pytest.raises(InputError, match="one of none, HAMi-core: value='mps'"):
        Provider.named("mps")
