"""Keys of a GGUF file known to change what a model computes: one that nothing here has read is refused, with its value.

Keys without a row are not looked at. A row says which values mean nothing, so that files which spell out a default are
opened.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.weights.gguf import GGUFArray
from octavo.weights.gguf_metadata import Metadata

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    ".attention.causal": (True,),
    ".attention.clamp_kqv": (0.0,),
    ".attention.max_alibi_bias": (0.0,),
    ".attention.scale": (0.0,),
    ".attention.temperature_scale": (0.0,),
    ".attn_logit_softcapping": (0.0,),
    ".embedding_scale": (0.0, 1.0),
    ".expert_weights_scale": (0.0, 1.0),
    ".final_logit_softcapping": (0.0,),
    ".logit_scale": (0.0, 1.0),
    ".residual_scale": (0.0, 1.0),
    ".rope.freq_base_swa": (),
    ".rope.scaling.alpha": (0.0, 1.0),
    ".rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    ".rope.scaling.yarn_log_multiplier": (0.0,),
    ".use_parallel_residual": (False,),
}
"""Key behind the architecture's name -> values that change nothing."""


def refuse_unread(meta: Metadata) -> None:
    """To be called when the configuration has been read. Raises FileFormatError."""
    for key, neutral in NEUTRAL.items():
        value = meta.file.metadata.get(meta.arch + key)
        if value is None or meta.arch + key in meta.asked or value in neutral:
            continue
        got = value.tolist()[:8] if isinstance(value, GGUFArray) else value
        allowed = " or ".join(["none", *map(str, neutral)])
        meta.fail(key, got, f"{allowed} (this architecture is built without it)")
