"""A front half without an engine."""

from __future__ import annotations

import pytest

from octavo.config.args import EngineArgs
from octavo.config.resolve import EngineConfig, resolve
from octavo.engine.fake import fake_facts, fake_front
from octavo.facts import Facts
from octavo.llm.intake import Intake
from octavo.text.tokenizer import Tokenizer

ARGS = EngineArgs(model="fake", executor="fake", max_model_len=128, max_num_seqs=4)


@pytest.fixture
def facts() -> Facts:
    return fake_facts(ARGS)


@pytest.fixture
def config(facts: Facts) -> EngineConfig:
    return resolve(ARGS, facts)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_spec(fake_front(ARGS).tokenizer_spec)


@pytest.fixture
def intake(tokenizer: Tokenizer, facts: Facts, config: EngineConfig) -> Intake:
    return Intake(tokenizer=tokenizer, facts=facts, config=config)
