import gzip
import io
import json
import uuid
from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from tenure.manifests import Document, read_manifests

POD = "kind: Pod\nmetadata: {name: web}\n"


def documents(folder: Path, text: str, name: str = "f.yaml") -> tuple[Document, ...]:
    """Write one file and read it."""
    (folder / name).write_text(text, encoding="utf-8")
    return read_manifests([str(folder / name)]).documents


def refusal(folder: Path, text: str) -> str:
    """Read a file that must be refused; return the message without the folder."""
    with pytest.raises(InputError) as caught:
        documents(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    """Namespace default, uid UUIDv5 of the name, Nodes too (cli.md, Defaults)."""
    pod, node = documents(tmp_path, f"{POD}---\nkind: Node\nmetadata: {{name: n1}}\n")

    made = uuid.uuid5(uuid.NAMESPACE_URL, "tenure:Pod/default/web")
    assert (pod.namespace, pod.uid, pod.title) == ("default", str(made), "Pod default/web")
    assert pod.body["metadata"] == {"name": "web", "namespace": "default", "uid": str(made)}
    made = uuid.uuid5(uuid.NAMESPACE_URL, "tenure:Node//n1")
    assert (node.namespace, node.uid, node.title) == ("", str(made), "Node n1")


def test_a_text_of_null_is_empty(tmp_path: Path) -> None:
    """As the API server stores it, and as kubectl sends it."""
    (pod,) = documents(
        tmp_path, "kind: Pod\nmetadata: {name: a, annotations: {b: ~, c: null}, labels: {d: }}"
    )
    assert pod.body["metadata"]["annotations"] == {"b": "", "c": ""}
    assert pod.body["metadata"]["labels"] == {"d": ""}


def test_what_is_written_wins_over_defaults(tmp_path: Path) -> None:
    """An object of a real cluster keeps its identity."""
    (pod,) = documents(tmp_path, "kind: Pod\nmetadata: {name: a, namespace: b, uid: c}")

    assert (pod.name, pod.namespace, pod.uid) == ("a", "b", "c")


def test_a_generated_name_gets_the_place_in_the_input(tmp_path: Path) -> None:
    """Two Pods of one template get different names, the same ones on every run."""
    template = "kind: Pod\nmetadata: {generateName: job-}\n"
    names = [d.name for d in documents(tmp_path, f"{POD}---\n{template}---\n{template}")]

    assert names == ["web", "job-00001", "job-00002"]


def test_lists_are_opened(tmp_path: Path) -> None:
    """A List in a List, and a typed list whose items say no kind, as the API server sends them."""
    inner = {"kind": "PodList", "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]}
    outer = {"kind": "List", "items": [inner, {"kind": "Node", "metadata": {"name": "n"}}]}

    found = documents(tmp_path, json.dumps(outer), "f.json")

    assert [document.title for document in found] == ["Pod default/a", "Pod default/b", "Node n"]


@pytest.mark.parametrize("items", ["", "items:", "items: []"])
def test_an_empty_list_is_no_object(tmp_path: Path, items: str) -> None:
    """Go leaves out what is empty: a List without items is not an object called List."""
    assert documents(tmp_path, f"kind: List\napiVersion: v1\n{items}\n") == ()


def test_a_directory_gives_its_manifests_by_name(tmp_path: Path) -> None:
    """Other files and folders are left alone."""
    for name in ("b.yaml", "a.yml", "c.json", "README.md"):
        text = POD.replace("web", name[0])
        if name.endswith("json"):
            text = json.dumps({"kind": "Pod", "metadata": {"name": "c"}})
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "d.yaml").mkdir()

    found = read_manifests([str(tmp_path)]).documents

    assert [document.name for document in found] == ["a", "b", "c"]


def test_files_come_in_argument_order_and_stdin_among_them(tmp_path: Path) -> None:
    """Order decides who is placed first, so it is the order on the command line."""
    (tmp_path / "z.yaml").write_text(POD.replace("web", "z"), encoding="utf-8")
    (tmp_path / "a.yaml").write_text(POD.replace("web", "a"), encoding="utf-8")
    paths = [str(tmp_path / "z.yaml"), "-", str(tmp_path / "a.yaml")]

    found = read_manifests(paths, stdin=io.BytesIO(POD.encode())).documents

    assert [document.name for document in found] == ["z", "web", "a"]
    assert found[1].place("kind") == "stdin:1"


def test_an_object_of_others_may_have_no_name(tmp_path: Path) -> None:
    """A directory of manifests often holds a kustomization.yaml; two of them are no duplicate."""
    text = "kind: Kustomization\nresources: []\n"
    found = documents(tmp_path, f"{text}---\n{text}---\n{POD}")

    assert [document.name for document in found] == ["", "", "web"]


def test_what_others_own_is_never_an_error(tmp_path: Path) -> None:
    """Two groups may have one kind and name, and their objects may look as they like."""
    text = (
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: x}\n---\n"
        "apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: x}\n---\n"
        "apiVersion: longhorn.io/v1\nkind: Node\nmetadata: {name: m, labels: {a: 1}}\n---\n"
        "kind: Odd\nmetadata: 3\n---\n"
        "apiVersion: v1\nkind: Node\nmetadata: {name: m}\n"
    )
    found = documents(tmp_path, text)

    kinds = ["Ingress", "Ingress", "Node.longhorn.io", "Odd", "Node"]
    assert [document.kind for document in found] == kinds
    assert [document.ours for document in found] == [False, False, False, False, True]
    assert [d.number for d in read_manifests([str(tmp_path)]).of_kind("Node")] == [4]


