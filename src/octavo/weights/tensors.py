"""What a checkpoint holds: tensors that are not read yet, and the rest in one vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Known = Callable[[Mapping[str, Any], Iterable[str]], object]
"""Asked about a config: raises ModelError for an architecture that cannot be served, naming those that can and the
second argument's, which are served by what is inside them."""
SOURCES: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 136),
    "mxfp4": (32, 17),
    "z4": (32, 19),
    "s8": (32, 36),
    "q8_0c": (32, 34),
    "s8c": (32, 36),
}
"""Source format -> (elements a block, bytes a block). Blocks run along the last dimension. z4, s8, q8_0c and s8c are
ours (kernels/reference/blocks.py says what they hold): readers of directories write other packings as them."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a checkpoint, not read yet."""

    name: str
    """Hugging Face name, `model.layers.0.self_attn.q_proj.weight`."""
    source: str
    """A key of SOURCES."""
    shape: tuple[int, ...]
    """Outermost first; a weight is (outputs, inputs)."""
    load: Callable[[], bytes | memoryview] = field(repr=False, compare=False)
    stored: int | None = None
    """Bytes of a source that is no row of SOURCES: a matrix packed for the kernels, "packed.<execution format>"."""
    damage: str = ""
    """Why its stored parts are no matrix; said with all else that is wrong with the files, not when they are opened.
    Such a tensor has no source and no shape, and `load` raises."""

    @property
    def nbytes(self) -> int:
        if self.stored is not None:
            return self.stored
        block, size = SOURCES[self.source]
        return math.prod(self.shape) // block * size

    def read(self) -> NDArray[np.uint8]:
        """The row-major source bytes, uint8[nbytes], read-only: a view of the mapped file where no rows move."""
        import numpy as np  # the only place: opening a checkpoint for its vocabulary must not load NumPy

        return np.frombuffer(self.load(), dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a model's files say, in one vocabulary.

    `config` has Hugging Face keys for every kind of file: model_type, hidden_size, num_hidden_layers,
    num_attention_heads, num_key_value_heads, head_dim, intermediate_size, hidden_act, rms_norm_eps, rope_theta,
    rope_scaling (None or a dict with rope_type), vocab_size, max_position_embeddings, tie_word_embeddings,
    attention_bias, bos_token_id, and eos_token_id as a list of every id that ends a turn.
    """

    path: Path
    config: dict[str, Any]
    tensors: Mapping[str, Tensor]
    tokenizer_spec: dict[str, Any]
    """Plain data for text.Tokenizer.from_spec: {"format": "gguf", …}, or "json", "sentencepiece", "tekken"."""
    chat_templates: dict[str, str]
    """Name -> Jinja source; the one that is used when none is asked for is "default"."""
    generation_config: dict[str, Any]
    content_id: bytes
    """32 bytes that change when the model's files do. An identity for caches, not an integrity check: sizes, headers
    and the first bytes of each tensor enter, not every weight."""
    notes: tuple[str, ...] = ()
    """What was done to tensors that a quantisation method stored, for the log."""

    @property
    def chat_template(self) -> str | None:
        """The default one."""
        return self.chat_templates.get("default")
