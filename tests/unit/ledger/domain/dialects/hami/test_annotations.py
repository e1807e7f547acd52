from __future__ import annotations

import json

import pytest

from ledger.domain.dialects.hami.annotations import (
    GivenCard,
    RegisteredCard,
    decode_allocated,
    decode_register,
    words_of,
)
from ledger.domain.errors import InputError

A = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
B = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
V100 = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec"
P4 = "GPU-ebe7c3f7-303d-558d-435e-99a160631fe4"
ALLOCATED = "metadata.annotations[hami.io/vgpu-devices-allocated]"
REGISTER = "metadata.annotations[hami.io/node-nvidia-register]"


def given(device_id: str, mib: int, cores: int) -> GivenCard:
    """Return a part of an NVIDIA card."""
    return GivenCard(device_id=device_id, kind="NVIDIA", memory_mib=mib, core_percent=cores)


@pytest.mark.parametrize(
    ("text", "containers"),
    [
        pytest.param(
            f"{A},NVIDIA,3000,0:;{A},NVIDIA,5000,0:;",
            ((given(A, 3000, 0),), (given(A, 5000, 0),)),
            id="the contract's example",
        ),
        pytest.param(
            f"{A},NVIDIA,500,3:{B},NVIDIA,500,3:;",
            ((given(A, 500, 3), given(B, 500, 3)),),
            id="two cards of one container",
        ),
        pytest.param(
            f";{A},NVIDIA,1,0:;;",
            ((), (given(A, 1, 0),), ()),
            id="containers without cards keep their place",
        ),
        pytest.param(f"{A},NVIDIA,1,2", ((given(A, 1, 2),),), id="without the last separators"),
        pytest.param(f"{A},NVIDIA,1,2,9,x:;", ((given(A, 1, 2),),), id="more fields than four"),
        pytest.param(f"{A}[7-9],NVIDIA,1,2:;", ((given(A, 1, 2),),), id="a legacy MIG instance"),
        pytest.param("", (), id="nothing"),
        pytest.param(";", ((),), id="one container without cards"),
    ],
)
def test_the_cards_of_each_container_are_read(
    text: str, containers: tuple[tuple[GivenCard, ...], ...]
) -> None:
    """Contract 3: `:` after each card, `;` after each container."""
    assert decode_allocated(text) == containers


@pytest.mark.parametrize(
    ("text", "where"),
    [
        pytest.param(f"{A},NVIDIA,1,0:;{A},NVIDIA,3000:;", "[1][0]", id="a field is missing"),
        pytest.param(f"{A},NVIDIA,1,0:junk:;", "[0][1]", id="no field at all"),
        pytest.param(",NVIDIA,1,0:;", "[0][0]", id="no UUID"),
        pytest.param(f"{A},NVIDIA,x,0:;", "[0][0].memory", id="memory that is no number"),
        pytest.param(f"{A},NVIDIA,1,-1:;", "[0][0].cores", id="a negative number"),
        pytest.param(f"{A},NVIDIA,{2**31},0:;", "[0][0].memory", id="more than 32 bits"),
        pytest.param(f"{A},NVIDIA,1, 0:;", "[0][0].cores", id="a blank"),
    ],
)
def test_what_does_not_parse_names_its_place(text: str, where: str) -> None:
    """Container and card of the broken entry are in the error's field."""
    with pytest.raises(InputError) as caught:
        decode_allocated(text)

    assert caught.value.field == f"{ALLOCATED}{where}"


def test_the_register_of_v2_8_is_read() -> None:
    """Contract 4: what is 0, empty or false is left out."""
    text = json.dumps(
        [
            {"id": V100, "count": 10, "devmem": 32768, "devcore": 100, "type": "NVIDIA A100"}
            | {"mode": "hami-core", "health": True},
            {"id": P4, "index": 3, "devmem": 7680, "type": "NVIDIA-Tesla P4", "mode": "mig"},
        ]
    )

    assert decode_register(text) == (
        RegisteredCard(device_id=V100, index=0, model="NVIDIA A100", memory_mib=32768),
        RegisteredCard(
            device_id=P4,
            index=3,
            model="NVIDIA-Tesla P4",
            memory_mib=7680,
            core_percent=0,
            mode="mig",
            healthy=False,
        ),
    )


@pytest.mark.parametrize(
    ("text", "card"),
    [
        pytest.param(
            f"{V100},10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:",
            RegisteredCard(
                device_id=V100, index=None, model="NVIDIA-Tesla V100-PCIE-32GB", memory_mib=32768
            ),
            id="seven fields, until v2.4",
        ),
        pytest.param(
            f"{P4},10,7680,100,NVIDIA-Tesla P4,0,false,1,mps:",
            RegisteredCard(
                device_id=P4,
                index=1,
                model="NVIDIA-Tesla P4",
                memory_mib=7680,
                mode="mps",
                healthy=False,
            ),
            id="nine fields, until v2.7",
        ),
    ],
)
def test_the_older_register_is_read(text: str, card: RegisteredCard) -> None:
    """Contract 4: text with `:` after each card."""
    assert decode_register(text) == (card,)
    assert decode_register(text.rstrip(":")) == (card,)


@pytest.mark.parametrize("text", ["[]", "null", "", ":", " "])
def test_a_register_may_be_empty(text: str) -> None:
    """A node whose cards are all left out registers none."""
    assert decode_register(text) == ()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        pytest.param("[{]", "", id="broken JSON"),
        pytest.param('[{"id":1}]', "[0].id", id="an id that is no text"),
        pytest.param('[{"devmem":1}]', "[0].id", id="no id"),
        pytest.param('[{"id":"a"},{"id":"a"}]', "[1].id", id="an id twice"),
        pytest.param('[{"id":"a","devmem":"1"}]', "[0].devmem", id="memory as text"),
        pytest.param('[{"id":"a","index":-1}]', "[0].index", id="a negative index"),
        pytest.param('["a"]', "[0]", id="no object"),
        pytest.param("a,10,1,100,P4", "[0]", id="too few fields"),
        pytest.param("a,10,1,100,P4,0,true,1:", "[0]", id="eight fields"),
        pytest.param("a,10,x,100,P4,0,true:", "[0].devmem", id="memory that is no number"),
        pytest.param("a,10,1,100,P4,0,yes:", "[0].health", id="health that is no boolean"),
        pytest.param("a,10,1,100,P4,0,true,-1,mig:", "[0].index", id="a negative index in text"),
        pytest.param("a,10,1,100,P4,0,true:junk:", "[1]", id="the second card"),
    ],
)
def test_a_register_that_does_not_parse_names_its_place(text: str, where: str) -> None:
    """The card and the field are in the error."""
    with pytest.raises(InputError) as caught:
        decode_register(text)

    assert caught.value.field == f"{REGISTER}{where}"


def test_lists_are_words_with_commas_between() -> None:
    """Contract 2: blanks around a word are cut off, empty words passed over."""
    assert words_of(" A100 ,, V100,") == ("A100", "V100")
    assert words_of(" , ") == ()
