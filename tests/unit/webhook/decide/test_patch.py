from __future__ import annotations

import copy

import jsonpatch
import pytest

from tests.support.objects import Object
from webhook.decide.patch import diff


def operations(before: Object, after: Object) -> list[Object]:
    """Return the patch as JSON, after making sure that it does what it is for."""
    shown = [operation.as_json() for operation in diff(before, after)]
    assert jsonpatch.apply_patch(copy.deepcopy(before), shown) == after
    return shown


def test_equal_objects_need_no_operation() -> None:
    """A Pod that is as it should be gets an empty patch."""
    assert operations({"a": {"b": [1, {"c": None}]}}, {"a": {"b": [1, {"c": None}]}}) == []


def test_a_missing_parent_is_added_whole() -> None:
    """An `add` below a parent that is not there would fail."""
    assert operations({"metadata": {}}, {"metadata": {"annotations": {"a": "b"}}}) == [
        {"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}
    ]


def test_an_existing_parent_is_not_replaced() -> None:
    """Another writer's annotation is not in our patch."""
    before = {"annotations": {"theirs": "1"}}

    assert operations(before, {"annotations": {"theirs": "1", "ours": "2"}}) == [
        {"op": "add", "path": "/annotations/ours", "value": "2"}
    ]


def test_a_value_is_tested_before_it_is_replaced() -> None:
    """A patch made from an older object fails instead of undoing a change."""
    assert operations({"spec": {"a": 1}}, {"spec": {"a": 2}}) == [
        {"op": "test", "path": "/spec/a", "value": 1},
        {"op": "replace", "path": "/spec/a", "value": 2},
    ]


def test_a_value_is_tested_before_it_is_removed() -> None:
    """So does a patch that takes something away."""
    assert operations({"a": {"b": 1}}, {"a": {}}) == [
        {"op": "test", "path": "/a/b", "value": 1},
        {"op": "remove", "path": "/a/b"},
    ]


def test_slash_and_tilde_in_names_are_escaped() -> None:
    """RFC 6901: `~` is `~0` and `/` is `~1`, in this order."""
    assert operations({"m": {}}, {"m": {"tenure.sh/a~1b": "x"}}) == [
        {"op": "add", "path": "/m/tenure.sh~1a~01b", "value": "x"}
    ]


def test_an_empty_name_is_a_place_too() -> None:
    """RFC 6901: `/a/` is the member with the empty name."""
    assert operations({"a": {"": 1}}, {"a": {"": 2}}) == [
        {"op": "test", "path": "/a/", "value": 1},
        {"op": "replace", "path": "/a/", "value": 2},
    ]


def test_true_is_not_one() -> None:
    """Python's equality is not JSON's."""
    assert operations({"a": 1}, {"a": True}) == [
        {"op": "test", "path": "/a", "value": 1},
        {"op": "replace", "path": "/a", "value": True},
    ]


def test_null_counts_as_absent() -> None:
    """The API server drops nulls: what stands there may be added without a test."""
    shown = [operation.as_json() for operation in diff({"a": None}, {"a": {"b": 1}, "c": None})]

    assert shown == [{"op": "add", "path": "/a", "value": {"b": 1}}]


LISTS = {
    "added at the end": ([1, 2], [1, 2, 3], [("add", "/l/2")]),
    "added at the start": ([1, 2], [0, 1, 2], [("add", "/l/0")]),
    "added between": ([1, 2], [1, 9, 2], [("add", "/l/1")]),
    "removed at the end": (
        [1, 2, 3],
        [1],
        [("test", "/l/2"), ("remove", "/l/2"), ("test", "/l/1"), ("remove", "/l/1")],
    ),
    "replaced": ([1, 2, 3], [1, 9, 3], [("test", "/l/1"), ("replace", "/l/1")]),
    "emptied": ([1], [], [("test", "/l/0"), ("remove", "/l/0")]),
    "inside": ([{"a": 1, "b": 1}], [{"a": 1, "b": 2}], [("test", "/l/0/b"), ("replace", "/l/0/b")]),
}


@pytest.mark.parametrize("case", LISTS.values(), ids=LISTS)
def test_only_what_differs_in_a_list_is_touched(
    case: tuple[list[object], list[object], list[tuple[str, str]]],
) -> None:
    """Entries before and after the change keep their operations to themselves."""
    before, after, expected = case

    shown = operations({"l": before}, {"l": after})

    assert [(one["op"], one["path"]) for one in shown] == expected


def test_diff_changes_neither_object() -> None:
    """Both are shared with whoever made them."""
    before, after = {"a": {"b": [1]}}, {"a": {"b": [1, 2], "c": {}}}
    kept = copy.deepcopy((before, after))

    diff(before, after)

    assert (before, after) == kept
