"""The list of a node's unhealthy GPUs, in a ConfigMap of its own."""

from __future__ import annotations

from ledger.domain.annotations.wire import is_number

# ConfigMap kube-system/unhealthy-gpu-<node>, key gpus: "0,3"


def decode_unhealthy_cards(text: str) -> tuple[frozenset[int], tuple[str, ...]]:
    """
    Return the card indexes to avoid, and the tokens that are no index.

    Rule: GPU-sharing contract B.3, "OURS": a token that does not parse is ignored and reported;
    it never condemns card 0. Blanks around an index are taken.
    """
    tokens = [token.strip() for token in text.split(",") if token.strip()]
    numbers = [token for token in tokens if is_number(token)]
    bad = tuple(token for token in tokens if not is_number(token))
    return frozenset(map(int, numbers)), bad
