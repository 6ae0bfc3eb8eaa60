"""The tiny models themselves: made by transformers, saved as a directory and as a GGUF file, asked for logits."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.golden import write_weights
from tests.oracle.variants import BASE, VOCAB, Variant

os.environ["HF_HUB_OFFLINE"] = "1"


def make(variant: Variant, directory: Path, *, dtype: str = "float32") -> Any:
    """The transformers model, float32 and in evaluation mode; its checkpoint is written to `directory` in `dtype`.

    Every parameter and correction buffer gets noise: fresh norms and biases are 0 or 1 and would hide a missing term.
    A checkpoint of fewer bits is read back, so that both sides hold the same numbers.
    """
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", module="transformers")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(variant.model_type, **{**BASE, **variant.config})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        buffers = [(name, value) for name, value in model.named_buffers() if "correction" in name]
        for _, value in [*model.named_parameters(), *buffers]:
            if value.is_floating_point():
                value.add_(torch.randn_like(value) * (0.02 if value.dim() < 2 else 0.05))
        kind = getattr(torch, dtype)
        for value in model.parameters():
            value.copy_(value.to(kind).float())
    model.to(kind).save_pretrained(directory)
    if not variant.said:
        return model.float()
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **variant.said}))
    return opened(directory)


def opened(directory: Path) -> Any:
    """The transformers model of a directory, float32 and in evaluation mode. All its tensors must be there."""
    import transformers

    made, missing = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", dtype="float32", output_loading_info=True
    )
    wrong = {what: names for what, names in missing.items() if names}
    assert not wrong, wrong
    return made.eval()


def with_numbers(directory: Path, numbers: Mapping[str, NDArray[np.float32]], target: Path) -> Any:
    """The transformers model of `directory` in float32, with other numbers; they are written to `target`."""
    config = {**json.loads((directory / "config.json").read_text()), "dtype": "float32"}
    write_weights(target, config, numbers)
    return opened(target)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random ids, none of the special ones."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, VOCAB, length)]


def oracle_logits(model: Any, ids: Sequence[int]) -> NDArray[np.float32]:
    """transformers' logits [len(ids), vocab]."""
    import torch

    with torch.inference_mode():
        return np.asarray(model(input_ids=torch.tensor([list(ids)])).logits[0].float().numpy())


def rounded(model: Any, form: str) -> Any:
    """A copy of the model whose matrices went through a GGML type (`form`, as "q8_0") and back."""
    import gguf
    import torch

    kind = gguf.GGMLQuantizationType[form.upper()]
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in model.named_parameters():
            router = name.endswith((".gate.weight", ".router.weight"))  # llama.cpp keeps these in float32
            if value.dim() >= 2 and not router:
                stored = gguf.quantize(value.numpy(), kind)
                value.copy_(torch.from_numpy(gguf.dequantize(stored, kind)))
    return model
