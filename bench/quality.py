"""Perplexity as served beside the oracle's fp32, pooled over the four texts that every machine has."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.rows import Context, Row, holds, not_run, shown


def quality(
    c: Context,
    section: str,
    model: str,
    oracle: Path | None,
    *,
    title: str = "perplexity pooled over four texts, beside fp32",
    limit: float = 1.0,
    flags: Sequence[str] = (),
    detail: bool = False,
) -> Iterator[Row]:
    """`model` served with `flags` against the fp32 figures in the file `oracle`; within `limit` percent above it.

    `detail`: a row for each text as well.
    """
    target = f"within {limit:g} %"
    if oracle is None or not oracle.exists():
        yield not_run(section, title, target, "tests hold no oracle file")
        return
    expected = json.loads(oracle.read_text())["perplexity_ctx1024"]
    texts = oracle_texts(expected)
    if len(texts) < len(expected):
        missing = ", ".join(sorted(set(expected) - set(texts)))
        yield not_run(section, title, target, f"another text than the oracle's on this machine: {missing}")
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = {key: Path(folder) / key for key in texts}
        for key, path in paths.items():
            path.write_bytes(texts[key].encode())
        files = [str(p) for p in paths.values()]
        command = c.octavo("eval", "perplexity", model, *files, "--window", "1024", "--json", *flags)
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        if done.returncode:
            yield holds(section, title, False, target=target, value="failed", note=done.stderr.strip()[-200:])
            return
        found = json.loads(done.stdout)
    same = all(found["files"][str(path)]["tokens"] == expected[key]["tokens"] for key, path in paths.items())
    for key, path in paths.items() if detail else ():
        text = f"{found['files'][str(path)]['perplexity']:.3f} : {expected[key]['ppl']:.3f}"
        yield shown(section, f"perplexity, {key}, ours : fp32", text)
    tokens = sum(e["tokens"] for e in expected.values())
    pooled = math.exp(sum(math.log(e["ppl"]) * e["tokens"] for e in expected.values()) / tokens)
    off = 100 * (found["pooled"]["perplexity"] / pooled - 1)
    note = f"fp32 {pooled:.4f}" + ("" if same else "; tokens differ from the oracle's")
    yield holds(section, title, abs(off) <= limit and same, target=target, value=f"{off:+.2f} %", note=note)


def oracle_texts(expected: dict[str, dict[str, object]]) -> dict[str, str]:
    """The oracle's texts, rebuilt from this machine's licences and standard library; only those whose sha256 agrees."""
    import argparse
    import asyncio.events
    import pathlib
    import zipfile

    licences = Path("/usr/share/common-licenses")
    texts: dict[str, str] = {}
    if licences.is_dir():
        texts["apache2"] = (licences / "Apache-2.0").read_text()
        texts["gpl3_first_16k_chars"] = (licences / "GPL-3").read_text()[:16000]
    pieces = []
    for module in (argparse, zipfile, asyncio.events, pathlib):
        members = [v for _, v in sorted(vars(module).items()) if inspect.isclass(v) or inspect.isfunction(v)]
        pieces += [inspect.getdoc(o) or "" for o in [module, *members]]
    texts["py311_docstrings_16k_chars"] = "\n\n".join(pieces)[:16000]
    texts["py311_argparse_source_12k_chars"] = inspect.getsource(argparse)[:12000]
    return {
        name: text
        for name, text in texts.items()
        if name in expected and hashlib.sha256(text.encode()).hexdigest() == expected[name]["text_sha256"]
    }
