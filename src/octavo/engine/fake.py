"""The model of the fake executor: numbers and a vocabulary without a file, for tests and front-end work."""

from __future__ import annotations

from typing import Any

from octavo.config.args import EngineArgs
from octavo.engine.front import Front
from octavo.facts import Facts, KVGroup

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
SPECIALS = {BOS: "<|bos|>", EOS: "<|eos|>", IM_START: "<|im_start|>", IM_END: "<|im_end|>"}
"""Ids 0-255 are bytes; the ids after the specials are words."""
VOCAB_SIZE = 320
MODEL_LEN = 8192
BYTES_PER_POSITION = 1024
CONTROL, NORMAL = 3, 1

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def fake_facts(args: EngineArgs) -> Facts:
    """What a runner would have found out."""
    length = args.max_model_len or MODEL_LEN
    per_seq = -(-length // args.block_size)
    return Facts(
        model_name=args.model,
        architecture="fake",
        vocab_size=VOCAB_SIZE,
        model_len=length,
        groups=(KVGroup(name="full", kind="full", layers=1),),
        block_size=args.block_size,
        block_bytes=args.block_size * BYTES_PER_POSITION,
        num_blocks=args.num_kv_blocks or 4 * per_seq + 1,
        eos_ids=(EOS,),
    )


def fake_front(args: EngineArgs) -> Front:
    """A byte-level tokenizer that merges next to nothing, and a chat template."""
    return Front(name=args.model, tokenizer_spec=_tokenizer_spec(), chat_templates={"default": CHAT_TEMPLATE})


def _tokenizer_spec() -> dict[str, Any]:
    """As a GGUF file would say it."""
    words = ["Ġw", *(f"Ġw{i}" for i in range(VOCAB_SIZE - max(SPECIALS) - 2))]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*_byte_alphabet(), *SPECIALS.values(), *words],
        "tokenizer.ggml.token_type": [NORMAL] * 256 + [CONTROL] * len(SPECIALS) + [NORMAL] * len(words),
        "tokenizer.ggml.merges": ["Ġ w"],
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.add_bos_token": False,
    }
    return {"format": "gguf", "metadata": metadata, "eos_ids": [EOS]}


def _byte_alphabet() -> list[str]:
    """How byte-level BPE spells each byte: itself where printable, else the next free character from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + i) for i in range(256))
    return [chr(byte) if byte in printable else next(others) for byte in range(256)]
