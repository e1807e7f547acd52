"""Where a Pod lets kube-scheduler's own predicates put it: selector, affinity, tolerations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.annotations.wire import a_text, an_object, each
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import text_map
from ledger.domain.request.requests import MatchExpression, PlacementRules, Toleration

_AFFINITY: Final = "spec.affinity"
_NODE_AFFINITY: Final = f"{_AFFINITY}.nodeAffinity"
_REQUIRED: Final = f"{_NODE_AFFINITY}.requiredDuringSchedulingIgnoredDuringExecution"
_FIELD_NAME: Final = "metadata.name"

_SET_OPERATORS: Final = frozenset({"In", "NotIn"})
_PRESENCE_OPERATORS: Final = frozenset({"Exists", "DoesNotExist"})
_ORDER_OPERATORS: Final = frozenset({"Gt", "Lt"})
_TOLERATION_OPERATORS: Final = frozenset({"Equal", "Exists"})
_TOLERATION_EFFECTS: Final = frozenset({"", "NoSchedule", "PreferNoSchedule", "NoExecute"})

ANYWHERE: Final = PlacementRules()


def placement_rules(spec: Mapping[str, object]) -> PlacementRules:
    """
    Read node selector, required node affinity and tolerations of a Pod's `spec`.

    Rule: cli.md, Predicates; as kube-scheduler: terms are ORed, a term without expressions
    matches no node, and required affinity without such a term matches none at all.

    Raises:
        InputError: a wrong type, an unknown operator, or values that the operator does not take.
    """
    selector = spec.get("nodeSelector")
    affinity = spec.get("affinity")
    tolerations = spec.get("tolerations")
    if selector is None and affinity is None and tolerations is None:
        return ANYWHERE
    return PlacementRules(
        node_selector=tuple(sorted(text_map(selector, "spec.nodeSelector").items())),
        affinity_terms=_affinity_terms(an_object(affinity, _AFFINITY)),
        tolerations=each(tolerations, "spec.tolerations", _toleration),
    )


def _affinity_terms(
    affinity: Mapping[str, object],
) -> tuple[tuple[MatchExpression, ...], ...] | None:
    node_affinity = an_object(affinity.get("nodeAffinity"), _NODE_AFFINITY)
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return None
    terms = an_object(required, _REQUIRED).get("nodeSelectorTerms")
    read = each(terms, f"{_REQUIRED}.nodeSelectorTerms", _term)
    return tuple(term for term in read if term)


def _term(value: object, path: str) -> tuple[MatchExpression, ...]:
    term = an_object(value, path)
    return (
        *each(term.get("matchExpressions"), f"{path}.matchExpressions", _label_expression),
        *each(term.get("matchFields"), f"{path}.matchFields", _field_expression),
    )


def _label_expression(value: object, path: str) -> MatchExpression:
    return _expression(value, path, is_field=False)


def _field_expression(value: object, path: str) -> MatchExpression:
    expression = _expression(value, path, is_field=True)
    if expression.key != _FIELD_NAME or expression.operator not in _SET_OPERATORS:
        raise InputError(f"only {_FIELD_NAME} with In or NotIn is a node field", field=path)
    return expression


def _expression(value: object, path: str, *, is_field: bool) -> MatchExpression:
    item = an_object(value, path)
    key = a_text(item.get("key"), f"{path}.key")
    operator = a_text(item.get("operator"), f"{path}.operator")
    values = each(item.get("values"), f"{path}.values", a_text)
    if not key:
        raise InputError("missing; expected a label key", field=f"{path}.key")
    if operator in _SET_OPERATORS:
        proper = bool(values)
    elif operator in _PRESENCE_OPERATORS:
        proper = not values
    elif operator in _ORDER_OPERATORS:
        proper = len(values) == 1 and _is_integer(values[0])
    else:
        raise InputError(
            f"not one of In, NotIn, Exists, DoesNotExist, Gt, Lt: value={operator!r}",
            field=f"{path}.operator",
        )
    if not proper:
        raise InputError(
            f"operator {operator} does not take these: value={list(values)}", field=f"{path}.values"
        )
    return MatchExpression(key=key, operator=operator, values=values, is_field=is_field)


def _is_integer(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20


def _toleration(value: object, path: str) -> Toleration:
    item = an_object(value, path)
    operator = a_text(item.get("operator"), f"{path}.operator") or "Equal"
    effect = a_text(item.get("effect"), f"{path}.effect")
    key = a_text(item.get("key"), f"{path}.key")
    text = a_text(item.get("value"), f"{path}.value")
    if operator not in _TOLERATION_OPERATORS:
        raise InputError(f"not one of Equal, Exists: value={operator!r}", field=f"{path}.operator")
    if effect not in _TOLERATION_EFFECTS:
        raise InputError(
            f"not one of NoSchedule, PreferNoSchedule, NoExecute: value={effect!r}",
            field=f"{path}.effect",
        )
    if not key and operator != "Exists":
        raise InputError("operator Equal needs a key", field=f"{path}.key")
    if operator == "Exists" and text:
        raise InputError(f"operator Exists takes no value: value={text!r}", field=f"{path}.value")
    return Toleration(key=key, operator=operator, value=text, effect=effect)
