"""Vocabularies in the metadata of GGUF files: a row a kind of `tokenizer.ggml.model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from octavo.errors import ModelError
from octavo.obs.log import get_logger
from octavo.text.vocab import byte_level, sentencepiece
from octavo.text.vocab.cache import TokenizerCache
from octavo.text.vocab.pretokenizers import find
from octavo.text.vocab.vocabulary import Metadata, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of vocabulary."""

    build: Callable[[Metadata], Backend]
    alphabet: Literal["bytes", "metaspace"]
    add_bos: Callable[[Metadata], bool]
    """What a file that does not say means."""
    kept: bool = False
    """Building takes much longer than reading it back: worth a place in the cache."""


KINDS = {
    "gpt2": Kind(
        build=byte_level.build,
        alphabet="bytes",
        add_bos=lambda meta: find(byte_level.pre_tokenizer(meta)).add_bos,
    ),
    "llama": Kind(build=sentencepiece.build_bpe, alphabet="metaspace", add_bos=lambda meta: True, kept=True),
    "t5": Kind(build=sentencepiece.build_unigram, alphabet="metaspace", add_bos=lambda meta: False),
}
NAMED = {"unk_token": "unknown", "pad_token": "padding", "sep_token": "seperator", "mask_token": "mask"}
"""Name in templates -> key in the file (spelled so there)."""
REFUSED = {
    "bert": "WordPiece, of embedding models: not supported yet",
    "none": "the file has no vocabulary",
    "no_vocab": "the file has no vocabulary",
}
NAMES = "'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE) or 't5' (SentencePiece unigram)"


def load(
    metadata: Mapping[str, object],
    *,
    eos_ids: Sequence[int] | None = None,
    key: str | None = None,
    cache: TokenizerCache | None = None,
    kept: bool = False,
) -> Vocabulary:
    """The vocabulary in the `tokenizer.*` keys of a file. `key`: its identity; with it, what takes long to build (or is
    to be `kept` anyway) is looked for and kept in `cache`. Raises ModelError (other vocabularies, pre-tokenizers)."""
    meta = Metadata(metadata)
    name = meta.get("model")
    kind = KINDS.get(str(name))
    if kind is None:
        why = f" ({REFUSED[str(name)]})" if name in REFUSED else ""
        raise ModelError(f"tokenizer.ggml.model: got {name!r}{why}, allowed: {NAMES}")
    if name == "gpt2" and meta.get("pre") is None:
        log.warning("tokenizer.ggml.pre: the file has none; 'default' may not be what the model was trained with")
    if (kept or kind.kept) and key and cache is not None:
        backend = _kept(kind, meta, key, cache)
    else:
        backend = kind.build(meta)
    if eos_ids is None:
        eos_ids = sorted({i for i in map(meta.id, ("eos", "eot", "eom")) if i is not None})
    bos_id = meta.id("bos")
    others = {name: meta.id(key) for name, key in NAMED.items()}
    return Vocabulary(
        backend=backend,
        alphabet=kind.alphabet,
        strip_start=kind.alphabet == "metaspace" and meta.flag("add_space_prefix", True),
        bos_id=bos_id,
        eos_id=meta.id("eos"),
        eos_ids=tuple(eos_ids),
        add_bos=bos_id is not None and meta.flag("add_bos_token", kind.add_bos(meta)),
        unknown_id=sentencepiece.unknown_id(meta),
        named={name: text for name, i in others.items() if i is not None and (text := backend.id_to_token(i))},
    )


def _kept(kind: Kind, meta: Metadata, key: str, cache: TokenizerCache) -> Backend:
    import tokenizers

    full = f"{key}-{tokenizers.__version__}"
    json = cache.load(full)
    if json is not None:
        try:
            return tokenizers.Tokenizer.from_str(json)
        except Exception as error:  # the package raises bare Exception
            log.info("a kept tokenizer cannot be read (%s); it is built anew", error)
    backend = kind.build(meta)
    cache.store(full, backend.to_str())
    return backend
