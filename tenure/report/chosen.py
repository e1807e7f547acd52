"""Which nodes of a map are shown: by name, by the model of their cards, by whose Pods are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.output import one_line

if TYPE_CHECKING:
    from agent.decide.cpus_now import CpusNow
    from scheduler.usage.picture import CardGroup, Contradicted, NodeNow, Picture

_LIKE_MAX: Final = 3
_ABOUT_NODES: Final = ("Node", "Device", "NodeResourceTopology")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """
    What is asked for. A node is shown where each of them that is not empty has a word for it.

    Attributes:
        models: whatever their case.
        namespaces: of Pods that hold something of the node.
    """

    nodes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Tell whether anything is left out at all."""
        return bool(self.nodes or self.models or self.namespaces)

    def __str__(self) -> str:
        return " ".join(
            f"--{option} {','.join(words)}"
            for option, words in (
                ("node", self.nodes),
                ("model", self.models),
                ("namespace", self.namespaces),
            )
            if words
        )


def words_of(text: str) -> tuple[str, ...]:
    """Return names and patterns (`*`, `?`, `[a-c]`) that commas divide."""
    return tuple(word for each in text.split(",") if (word := each.strip()))


def chosen(picture: Picture, choice: Choice) -> Picture:
    """
    Return the nodes that are asked for, of a model that is asked for the cards of that model alone.

    What is said of a Pod that nobody can tell a node of stays, but for another namespace's.

    Raises:
        InputError: there is none.
    """
    if not choice:
        return picture
    nodes = [
        replace(node, groups=groups, sums=node.sums if groups == node.groups else None)
        for node in picture.nodes
        if _is_node(node.name, choice.nodes)
        if (groups := _groups(node, choice.models)) or not choice.models
        if _is_held(_namespaces(node), choice.namespaces)
    ]
    if not nodes:
        raise _nothing(
            choice,
            nodes=(node.name for node in picture.nodes),
            models=(group.model for node in picture.nodes for group in node.groups),
            namespaces=(name for node in picture.nodes for name in _namespaces(node)),
        )
    shown = {node.name for node in nodes}
    left_out = {node.name for node in picture.nodes} - shown
    return replace(
        picture,
        nodes=tuple(nodes),
        double=tuple(each for each in picture.double if each.node in shown),
        contradictions=tuple(
            each for each in picture.contradictions if _concerns(each, left_out, choice)
        ),
    )


def chosen_cpus(nodes: Sequence[CpusNow], choice: Choice) -> Sequence[CpusNow]:
    """
    Return the nodes that are asked for.

    Raises:
        InputError: there is none, or a model is asked for.
    """
    if choice.models:
        error = InputError("CPUs are told without a model", field="--model")
        raise with_next(error, "leave it out, or leave --cpus out")
    found = [
        node
        for node in nodes
        if _is_node(node.node, choice.nodes) and _is_held(_owners(node), choice.namespaces)
    ]
    if choice and not found:
        raise _nothing(
            choice,
            nodes=(node.node for node in nodes),
            namespaces=(name for node in nodes for name in _owners(node)),
        )
    return found


def _is_one(name: str, words: Sequence[str]) -> bool:
    return not words or any(fnmatchcase(name, word) for word in words)


def _is_node(name: str, words: Sequence[str]) -> bool:
    """Tell of a node's name; without its domain too, as the map may draw it."""
    return _is_one(name, words) or _is_one(name.partition(".")[0], words)


def _is_model(name: str, words: Sequence[str]) -> bool:
    return _is_one(name.casefold(), [word.casefold() for word in words])


def _is_held(namespaces: Iterable[str], words: Sequence[str]) -> bool:
    return not words or any(_is_one(name, words) for name in namespaces)


def _groups(node: NodeNow, models: Sequence[str]) -> tuple[CardGroup, ...]:
    return tuple(group for group in node.groups if _is_model(group.model, models))


def _namespaces(node: NodeNow) -> set[str]:
    unplaced = {pod.namespace for group in node.groups for pod in group.unplaced}
    cards = (card for group in node.groups for card in group.devices)
    return unplaced | {holder.namespace for card in cards for holder in card.holders}


def _owners(node: CpusNow) -> set[str]:
    return {holder.pod.partition("/")[0] for holder in node.holders}


def _concerns(each: Contradicted, left_out: set[str], choice: Choice) -> bool:
    kind, _, name = each.object.partition(" ")
    if kind in _ABOUT_NODES:
        return name not in left_out
    namespace = name.partition("/")[0]
    return kind != "Pod" or _is_one(namespace, choice.namespaces)


def _nothing(
    choice: Choice,
    *,
    nodes: Iterable[str],
    models: Iterable[str] = (),
    namespaces: Iterable[str] = (),
) -> InputError:
    """Return the error that says which word has nothing, with what looks like it."""
    looks: tuple[tuple[str, str, Sequence[str], Iterable[str], Callable[..., bool]], ...] = (
        ("node", "no node is called", choice.nodes, nodes, _is_node),
        ("model", "no card is of model", choice.models, models, _is_model),
        ("namespace", "nothing is held by namespace", choice.namespaces, namespaces, _is_one),
    )
    for option, fact, words, names, fits in looks:
        known = sorted(set(names) - {""})
        if words and not any(fits(name, words) for name in known):
            error = InputError(f"{fact} {' or '.join(words)}", field=f"--{option}")
            return with_next(error, _did_you_mean(words, known, option))
    error = InputError("no node is all of that", field=str(choice))
    return with_next(error, "leave one of them out")


def _did_you_mean(words: Sequence[str], known: Sequence[str], option: str) -> str:
    by_fold = {
        each: name
        for name in known
        for each in (name.partition(".")[0].casefold(), name.casefold())
    }
    like: list[str] = []
    for word in words:
        core = word.strip("*?").casefold()
        like += [name for fold, name in by_fold.items() if core and core in fold]
        like += [by_fold[fold] for fold in get_close_matches(core, by_fold, n=_LIKE_MAX)]
    if like:
        names = list(dict.fromkeys(like))[:_LIKE_MAX]
        return f"did you mean {' or '.join(one_line(name) for name in names)}?"
    first = f", such as {one_line(known[0])}" if known else ""
    return f"there are {len(known):,} {option}s{first}; * stands for any letters"
