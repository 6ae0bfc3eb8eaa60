"""The model of the fake executor: numbers and a vocabulary without a file, for tests and front-end work."""

from __future__ import annotations

from octavo.config.args import EngineArgs
from octavo.engine.messages import Front
from octavo.facts import Facts, KVGroup

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
SPECIALS = {BOS: "<bos>", EOS: "<eos>", IM_START: "<|im_start|>", IM_END: "<|im_end|>"}
"""Ids 0-255 are bytes; the ids after the specials are words."""
VOCAB_SIZE = 320
MODEL_LEN = 8192
BLOCK_BYTES_PER_POSITION = 1024

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
        block_bytes=args.block_size * BLOCK_BYTES_PER_POSITION,
        num_blocks=args.num_kv_blocks or 4 * per_seq + 1,
        eos_ids=(EOS,),
    )


def fake_front(args: EngineArgs) -> Front:
    """No tokenizer spec: the byte tokenizer stands in."""
    return Front(name=args.model, chat_template=CHAT_TEMPLATE)
