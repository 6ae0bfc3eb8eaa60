"""What the front half needs of a model."""

from __future__ import annotations

from typing import Any

import msgspec


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """Plain data, so that whoever has it needs neither the files nor NumPy."""

    name: str
    tokenizer_spec: dict[str, Any]
    """For text.Tokenizer.from_spec."""
    chat_templates: dict[str, str] = {}
    """Name -> Jinja source."""
    generation_config: dict[str, Any] = {}
