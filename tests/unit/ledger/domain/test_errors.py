from __future__ import annotations

from ledger.domain.errors import InputError


def test_what_an_inner_layer_advises_is_kept_by_the_outer_ones() -> None:
    """They fill in where it was found; the next step stays with the error."""
    error = InputError("no such card", field="card")
    error.add_note("`tenure map` shows the cards")

    placed = error.within("spec").at("a.yaml:3")

    assert str(placed) == "a.yaml:3: spec.card: no such card"
    assert placed.__notes__ == ["`tenure map` shows the cards"]
