"""Names on one line: all of them, as patterns."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import every


@pytest.mark.parametrize(
    ("names", "want"),
    [
        ([], ""),
        (["lm_head.weight"], "lm_head.weight"),
        ([f"layers.{i}.a" for i in (0, 1, 2, 5)], "layers.0-2,5.a"),
        (["layers.1.a", "norm", "layers.0.a", "layers.0.b"], "layers.0-1.a, norm, layers.0.b"),
        ([f"layers.{i}.experts.{e}.up" for i in range(3) for e in range(8)], "layers.0-2.experts.0-7.up"),
        (["l.0.e.0.w", "l.0.e.1.w", "l.1.e.1.w"], "l.0.e.0-1.w, l.1.e.1.w"),
        (["layers.007.a", "layers.7.a", "layers..a", "layers"], "layers.007.a, layers.7.a, layers..a, layers"),
    ],
)
def test_patterns(names: list[str], want: str) -> None:
    assert every(names) == want


def _written_out(text: str) -> list[str]:
    """The names that a line of patterns stands for."""
    found = []
    for pattern in text.split(", "):
        choices = [
            [str(n) for span in part.split(",") for n in range(int(span.split("-")[0]), int(span.split("-")[-1]) + 1)]
            if re.fullmatch(r"[\d,-]+", part)
            else [part]
            for part in pattern.split(".")
        ]
        found += [".".join(each) for each in itertools.product(*choices)]
    return found


@given(
    st.sets(
        st.lists(st.sampled_from(["a", "b", "0", "1", "2", "10"]), min_size=1, max_size=4).map(".".join), min_size=1
    )
)
def test_nothing_is_left_out_and_nothing_added(names: set[str]) -> None:
    assert sorted(_written_out(every(sorted(names)))) == sorted(names)


def test_a_name_that_is_no_models_is_taken_as_it_is() -> None:
    """A file's header may hold a name of a million dots."""
    name = "1." * 1_000_000
    assert every([name, "layers.0.a", "layers.1.a"]) == f"{name}, layers.0-1.a"
