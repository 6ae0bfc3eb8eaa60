"""A scheduling policy is a row of one table: nothing else knows its name."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import octavo
from octavo.config.policy import POLICIES, PolicyName
from octavo.types import Request, SamplingParams

SOURCE = Path(octavo.__path__[0])


def test_options_offer_what_the_table_has() -> None:
    assert typing.get_args(PolicyName) == tuple(POLICIES)


def test_one_file_names_policies() -> None:
    names = re.compile(r"policy (?:[!=]=|(?:not )?in \()|[\"']fcfs[\"']")
    found = {str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if names.search(p.read_text())}
    assert found == {"config/policy.py"}


def test_only_a_policy_that_uses_priority_reads_it() -> None:
    for name, policy in POLICIES.items():
        low, high = (Request(1, b"", SamplingParams(), arrival=1.0, priority=p) for p in (-1, 1))
        differ = policy.key(low) < policy.key(high), policy.level(low) < policy.level(high)
        assert differ == (policy.uses_priority, policy.uses_priority), name
