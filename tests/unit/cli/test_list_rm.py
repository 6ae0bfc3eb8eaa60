"""`octavo list` and `octavo rm` over homes of the tests' own."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.cli import main as entry
from octavo.cli.errors import FAILED, OK, USAGE
from octavo.weights.peek import look
from octavo.weights.remove import plan, remove
from octavo.weights.sources.table import places
from tests import homes
from tests.tiny import write_tiny
from tests.unit.weights.gguf_maker import gguf_bytes

DATA = homes.model_bytes()
OTHER = homes.model_bytes(general__name="other", general__file_type=7)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a model in every place."""
    home = homes.make_home(tmp_path / "home", monkeypatch)
    homes.put_own(home, "mine", DATA)
    homes.put_hub(home, "org/m-GGUF", {"m-Q4_K_M.gguf": DATA, "m-Q8_0.gguf": OTHER, "copy/m-Q6_K.gguf": OTHER})
    homes.put_hub(home, "org/dir", {p.name: p.read_bytes() for p in write_tiny(tmp_path / "tiny", "llama").iterdir()})
    homes.put_lmstudio(home, "pub/l/l-Q8_0.gguf", OTHER)
    homes.put_llamacpp(home, "gg/c", "c-F16.gguf", DATA)
    homes.put_ollama(home, "llama3.2:1b", DATA)
    return home


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = entry.main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


ROWS = {
    ("mine", "octavo", "GGUF Q4_K_M", "llama"),
    ("org/m-GGUF:Q4_K_M", "huggingface", "GGUF Q4_K_M", "llama"),
    ("org/m-GGUF:Q8_0", "huggingface", "GGUF Q8_0", "llama"),
    ("org/m-GGUF:Q6_K", "huggingface", "GGUF Q6_K", "llama"),
    ("org/dir", "huggingface", "safetensors F32", "llama"),
    ("pub/l:Q8_0", "lmstudio", "GGUF Q8_0", "llama"),
    ("gg/c:F16", "llama.cpp", "GGUF F16", "llama"),
    ("llama3.2:1b", "ollama", "GGUF Q4_K_M", "llama"),
}


def test_json_and_table_say_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list", "--json")
    rows = json.loads(out)
    assert code == OK
    assert {(r["name"], r["source"], r["format"], r["architecture"]) for r in rows} == ROWS
    assert all(Path(r["path"]).exists() for r in rows)
    assert next(r["size"] for r in rows if r["name"] == "mine") == len(DATA)
    lines = run(capsys, "list")[1].splitlines()
    assert lines[0].split() == ["NAME", "SOURCE", "SIZE", "FORMAT", "ARCHITECTURE", "PATH"]
    assert len(lines) == len(rows) + 1
    assert {line.split()[0] for line in lines[1:]} == {name for name, *_ in ROWS}
    assert any(line.endswith("~/.cache/llama.cpp/gg_c_c-F16.gguf") for line in lines)


