"""The scene of docs/recovery.md as files: a backup of a morning, and what the world has seen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ledger.domain.annotations.signed_allocation import encode_signed_allocation
from ledger.signing import PrivateKey
from ledger.store.open import open_ledger
from tests.support.ledgers import morning, write_ledger
from tests.support.recovery import allocation, witness


def make_scene(tmp_path: Path) -> Path:
    """Make a backup from before 09:00, the Pods of the morning, a witness and a key, as files."""
    key = PrivateKey.new("tenure")
    (tmp_path / "tenure.vkey").write_text(f"{key.public}\n", encoding="utf-8")
    backup = write_ledger(tmp_path / "backup.db", morning()[:4])
    whole = write_ledger(tmp_path / "whole.db", morning())
    pods = []
    with open_ledger(str(whole), mode="read") as ledger:
        seen = witness(ledger, "agent gpu-a")
        for each in ledger.read_events():
            if each.envelope.event_type == "pod.reserved.v1":
                signed = allocation(ledger, each)
                key_id = f"tenure+{key.public.key_hash.hex()}"
                metadata = {"name": signed.pod_name, "namespace": "ml", "uid": signed.pod_uid}
                notes = encode_signed_allocation(signed, key=key_id, sign=key.sign)
                pods.append(
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": {**metadata, "annotations": notes},
                        "spec": {"nodeName": signed.node_name},
                        "status": {"phase": "Running"},
                    }
                )
    pods[0]["status"] = {"phase": "Succeeded"}  # nb-7 ended after the backup
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "List", "items": pods}))
    words = {name: getattr(seen, name) for name in seen.__dataclass_fields__}
    (tmp_path / "witness.yaml").write_text(json.dumps([words]))
    shutil.copy(backup, tmp_path / "tenure.db")
    return tmp_path
