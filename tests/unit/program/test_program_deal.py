"""Layers dealt to KV groups: every layer has a place, blocks have equal bytes, little is padding."""

from __future__ import annotations

import random

from octavo.kernels import BACKENDS
from octavo.program.builder import Builder
from octavo.program.deal import deal
from octavo.program.executable import KVSpec

GEMMA3_270M = [None if (i + 1) % 6 == 0 else 512 for i in range(18)]
GEMMA3_27B = [None if (i + 1) % 6 == 0 else 1024 for i in range(62)]


def test_gemma_3_270m_has_one_full_group_and_five_of_windows() -> None:
    groups = deal(GEMMA3_270M)
    assert [(g.window, len(g.layers), g.places) for g in groups] == [(None, 3, 3)] + [(512, 3, 3)] * 5
    assert groups[0].layers == (5, 11, 17)


def test_one_kind_is_one_group() -> None:
    for window in (None, 4096):
        (group,) = deal([window] * 32)
        assert (group.window, group.layers, group.places) == (window, tuple(range(32)), 32)
    assert [len(g.layers) for g in deal([4096, None] * 13)] == [13, 13]


def test_counts_that_do_not_divide_trade_padding_for_groups() -> None:
    groups = deal(GEMMA3_27B)
    assert sum(len(g.layers) for g in groups) == 62
    padding = sum(g.places - len(g.layers) for g in groups)
    assert len(groups) <= 9 and padding <= 8
    prime = deal([None] * 5 + [512] * 29)
    assert len(prime) <= 8 and sum(p.places - len(p.layers) for p in prime) <= 2


def test_every_layer_has_one_place_of_its_kind() -> None:
    rng = random.Random(5)
    for _ in range(300):
        kinds = [rng.choice([None, 64, 512]) for _ in range(rng.randint(1, 40))]
        groups = deal(kinds)
        assert sorted(layer for g in groups for layer in g.layers) == list(range(len(kinds)))
        assert all(kinds[layer] == g.window for g in groups for layer in g.layers)
        assert len({g.places for g in groups}) == 1 and all(0 < len(g.layers) <= g.places for g in groups)


def test_the_builder_gives_places_and_blocks_of_equal_bytes() -> None:
    builder = Builder("m", vocab_size=8, max_len=1024)
    places = builder.kv_layers([16, None, 16, 16, 16], kv_heads=2, head_dim=8)
    groups = builder._groups
    specs = [KVSpec(g.name, "bf16", g.layers, 2, 8, 16, g.window, g.places) for g in groups]
    assert len({spec.block_bytes for spec in specs}) == 1
    assert len(set(places)) == 5
    for kind, (group, layer) in zip([16, None, 16, 16, 16], places, strict=True):
        assert groups[group].window == kind and layer < groups[group].layers
    assert len({g.name for g in groups}) == len(groups)
    assert "attend" in BACKENDS["native"].kinds
