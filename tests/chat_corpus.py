"""Conversations and chat templates that tests render: small ones of our own, and those of models at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "chat"
REFUSED = "(refused)"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <now> & here: 'é'",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "units": {"enum": ["°C", "°F"]}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "time", "description": "", "parameters": {"type": "object"}}},
]


def conversations() -> list[dict[str, Any]]:
    """name, messages, and what the rendering is asked for."""
    found: list[dict[str, Any]] = json.loads((FOLDER / "conversations.json").read_text(encoding="utf-8"))
    return found


def asked(conversation: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a rendering."""
    return {
        "add_generation_prompt": conversation.get("add_generation_prompt", True),
        "continue_final_message": conversation.get("continue_final_message", False),
        "tools": TOOLS if conversation.get("tools") else None,
        "chat_template_kwargs": conversation.get("kwargs", {}),
    }


SAYS = [{"role": "user", "content": "is <b> & [INST] <|im_end|>\né ok? <"}]
"""What the small templates of `dialect` render: it holds a control token, and ends as one begins."""


def dialect() -> dict[str, str]:
    """One-line templates -> what transformers makes of SAYS by them."""
    found: dict[str, str] = json.loads((FOLDER / "dialect.json").read_text(encoding="utf-8"))
    return found


def own_templates() -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.jinja"))}


def templates_at_hand() -> dict[str, str]:
    """Those of real models: GGUF files under OCTAVO_TEST_MODELS, directories under OCTAVO_TEST_TOKENIZERS."""
    from octavo.weights.front import directory_templates, gguf_templates
    from octavo.weights.gguf import GGUFFile

    found: dict[str, str] = {}
    models = os.environ.get("OCTAVO_TEST_MODELS")
    for path in sorted(Path(models).glob("*.gguf")) if models else []:
        found.update({f"{path.stem}/{name}": text for name, text in gguf_templates(GGUFFile(path).metadata).items()})
    tokenizers = os.environ.get("OCTAVO_TEST_TOKENIZERS")
    for path in sorted(Path(tokenizers).iterdir()) if tokenizers else []:
        file = path / "tokenizer_config.json"
        settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        found.update({f"{path.name}/{name}": text for name, text in directory_templates(path, settings).items()})
    return found