def test_the_digest_is_of_the_bytes(tmp_path: Path) -> None:
    """The same text under another name is the same input; another text is not."""
    digests = []
    for name, text in (("a.yaml", POD), ("b.yaml", POD), ("c.yaml", f"{POD}# end\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        digests.append(read_manifests([str(tmp_path / name)]).digest)

    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            f"{POD}---\n# again\n{POD}",
            "f.yaml:6: Pod default/web: metadata.name: duplicate value 'web', also at f.yaml:2: "
            "Pod default/web",
            id="one name twice",
        ),
        pytest.param(
            "kind: Pod\nmetadata: {name: a, uid: u}\n---\nkind: Pod\nmetadata:\n  name: b\n"
            "  uid: u\n",
            "f.yaml:7: Pod default/b: metadata.uid: duplicate value 'u', also at f.yaml:2: Pod "
            "default/a",
            id="one uid twice",
        ),
        pytest.param(
            "kind: Pod\nmetadata: {}\n", "f.yaml:2: Pod: metadata.name: required", id="no name"
        ),
        pytest.param("metadata:\n  name: a\n", "f.yaml:1: kind: required", id="no kind"),
        pytest.param("kind: 5\n", "f.yaml:1: kind: must be text, is the number 5", id="kind 5"),
        pytest.param("- a\n", "f.yaml:1: not a Kubernetes object but an array", id="an array"),
        pytest.param(
            "kind: Pod\nmetadata:\n  name: a\n  labels:\n    x: z\n    team: no\n",
            "f.yaml:6: Pod: metadata.labels[team]: must be text, is the boolean false (YAML reads "
            "yes, no, on and off as booleans): put it in quotes",
            id="a label of no",
        ),
        pytest.param(
            "kind: Pod\nmetadata:\n  name: 12\n",
            "f.yaml:3: Pod: metadata.name: must be text, is the number 12: put it in quotes",
            id="a name of digits",
        ),
        pytest.param(
            "kind: List\nitems:\n- kind: Pod\n  metadata: {name: a}\n- kind: Pod\n  metadata: 3\n",
            "f.yaml:6: Pod: metadata: must be an object, is the number 3",
            id="inside a list",
        ),
        pytest.param("kind: List\nitems: 3\n", "f.yaml:2: items: must be an array", id="no array"),
    ],
)
def test_an_object_that_makes_no_sense_is_an_error_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    """File, line, object and field: enough to correct it without a search."""
    assert refusal(tmp_path, text).startswith(message)


def test_an_error_found_later_gets_file_line_and_object(tmp_path: Path) -> None:
    """Whoever decodes the body says the field; the document knows where that is."""
    text = json.dumps(
        {"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "a"}, "spec": {"x": 1}}]},
        indent=1,
    )
    (document,) = documents(tmp_path, text, "f.json")

    blamed = document.blame(InputError("not a quantity", field="spec.x"))

    line = text.splitlines().index('    "x": 1') + 1
    assert str(blamed) == f"{tmp_path}/f.json:{line}: Pod default/a: spec.x: not a quantity"


@pytest.mark.parametrize(
    ("paths", "fact"),
    [
        pytest.param(["no.yaml"], "no such file or directory", id="a missing file"),
        pytest.param(
            ["."], "no *.yaml, *.yml or *.json in this directory", id="an empty directory"
        ),
        pytest.param(["-", "-"], "stdin can be read once", id="stdin twice"),
    ],
)
def test_a_path_that_gives_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], fact: str
) -> None:
    """A typing error must not look like an empty cluster."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        read_manifests(paths, stdin=io.BytesIO(b""))
    assert fact in str(caught.value)


def test_a_table_is_told_from_objects() -> None:
    """Whoever forgot `-o json` is told so."""
    table = "NAME   STATUS   ROLES    AGE   VERSION\nn1     Ready    <none>   5d    v1.36.0\n"
    with pytest.raises(InputError, match="a table of kubectl's") as caught:
        read_manifests(["-"], stdin=io.BytesIO(table.encode()))
    assert caught.value.__notes__ == ["add -o json to the kubectl command"]


def test_packed_files_of_a_directory_are_read_too(tmp_path: Path) -> None:
    """A dump is large, and packs well."""
    (tmp_path / "b.json.gz").write_bytes(
        gzip.compress(b'{"kind": "Node", "metadata": {"name": "n"}}')
    )
    (tmp_path / "b.tar.gz").write_bytes(b"nothing of ours")
    assert [each.name for each in read_manifests([str(tmp_path)]).documents] == ["n"]
