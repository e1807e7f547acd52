"""The first files of a guest: busybox, modules, and a script that goes on from this machine's."""

from __future__ import annotations

import gzip
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SHARE: Final = "machine"
"""The share that is the root of this machine, read only."""
BOX: Final = "box"
"""The share that commands and what comes of them lie in."""
PLACE: Final = "/run/guest"
"""Where the second share is in the guest."""
_9P: Final = "trans=virtio,version=9p2000.L,msize=262144"
_INIT: Final = f"""#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /new
$b mount -t proc none /proc
for module in {{modules}}; do $b insmod /modules/$module; done
$b mount -t 9p -o ro,cache=loose,{_9P} {SHARE} /new
$b mount -t proc none /new/proc
$b mount -t sysfs none /new/sys
$b mount -t devtmpfs none /new/dev
for folder in run var/lib var/log; do $b mount -t tmpfs none /new/$folder; done
$b mkdir -p /new{PLACE} /new/dev/shm
$b mount -t tmpfs none /new/dev/shm
$b mount -t 9p -o cache=none,{_9P} {BOX} /new{PLACE}
$b cp $b /new/run/busybox
$b umount /proc
exec $b switch_root /new {PLACE}/begin
"""


def initrd(busybox: Path, modules: Sequence[Path]) -> bytes:
    """Return a compressed archive that the kernel unpacks as its first root."""
    files = {f"modules/{path.name}": (0o644, path.read_bytes()) for path in modules}
    files["bin/busybox"] = (0o755, busybox.read_bytes())
    names = " ".join(path.name for path in modules)
    files["init"] = (0o755, _INIT.format(modules=names).encode())
    return gzip.compress(archive(files), compresslevel=1)


def archive(files: dict[str, tuple[int, bytes]]) -> bytes:
    """
    Return a cpio archive in the `newc` form, with every file's folders before it.

    Args:
        files: path without a leading slash -> permissions and content.
    """
    folders = {str(parent) for path in files for parent in list(Path(path).parents)[:-1]}
    entries = [(name, stat.S_IFDIR | 0o755, b"") for name in sorted(folders)]
    entries += [(name, stat.S_IFREG | mode, data) for name, (mode, data) in sorted(files.items())]
    entries.append(("TRAILER!!!", 0, b""))
    return b"".join(_entry(n, *entry) for n, entry in enumerate(entries, start=1))


def _entry(inode: int, name: str, mode: int, data: bytes) -> bytes:
    """Inode, mode, two owners, links, time, size, four device numbers, length of name, no sum."""
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields)
    return _padded(head + name.encode() + b"\0") + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
