"""Which file builds which checkpoint: one row an architecture, by its class name and by its model_type."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from octavo.errors import ModelError, did_you_mean
from octavo.models import fields
from octavo.models.fields import Config

if TYPE_CHECKING:
    from octavo.program.ir import Program

MODELS: dict[str, str] = {
    "GemmaForCausalLM": "octavo.models.gemma:GemmaForCausalLM",
    "Gemma2ForCausalLM": "octavo.models.gemma2:Gemma2ForCausalLM",
    "Gemma3ForCausalLM": "octavo.models.gemma3:Gemma3ForCausalLM",
    "GraniteForCausalLM": "octavo.models.granite:GraniteForCausalLM",
    "GraniteMoeForCausalLM": "octavo.models.granitemoe:GraniteMoeForCausalLM",
    "LlamaForCausalLM": "octavo.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "octavo.models.llama:LlamaForCausalLM",
    "MixtralForCausalLM": "octavo.models.mixtral:MixtralForCausalLM",
    "Olmo2ForCausalLM": "octavo.models.olmo2:Olmo2ForCausalLM",
    "OlmoeForCausalLM": "octavo.models.olmoe:OlmoeForCausalLM",
    "Phi3ForCausalLM": "octavo.models.phi3:Phi3ForCausalLM",
    "Qwen2ForCausalLM": "octavo.models.qwen2:Qwen2ForCausalLM",
    "Qwen3ForCausalLM": "octavo.models.qwen3:Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM": "octavo.models.qwen3_moe:Qwen3MoeForCausalLM",
    "SmolLM3ForCausalLM": "octavo.models.smollm3:SmolLM3ForCausalLM",
}
MODEL_TYPES: dict[str, str] = {
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}


def architecture(config: Config, more: Iterable[str] = ()) -> str:
    """The config's row of MODELS: by `architectures`, else by `model_type`. Raises ModelError with the known ones
    (`more` are others that the reader of the files knows) and the nearest."""
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise fields.refuse("architectures", names, "a list of names")
    for name in names:
        if name in MODELS:
            return str(name)
    kind = config.get("model_type")
    if not names and isinstance(kind, str) and kind in MODEL_TYPES:
        return MODEL_TYPES[kind]
    if names:
        known = (*MODELS, *more)
        hint = did_you_mean(names[0], known)
        raise ModelError(f"architecture: got {', '.join(names)}, allowed: {', '.join(known)}{hint}")
    hint = did_you_mean(kind, MODEL_TYPES)
    raise ModelError(f"model_type: got {kind!r}, allowed: {', '.join(MODEL_TYPES)}{hint}")


def build_program(config: Config) -> Program:
    """Run the model file once, without weights. `config` has Hugging Face keys. Raises ModelError."""
    # Here, so that looking up an architecture does not load NumPy: the front half does it too.
    from octavo.nn import Build
    from octavo.program.builder import Builder

    name = architecture(config)
    module, _, attribute = MODELS[name].partition(":")
    model = getattr(import_module(module), attribute)
    builder = Builder(
        name,
        vocab_size=fields.integer(config, "vocab_size"),
        max_len=fields.integer(config, "max_position_embeddings", most=1 << 21),
    )
    model(Build(builder), config)()
    return builder.build()