def test_every_name_of_the_list_is_understood(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from octavo.weights.source import resolve_model

    for row in json.loads(run(capsys, "list", "--json")[1]):
        if row["name"] != "mine":  # found by the catalogue, which does not know it
            assert str(resolve_model(row["name"], offline=True, progress=False).path) == row["path"]


def test_names(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run(capsys, "list", "--names")[1].split()
    assert names[0] == "smollm2" and set(names) == {"smollm2", *(name for name, *_ in ROWS)}


def test_an_empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    homes.make_home(tmp_path / "home", monkeypatch)
    assert run(capsys, "list") == (OK, "", "no models on this machine; octavo pull smollm2 fetches one (98 MB)\n")
    assert run(capsys, "list", "--json")[1] == "[]\n"


def test_a_fetch_cut_short_is_listed_and_can_be_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / ".cache/octavo/models/half-0123456789ab"
    homes.write(folder / "half-1.0-py3-none-any.whl", "x" * 500)
    rows = json.loads(run(capsys, "list", "--json")[1])
    assert [r["format"] for r in rows if r["name"] == "half"] == ["incomplete"]
    assert "half" not in run(capsys, "list", "--names")[1].split()
    assert run(capsys, "rm", "half", "--yes")[1] == "removed half: 500 bytes freed (500 B)\n"
    assert not folder.exists()


def test_the_list_needs_no_numpy_and_little_time(home: Path, tmp_path: Path) -> None:
    big = gguf_bytes(
        {"general.architecture": "gemma3", "tokenizer.ggml.tokens": ["t"] * 300_000, "general.file_type": 2}
    )
    for i in range(20):
        homes.put_lmstudio(home, f"pub/big{i}/b-Q4_0.gguf", big)
    code = "import sys; from octavo.cli.main import main; main(['list']); print('numpy' in sys.modules)"
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False" and len(re.findall(r"GGUF Q4_0 +gemma3", done.stdout)) == 20
    assert time.perf_counter() - began < 2.0, "the vocabularies alone would take longer"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GG",
        b"GGUF",
        b"GGUF" + b"\xff" * 40,
        b"not a model at all, but long enough",
        DATA[:60],
        gguf_bytes({"general.architecture": "x" * 100_000}),
    ],
)
def test_damaged_files_are_listed_as_such(data: bytes, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    homes.put_lmstudio(home, "bad/bad/bad.gguf", data)
    homes.write(home / ".lmstudio/models/bad/dir/config.json", "[1]")
    homes.write(home / ".lmstudio/models/bad/dir/model.safetensors", "")
    rows = {r["name"]: r["format"] for r in json.loads(run(capsys, "list", "--json")[1])}
    assert rows["bad/bad:bad.gguf"] in ("unreadable", "GGUF") and rows["bad/dir"] == "unreadable"


def test_look(tmp_path: Path) -> None:
    plain = homes.write(tmp_path / "sha256-abc", DATA)
    assert look(plain) == ("GGUF Q4_K_M", "llama")
    assert look(plain, name="m-IQ4_XS.gguf").format == "GGUF IQ4_XS"
    arrays = {"a.strings": ["x", "y"], "a.numbers": [1, 2, 3], "general.architecture": "late", "general.file_type": 1}
    assert look(homes.write(tmp_path / "b", gguf_bytes(arrays))) == ("GGUF F16", "late")
    config = {"model_type": "qwen3", "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "awq"}}
    homes.write(tmp_path / "d/config.json", json.dumps(config))
    assert look(tmp_path / "d") == ("safetensors awq", "qwen3")


def test_rm_of_our_own(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = next((home / ".cache/octavo/models").iterdir())
    code, out, _ = run(capsys, "rm", "mine", "--dry-run")
    assert code == OK and str(folder) in out and folder.exists()
    code, _, err = run(capsys, "rm", "mine")
    assert code == USAGE and "--yes" in err and folder.exists(), "nobody was asked"
    code, out, _ = run(capsys, "rm", "mine", "--yes")
    assert code == OK and out.startswith(f"removed mine: {len(DATA)} bytes freed") and not folder.exists()
    code, _, err = run(capsys, "rm", "mine", "--yes")
    assert code == FAILED and "no such model" in err


@pytest.mark.parametrize(("answer", "gone"), [("y", True), ("YES", True), ("", False), ("n", False)])
def test_rm_asks(
    answer: str, gone: bool, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    code, _, err = run(capsys, "rm", "mine")
    assert "remove mine" in err and code == (OK if gone else FAILED)
    assert any((home / ".cache/octavo/models").iterdir()) is not gone


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("llama3.2:1b", "belongs to Ollama, not to Octavo; to remove it: ollama rm llama3.2:1b"),
        ("pub/l:Q8_0", "belongs to LM Studio"),
        ("pub/l", "belongs to LM Studio"),
        ("gg/c:F16", "belongs to llama.cpp's cache, not to Octavo; to remove it: delete"),
        ("org/dir", "belongs to the Hugging Face cache, not to Octavo; to remove it: octavo rm --hf org/dir"),
        ("{home}/.lmstudio/models/pub/l/l-Q8_0.gguf", "belongs to LM Studio"),
        ("{home}/outside.gguf", "a path outside Octavo's cache"),
        ("{home}", "a path outside Octavo's cache"),
        ("..", "a path outside Octavo's cache"),
        ("nothing", "no such model on this machine"),
    ],
)
@pytest.mark.parametrize("hf", [False, True])
def test_rm_of_what_is_not_ours(name: str, says: str, hf: bool, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    homes.write(home / "outside.gguf", DATA)
    if hf and name == "org/dir":
        return
    before = homes.snapshot_of(home)
    code, _, err = run(capsys, "rm", name.format(home=home), "--yes", *(["--hf"] if hf else []))
    assert code != OK and says in err and err.count("\n") == 1
    assert homes.snapshot_of(home) == before


def test_rm_from_the_hugging_face_cache(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / ".cache/huggingface/hub/models--org--m-GGUF"
    blobs = {path.name for path in (folder / "blobs").iterdir()}
    assert len(blobs) == 2, "Q8_0 and Q6_K share one"
    code, out, _ = run(capsys, "rm", "--hf", "org/m-GGUF:Q8_0", "--yes")
    assert code == OK and " 0 bytes freed" in out, "Q6_K has the blob still"
    assert len(list((folder / "blobs").iterdir())) == 2
    out = run(capsys, "rm", "--hf", "org/m-GGUF:q6_k", "--yes")[1]
    assert f" {len(OTHER)} bytes freed" in out and len(list((folder / "blobs").iterdir())) == 1
    run(capsys, "rm", "--hf", "org/m-GGUF:Q4_K_M", "--yes")
    assert not folder.exists(), "nothing was left in it"
    code, out, _ = run(capsys, "rm", "--hf", "org/dir", "--yes")
    assert code == OK and not (home / ".cache/huggingface/hub/models--org--dir").exists()


def test_rm_of_files_that_repositories_share(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = home / ".cache/huggingface/hub"
    mine = homes.share_hub(cache / "models--org--m-GGUF/snapshots" / homes.COMMIT)
    theirs = homes.share_hub(homes.put_hub(home, "org/copy-GGUF", {"copy-Q4_K_M.gguf": DATA}))
    both, alone = theirs["copy-Q4_K_M.gguf"], mine["m-Q8_0.gguf"]
    assert both == mine["m-Q4_K_M.gguf"] and alone == mine["copy/m-Q6_K.gguf"]
    out = run(capsys, "rm", "--hf", "org/m-GGUF:Q8_0", "--yes")[1]
    assert " 0 bytes freed" in out and alone.exists(), "Q6_K of the same repository has it still"
    assert str(alone) in run(capsys, "rm", "--hf", "org/m-GGUF:Q6_K", "--dry-run")[1] and alone.exists()
    out = run(capsys, "rm", "--hf", "org/m-GGUF:Q6_K", "--yes")[1]
    assert f" {len(OTHER)} bytes freed" in out and not alone.exists()
    assert not alone.with_name(f"{alone.name}.refs").exists(), "nor the client's list of its links"
    out = run(capsys, "rm", "--hf", "org/m-GGUF", "--yes")[1]
    assert f" {len(homes.COMMIT)} bytes freed" in out, "those of refs/main"
    assert both.exists() and not (cache / "models--org--m-GGUF").exists()
    out = run(capsys, "rm", "--hf", "org/copy-GGUF", "--yes")[1]
    assert f" {len(DATA) + len(homes.COMMIT)} bytes freed" in out and not both.exists()


def test_a_file_that_another_repository_came_to_share_meanwhile_stays(home: Path) -> None:
    snapshot = home / ".cache/huggingface/hub/models--org--m-GGUF/snapshots" / homes.COMMIT
    (shared,) = set(homes.share_hub(snapshot).values()) - {homes.share_hub(snapshot)["m-Q8_0.gguf"]}
    removal = plan("org/m-GGUF:Q4_K_M", places(), hub=True)
    assert removal.shared == (shared,)
    homes.share_hub(homes.put_hub(home, "org/copy-GGUF", {"copy-Q4_K_M.gguf": DATA}))
    remove(removal)
    assert shared.exists() and not (snapshot / "m-Q4_K_M.gguf").exists()


def test_rm_never_follows_a_link_out(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    precious = homes.write(tmp_path / "precious/model.gguf", DATA)
    link = home / ".cache/octavo/models/evil-0123456789ab"
    link.symlink_to(precious.parent)
    code, _, err = run(capsys, "rm", "evil", "--yes")
    assert code == FAILED and "no such model" in err and precious.exists()
    folder = next(p for p in link.parent.iterdir() if not p.is_symlink())
    (folder / "inside").symlink_to(precious.parent)
    assert run(capsys, "rm", "mine", "--yes")[0] == OK and precious.exists() and not folder.exists()
    snapshot = home / ".cache/huggingface/hub/models--org--m-GGUF/snapshots" / homes.COMMIT
    (snapshot / "m-Q4_K_M.gguf").unlink()
    (snapshot / "m-Q4_K_M.gguf").symlink_to(precious)
    assert run(capsys, "rm", "--hf", "org/m-GGUF:Q4_K_M", "--yes")[0] == FAILED, "a link that leads out is no entry"
    run(capsys, "rm", "--hf", "org/m-GGUF", "--yes")
    assert precious.exists() and not snapshot.exists()


def test_rm_waits_for_no_fetch(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = next((home / ".cache/octavo/models").iterdir()) / "lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, _, err = run(capsys, "rm", "mine", "--yes")
    assert code == FAILED and "being fetched by another process" in err and lock.exists()
