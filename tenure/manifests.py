"""Kubernetes manifests from files, directories and stdin: everything is read before any is used."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from ledger.domain.annotations.tenure import as_namespace_says
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import section, text_in
from ledger.domain.kube.runtime_classes import with_runtime_class
from scheduler.cluster import documents
from tenure.exits import warn, with_next
from tenure.sources.text import InputFile, read_source, read_stream
from tenure.sources.yaml_text import yaml_documents

if TYPE_CHECKING:
    from scheduler.cluster.model import Cluster

DOCUMENTS_MAX: Final = 2_000_000
STDIN: Final = "-"

OURS: Final = {
    "Node": "",
    "Device": "scheduling.koordinator.sh",
    "NodeResourceTopology": "topology.node.k8s.io",
    "Pod": "",
    "ConfigMap": "",
    "Namespace": "",
    "ResourceQuota": "",
    "RuntimeClass": "node.k8s.io",
}
"""The kinds that mean something to Tenure (cli.md, Input), and the API group of each."""

_CLUSTER_SCOPED: Final = frozenset(
    {"Node", "Device", "NodeResourceTopology", "Namespace", "RuntimeClass"}
)
_ENDINGS: Final = (".json", ".yaml", ".yml", ".json.gz", ".yaml.gz", ".yml.gz")
_TABLE: Final = re.compile(r"(?:NAMESPACE|NAME) +[A-Z][A-Z-]+ ")
"""How kubectl's tables begin."""
_LIST_DEPTH_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Document(documents.Document):
    """
    One API object of the input, with the defaults of cli.md filled in.

    Objects of others are kept, and never an error; they may have no namespace, name and UID.

    Attributes:
        metadata: its metadata as written, without what was filled in.
        number, path: where it stands in its source: the document, and `items[3]` inside a List.
    """

    metadata: dict[str, Any]
    source: InputFile
    number: int
    path: str

    def place(self, field: str = "") -> str:
        """Return `file:line` of a field, or of its nearest parent that exists."""
        return self.source.place_of(self.number, _join(self.path, field))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """All objects of the input in its order, and the hex SHA-256 of the bytes they came from."""

    documents: tuple[Document, ...]
    digest: str

    def of_kind(self, kind: str) -> tuple[Document, ...]:
        """Return the objects of one kind of ours, in input order."""
        return tuple(
            document for document in self.documents if document.ours and document.kind == kind
        )

    def documents_in(self, name: str, text: str) -> tuple[Any, ...]:
        """Return YAML documents inside an object. Raises InputError: broken YAML; with its line."""
        return yaml_documents(name, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spot:
    """A value inside a source; `kind` is what a typed list around it says of its items."""

    source: InputFile
    number: int
    path: str = ""
    kind: str = ""
    depth: int = 0

    def place(self, field: str = "") -> str:
        return self.source.place_of(self.number, _join(self.path, field))


def as_admitted(manifests: Manifests) -> Manifests:
    """
    Return the objects with what the Namespaces and RuntimeClasses among them say of their Pods.

    A Pod whose Namespace is not there keeps what it says itself; one with a UID has been admitted
    and keeps what its class gave it then.
    """
    namespaces = {
        one.name: section(one.metadata, "labels") for one in manifests.of_kind("Namespace")
    }
    classes = {one.name: one.body for one in manifests.of_kind("RuntimeClass")}

    def told(document: Document) -> Document:
        if not document.ours or document.kind != "Pod":
            return document
        name = text_in(document.body, "spec", "runtimeClassName")
        if name in classes and "uid" not in document.metadata:
            with contextlib.suppress(InputError):  # decoding says what can't be read
                body, errors = with_runtime_class(document.body, classes)
                document = replace(document, body=dict(body), errors=errors)
        metadata = document.body["metadata"]
        before = metadata.get("annotations") or {}
        if document.namespace not in namespaces or not isinstance(before, dict):
            return document
        after = as_namespace_says(before, namespaces[document.namespace])
        if after == before:
            return document
        body = {**document.body, "metadata": metadata | {"annotations": after}}
        return replace(document, body=body)

    return replace(manifests, documents=tuple(map(told, manifests.documents)))


def warn_of(cluster: Cluster, files: Sequence[str]) -> None:
    """Warn of what objects leave unsaid or unreadable. Raises InputError: there is no Node."""
    for text in (*cluster.warnings, *map(str, cluster.unreadable)):
        warn(text)
    if not cluster.nodes:
        error = InputError("no Node in the input", place=", ".join(files))
        raise with_next(error, "kubectl get nodes,pods -A -o json | tenure map -")


def read_manifests(paths: Sequence[str], *, stdin: BinaryIO | None = None) -> Manifests:
    """
    Read every object of these files and directories, in argument order.

    Rule: cli.md, `tenure simulate`, Input and Defaults.

    Lists are opened, also nested ones. A directory gives its *.json, *.yaml and *.yml by name,
    `-` is stdin. Objects of any kind are kept: the caller knows which ones it uses.

    Raises:
        InputError: a missing file, broken text, an object without kind, and of our kinds one
            without a name or two with one uid or one name; with file and line.
    """
    if sum(path == STDIN for path in paths) > 1:
        raise InputError("stdin can be read once", field=STDIN)
    sources = [source for path in paths for source in _sources(path, stdin)]
    documents: list[Document] = []
    digest = hashlib.sha256()
    for source in sources:
        digest.update(hashlib.sha256(source.text.encode()).digest())
        for number, value in enumerate(source.documents):
            for spot, body in _objects(_Spot(source=source, number=number), value):
                documents.append(_document(spot, body, len(documents)))
                if len(documents) > DOCUMENTS_MAX:
                    raise InputError(f"more than {DOCUMENTS_MAX} objects", place=source.name)
    _refuse_duplicates(documents)
    return Manifests(documents=tuple(documents), digest=digest.hexdigest())


def _sources(path: str, stdin: BinaryIO | None) -> Iterator[InputFile]:
    if path == STDIN:
        source = read_stream(stdin or sys.stdin.buffer, "stdin")
        if not source.text.strip():
            error = InputError("nothing came in", place="stdin")
            raise with_next(error, "run the command before the pipe alone and see what it prints")
        yield source
        return
    place = Path(path)
    if not place.is_dir():
        yield read_source(place)
        return
    files = sorted(
        file for file in place.iterdir() if file.name.endswith(_ENDINGS) and file.is_file()
    )
    if not files:
        error = InputError("no *.yaml, *.yml or *.json in this directory", place=path)
        raise with_next(error, "name the files, or the directory that holds them")
    for file in files:
        yield read_source(file)


def _objects(spot: _Spot, value: object) -> Iterator[tuple[_Spot, dict[str, Any]]]:
    if value is None and not spot.path:
        return  # an empty document between two `---`
    if not isinstance(value, dict):
        if isinstance(value, str) and _TABLE.match(value):
            error = InputError("a table of kubectl's, not objects", place=spot.place())
            raise with_next(error, "add -o json to the kubectl command")
        fact = f"not a Kubernetes object but {_type_of(value)}"
        raise InputError(fact, place=spot.place())
    kind = value.get("kind", spot.kind)
    if not isinstance(kind, str) or not kind:
        fact = "required" if kind in ("", None) else f"must be text, is {_type_of(kind)}"
        raise InputError(fact, field="kind", place=spot.place("kind"))
    if kind == "List" or ("items" in value and kind.endswith("List")):
        yield from _items(replace(spot, kind=kind.removesuffix("List")), value.get("items"))
        return
    value["kind"] = kind
    yield spot, value


def _items(spot: _Spot, items: object) -> Iterator[tuple[_Spot, dict[str, Any]]]:
    if spot.depth > _LIST_DEPTH_MAX:
        fact = f"lists nested deeper than {_LIST_DEPTH_MAX}"
        raise InputError(fact, field="items", place=spot.place("items"))
    if items is not None and not isinstance(items, list):
        fact = f"must be an array, is {_type_of(items)}"
        raise InputError(fact, field="items", place=spot.place("items"))
    below = _join(spot.path, "items")
    for place, item in enumerate(items or ()):
        inside = replace(spot, path=f"{below}[{place}]", depth=spot.depth + 1)
        yield from _objects(inside, item)


def _document(spot: _Spot, body: dict[str, Any], index: int) -> Document:
    kind, ours = _kind(body)
    try:
        metadata, namespace = _metadata(kind, body, index) if ours else _others_metadata(body)
    except InputError as error:
        raise error.at(f"{spot.place(error.field)}: {kind}") from None
    written = body.get("metadata")
    body["metadata"] = metadata
    return Document(
        kind=kind,
        ours=ours,
        namespace=namespace,
        name=metadata["name"],
        uid=metadata["uid"],
        body=body,
        metadata=dict(section(written)),
        source=spot.source,
        number=spot.number,
        path=spot.path,
    )


def _kind(body: dict[str, Any]) -> tuple[str, bool]:
    kind, version = body["kind"], body.get("apiVersion")
    if kind not in OURS or not isinstance(version, str):
        return kind, kind in OURS
    group = version.rpartition("/")[0]
    return (kind, True) if group == OURS[kind] else (f"{kind}.{group}" if group else kind, False)


def _others_metadata(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return what can be told of an object that is not ours: it is named, and not checked."""
    metadata = section(body, "metadata")
    texts = {key: text_in(metadata, key) for key in ("name", "namespace", "uid")}
    return {**metadata, **texts}, texts["namespace"]


def _metadata(kind: str, body: dict[str, Any], index: int) -> tuple[dict[str, Any], str]:
    metadata = _map(body, "metadata")
    for texts in ("labels", "annotations"):
        _keep_texts(_map(metadata, texts, "metadata."), f"metadata.{texts}")
    generated = _text(metadata, "generateName")
    name = _text(metadata, "name") or (f"{generated}{index:05d}" if generated else "")
    if not name:
        raise InputError("required", field="metadata.name")
    written = _text(metadata, "namespace")
    namespace = "" if kind in _CLUSTER_SCOPED else written or "default"
    made = uuid.uuid5(uuid.NAMESPACE_URL, f"tenure:{kind}/{namespace}/{name}")
    filled = metadata | {"name": name, "uid": _text(metadata, "uid") or str(made)}
    return (filled | {"namespace": namespace} if namespace else filled), namespace


def _refuse_duplicates(documents: Sequence[Document]) -> None:
    names: dict[tuple[str, str, str], Document] = {}
    uids: dict[str, Document] = {}
    for document in documents:
        if not document.ours:
            continue
        key = (document.kind, document.namespace, document.name)
        for seen, field in (
            (names.get(key), "metadata.name"),
            (uids.get(document.uid), "metadata.uid"),
        ):
            if seen is not None and _is_again(seen.source, document.source):
                error = InputError("the file is given twice", place=document.source.name)
                error.add_note("name each file once")
                raise error
            if seen is not None:
                value = document.name if field == "metadata.name" else document.uid
                fact = f"duplicate value {value!r}, also at {seen.place(field)}: {seen.title}"
                raise document.blame(InputError(fact, field=field))
        names[key] = uids[document.uid] = document


def _is_again(first: InputFile, second: InputFile) -> bool:
    return first is not second and first.name == second.name


def _map(parent: dict[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"must be an object, is {_type_of(value)}", field=f"{prefix}{key}")
    return value


def _text(metadata: dict[str, Any], key: str) -> str:
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(_not_text(value), field=f"metadata.{key}")
    return value or ""


def _keep_texts(texts: dict[str, Any], field: str) -> None:
    """Make null an empty text, as the API server stores it, and refuse what is none."""
    for key, value in texts.items():
        if value is None:
            texts[key] = ""
        elif not isinstance(value, str):
            raise InputError(_not_text(value), field=f"{field}[{key}]")


def _not_text(value: object) -> str:
    hint = "" if isinstance(value, (dict, list)) else ": put it in quotes"
    return f"must be text, is {_type_of(value)}{hint}"


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return f"the boolean {str(value).lower()} (YAML reads yes, no, on and off as booleans)"
        case int() | float():
            return f"the number {value}"
        case str():
            return "text"
        case list():
            return "an array"
        case _:
            return "an object"


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path and field and not field.startswith("[") else path + field
