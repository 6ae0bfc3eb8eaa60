"""Vocabularies: from what a checkpoint brings (GGUF metadata, tokenizer.json, tokenizer.model, tekken.json) to a
tokenizer of the `tokenizers` package. One file a kind; `sources.py` has the table."""
