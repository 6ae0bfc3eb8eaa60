"""Everything that crosses the socket comes back equal, and nothing else is taken."""

from __future__ import annotations

import ast

import msgspec
import pytest

from octavo.config.resolve import resolve
from octavo.engine.fake import fake_facts
from octavo.engine.messages import (
    Abort,
    Add,
    EngineStats,
    Failed,
    Hello,
    Outputs,
    Progress,
    Ready,
    ResetPrefixCache,
    Start,
    Stop,
    decode_down,
    decode_up,
    encode,
    unread_add,
)
from octavo.errors import DoesNotFit, EngineDead, OctavoError, PromptTooLong
from octavo.sched.refused import Refused
from octavo.types import FinishReason, Logprob, Request, SamplingParams, SeqOutput, TokenLogprobs
from tests.child import ROOT
from tests.engine.conftest import fake_args

STATS = EngineStats(**dict.fromkeys([name for name in EngineStats.__struct_fields__ if name != "groups"], 0))


def test_both_directions_round_trip() -> None:
    args = fake_args()
    facts = fake_facts(args)
    params = SamplingParams(seed=-(2**63), logit_bias={3: 1.5}, stop_token_ids=(1, 2), max_tokens=5)
    for down in (
        Start(args),
        Add([Request(1, b"\0\0\0\0", params, 1.5, -3, b"root")]),
        Abort([1, 2**40]),
        ResetPrefixCache(),
        Stop(),
    ):
        assert decode_down(encode(down)) == down
    entry = TokenLogprobs(Logprob(1, -0.5, 1), [Logprob(2, -1.0, 2)])
    outputs = [SeqOutput(1, [2], FinishReason.STOP, 2, 16, [entry], [entry], "error", 0.25)]
    for up in (
        Hello(),
        Progress("weights", 0.5),
        Ready(facts, resolve(args, facts), STATS),
        Failed("ModelError", "no"),
        Outputs(outputs, STATS, [Refused(1, "too_long", "long")], [64]),
    ):
        assert decode_up(encode(up)) == up


# An Add whose parameters SamplingParams itself refuses.
BAD = msgspec.msgpack.encode(["Add", [[3, b"\0\0\0\0", {"top_p": 5.0}], [2**40, b"", {}]]])


@pytest.mark.parametrize("data", [b"", b"\x93\xa3Add\x01", b"\x92\xa4Evil\x01", b"\x91\xa6Start\x00", b"\xc1", BAD])
def test_nothing_else_is_taken(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_down(data)


def test_whom_an_add_that_cannot_be_read_named() -> None:
    assert unread_add(BAD) == [3, 2**40]
    for data in (b"", b"\xc1", b"\x91" * 5000, encode(Abort([1])), msgspec.msgpack.encode(["Add", [True, [], ["a"]]])):
        assert unread_add(data) == []


def test_errors_keep_their_type() -> None:
    error = Failed.of(DoesNotFit("too big")).error()
    assert type(error) is DoesNotFit and str(error) == "too big"
    assert type(Failed.of(PromptTooLong("long", param="prompt")).error()) is PromptTooLong
    other = Failed.of(ZeroDivisionError("oops")).error()
    assert type(other) is OctavoError and "ZeroDivisionError: oops" in str(other)
    assert type(Failed("SystemExit", "x").error()) is OctavoError
    assert type(Failed("annotations", "x").error()) is OctavoError
    assert type(Failed("EngineDead", "x").error()) is EngineDead


def test_no_pickle_anywhere() -> None:
    """S01: by syntax tree, over the whole package."""
    banned_modules = {"pickle", "cloudpickle", "marshal", "shelve", "dill"}
    banned_names = {"recv_pyobj", "send_pyobj", "eval", "exec"}
    for path in (ROOT / "src/octavo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert banned_modules.isdisjoint(a.name.split(".")[0] for a in node.names), path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in banned_modules, path
            elif isinstance(node, ast.Call):
                name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                if isinstance(node.func, ast.Attribute) and name in ("eval", "exec"):
                    continue  # a method of that name is not the builtin
                assert name not in banned_names, (path, node.lineno)
