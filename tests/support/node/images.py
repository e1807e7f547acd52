"""Images from nothing: an OCI layout in a tar, with one program in one layer."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from importlib.util import cache_from_source
from pathlib import Path, PurePath
from typing import Any, Final

_OCI: Final = "application/vnd.oci.image"


def image(
    path: Path,
    *,
    name: str,
    program: Path,
    arguments: Sequence[str],
    more: Mapping[str, Path] | None = None,
) -> Path:
    """
    Write an image that runs one program of its own, and return its file.

    Modules come with their bytecode, if it is there: else each container compiles them anew.
    """
    contents = {"show": program, **(more or {})}
    for at, file in list(contents.items()):
        bytecode = Path(cache_from_source(str(file))) if file.suffix == ".py" else file
        if bytecode != file and bytecode.exists():
            contents[str(PurePath(at).parent / "__pycache__" / bytecode.name)] = bytecode
    layer = _tar(
        {name: file.read_bytes() for name, file in contents.items()},
        mode=0o755,
        times={name: int(file.stat().st_mtime) for name, file in contents.items()},
    )
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/show", *arguments]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": _described(config, "config.v1+json"),
            "layers": [_described(layer, "layer.v1.tar")],
        }
    )
    entry = _described(manifest, "manifest.v1+json")
    entry["annotations"] = {"io.containerd.image.name": name}
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [entry]}),
    }
    for blob in (layer, config, manifest):
        files[f"blobs/sha256/{_digest(blob).partition(':')[2]}"] = blob
    path.write_bytes(_tar(files))
    return path


def _described(blob: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": f"{_OCI}.{kind}", "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _tar(
    files: Mapping[str, bytes], mode: int = 0o644, times: Mapping[str, int] | None = None
) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            entry.mtime = (times or {}).get(name, 0)
            archive.addfile(entry, io.BytesIO(content))
    return into.getvalue()
