"""EngineArgs checks the types of its fields itself: whoever makes one hears of a wrong one before a process starts."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pytest

from octavo.config.args import EngineArgs
from octavo.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": None}, "--model: got None, allowed: a text"),
        ({"dtype": "float16"}, "--dtype: got 'float16', allowed: auto | float32 | bfloat16 (the nearest is bfloat16)"),
        (
            {"kv_cache_dtype": "f32"},
            "--kv-cache-dtype: got 'f32', allowed: auto | bfloat16 | float32 | int8 (here",
        ),
        ({"quantization": 4}, "--quantization: got 4, allowed: none | int8 | int4 | compressed-tensors or None"),
        ({"block_size": 17}, "--block-size: got 17, allowed: 8 | 16 | 32 | 64"),
        ({"max_num_seqs": True}, "--max-num-seqs: got True, allowed: an integer"),
        ({"max_model_len": 2.5}, "--max-model-len: got 2.5, allowed: an integer or None"),
        ({"target_itl_ms": "fast"}, "--target-itl-ms: got 'fast', allowed: a number or None"),
        ({"target_itl_ms": math.nan}, "--target-itl-ms: got nan, allowed: 0 or more"),
        ({"enable_prefix_caching": 1}, "--enable-prefix-caching: got 1, allowed: True or False"),
        ({"served_model_name": "a"}, "--served-model-name: got 'a', allowed: a list of texts"),
        ({"served_model_name": [1]}, "--served-model-name: got [1], allowed: a list of texts"),
    ],
)
def test_a_wrong_type_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        EngineArgs(**({"model": "m"} | options))


def test_what_is_taken_is_of_the_fields_type() -> None:
    names: Any = ["a"]
    args = EngineArgs(model="m", served_model_name=names, target_itl_ms=5)
    assert args.served_model_name == ("a",) and type(args.target_itl_ms) is float
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(args), type=EngineArgs) == args
