"""Directories of models that have a text model inside: what of config.json and of the tensors is the text's.

One row an architecture. Its text model is served as if its directory were there alone; the rest is left out, and the
log says so. Source: the checkpoints, as transformers writes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import FileFormatError, ModelError
from octavo.weights.safetensors import SafeTensor
from octavo.weights.tensors import Tensor

MOVED: Mapping[str, str] = {"language_model.": "", "model.language_model.": "model."}
"""Start of a stored name -> start of the text model's. Files have either, whatever wrote them."""
IMAGES: Mapping[str, str] = {
    f"{model}{part}.": part for model in ("", "model.") for part in ("vision_tower", "multi_modal_projector")
}
"""Start of a stored name -> the part that it belongs to, which is left out."""
OUTER = ("bos_token_id", "eos_token_id", "quantization_config")
"""Keys of the whole that hold for its text model."""

TIED = "tie_word_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """One value of `architectures`."""

    model_type: str
    text: str
    """The text model's architecture, a row of models/registry.py."""
    text_type: str
    """Its model_type: the only one that this row's text model may have."""

    def config(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The config.json that the text model would have alone. Raises ModelError."""
        inner = raw.get("text_config")
        if not isinstance(inner, dict):
            raise ModelError(f"text_config: got {type(inner).__name__}, allowed: an object")
        kind = inner.get("model_type", self.text_type)
        if kind != self.text_type:
            raise ModelError(f"text_config.model_type: got {kind!r}, allowed: {self.text_type!r}")
        outer = {key: raw[key] for key in OUTER if raw.get(key) is not None}
        return {**inner, **outer, "architectures": [self.text], "model_type": kind}

    def with_head(self, raw: Mapping[str, Any], config: dict[str, Any], tensors: Container[str]) -> dict[str, Any]:
        """The text's config, tied or not as the whole says, if the tensors agree: transformers 5 goes by the whole,
        versions before it by the text, and files contradict themselves."""
        tied = raw.get(TIED)
        return {**config, TIED: tied} if tied is ("lm_head.weight" not in tensors) else config

    def kept(self, found: Mapping[str, SafeTensor]) -> tuple[dict[str, SafeTensor], tuple[str, ...]]:
        """The text model's, and a line about those left out."""
        kept: dict[str, SafeTensor] = {}
        sizes: Counter[str] = Counter()
        for name, tensor in found.items():
            part = next((part for start, part in IMAGES.items() if name.startswith(start)), None)
            if part is None:
                kept[name] = tensor
            else:
                sizes[part] += len(tensor.data)
        count = len(found) - len(kept)
        note = (
            f"only the text model is served: {', '.join(sizes)} left out, {count} tensors, {sizes.total() / 1e6:.1f} MB"
        )
        return kept, (note,) if count else ()

    def renamed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Under the text model's own names. After quantised parts were joined, for a quantisation_config names modules
        as the whole does. Raises FileFormatError."""
        found: dict[str, Tensor] = {}
        for stored, tensor in tensors.items():
            start = next((start for start in MOVED if stored.startswith(start)), "")
            name = MOVED.get(start, "") + stored.removeprefix(start)
            if name in found:
                raise FileFormatError(f"tensor {name}: got it twice, one of them as {stored}, allowed: once")
            found[name] = replace(tensor, name=name)
        return found


class Alone:
    """A text model that is its directory's only one."""

    def config(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        return dict(raw)

    def with_head(self, raw: Mapping[str, Any], config: dict[str, Any], tensors: Container[str]) -> dict[str, Any]:
        return config

    def kept(self, found: Mapping[str, SafeTensor]) -> tuple[dict[str, SafeTensor], tuple[str, ...]]:
        return dict(found), ()

    def renamed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)


COMPOSITES: Mapping[str, Composite] = {
    "Gemma3ForConditionalGeneration": Composite(model_type="gemma3", text="Gemma3ForCausalLM", text_type="gemma3_text"),
    "Mistral3ForConditionalGeneration": Composite(
        model_type="mistral3", text="MistralForCausalLM", text_type="mistral"
    ),
}


def layout(raw: Mapping[str, Any]) -> Composite | Alone:
    """The row of a config.json: by `architectures`, else by `model_type`."""
    names = raw.get("architectures") or [
        name for name, row in COMPOSITES.items() if row.model_type == raw.get("model_type")
    ]
    known = [name for name in names if isinstance(name, str) and name in COMPOSITES] if isinstance(names, list) else []
    return COMPOSITES[known[0]] if known else Alone()
