"""Models that other programs left on the machine: found before anything is fetched, read only, never a crash."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from octavo.errors import FetchError
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.source import resolve_model
from octavo.weights.sources.place import Wanted
from octavo.weights.sources.table import places
from tests import homes

DATA = homes.model_bytes()
OTHER = homes.model_bytes(general__name="other")
MANIFESTS = ".ollama/models/manifests/registry.ollama.ai/library"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return homes.make_home(tmp_path / "home", monkeypatch)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks Hugging Face fails the test."""

    def asked(*args: object, **options: object) -> None:
        raise AssertionError(f"asked the hub: {args}")

    monkeypatch.setattr("octavo.weights.hub.fetch", asked)


def found(spec: str) -> Path:
    return resolve_model(spec, progress=False).path


def names() -> list[tuple[str, str]]:
    return [(entry.place, entry.name) for place in places() for entry in place.entries()]


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    "spec",
    ["llama3.2:1b", "LLAMA3.2:1B", "plain", "plain:latest", "user/mine:q4", "hf.co/org/m-GGUF:Q8_0", "org/m-GGUF:q8_0"],
)
def test_ollama(home: Path, spec: str) -> None:
    blobs = {
        "llama3.2:1b": homes.put_ollama(home, "llama3.2:1b", DATA),
        "plain:latest": homes.put_ollama(home, "plain:latest", homes.model_bytes(general__name="plain")),
        "user/mine:q4": homes.put_ollama(
            home, "mine:q4", homes.model_bytes(general__name="mine"), host="registry.ollama.ai/user"
        ),
        "hf.co/org/m-GGUF:Q8_0": homes.put_ollama(home, "m-GGUF:Q8_0", OTHER, host="hf.co/org"),
    }
    before = homes.snapshot_of(home)
    want = next(blob for name, blob in blobs.items() if spec.lower().partition(":")[0] in name.lower())
    assert found(spec) == want
    assert sorted(name for _, name in names()) == sorted(blobs)
    assert homes.snapshot_of(home) == before, "something was written"


@pytest.mark.usefixtures("no_hub")
def test_an_ollama_blob_opens_and_its_template_is_left_out(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    homes.put_ollama(home, "llama3.2:1b", DATA, extra=("template", "params", "license"))
    source = resolve_model("llama3.2:1b")
    assert source.name == "llama3.2:1b"
    assert open_checkpoint(source.path).config["model_type"] == "llama"
    said = capsys.readouterr().err
    assert "found in Ollama" in said and "Ollama's template and params are not used" in said


@pytest.mark.usefixtures("no_hub")
def test_ollama_folders(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blob = homes.put_ollama(home, "m:a", DATA)
    (home / ".ollama/models").rename(tmp_path / "elsewhere")
    with pytest.raises(FetchError, match="no such file"):
        found("m:a")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "elsewhere"))
    assert found("m:a") == tmp_path / "elsewhere/blobs" / blob.name
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setattr("octavo.weights.sources.ollama.SYSTEM", tmp_path / "elsewhere")
    assert found("m:a").name == blob.name


def layer(**fields: object) -> str:
    whole = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "0" * 64, "size": 3, **fields}
    return json.dumps({"layers": [whole]})


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ("", "is no manifest"),
        ("{", "is no manifest"),
        ("[]", "is no manifest"),
        ("{}", "is no manifest"),
        ('{"layers": 3}', "is no manifest"),
        ("[" * 20_000, "is no manifest"),
        ('{"layers": []}', "got 0 model layers"),
        (layer(size="big"), "is no manifest"),
        (layer(digest="sha256:../../../../etc/passwd"), "64 hex digits"),
        (layer(digest="sha256:" + "A" * 64), "64 hex digits"),
        (layer(digest=7), "is no manifest"),
        (layer(), "is not there"),
        ("x" * (2 << 20), "more than"),
        ("\x80\x81", "is no manifest"),
    ],
)
def test_malformed_manifests(home: Path, manifest: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    homes.put_ollama(home, "good:1", DATA)
    homes.write(home / MANIFESTS / "bad/1", manifest.encode("latin-1"))
    with pytest.raises(FetchError, match=says):
        found("bad:1")
    with caplog.at_level(logging.WARNING, "octavo"):
        assert names() == [("ollama", "good:1")]
    assert "bad:1 is skipped" in caplog.text


def test_blobs_that_are_not_what_the_manifest_says(home: Path, tmp_path: Path) -> None:
    blob = homes.put_ollama(home, "m:1", DATA)
    blob.write_bytes(DATA[:-1])
    with pytest.raises(FetchError, match=f"got {len(DATA) - 1} bytes, allowed: the manifest's {len(DATA)}"):
        found("m:1")
    blob.unlink()
    secret = homes.write(tmp_path / "secret", DATA)
    blob.symlink_to(secret)
    with pytest.raises(FetchError, match="is not there"):
        found("m:1")
    blob.unlink()
    blob.mkdir()
    with pytest.raises(FetchError, match="is not there"):
        found("m:1")
    assert names() == []


@pytest.mark.usefixtures("no_hub")
def test_lm_studio(home: Path) -> None:
    four = homes.put_lmstudio(home, "pub/Model-GGUF/model-Q4_K_M.gguf", DATA)
    eight = homes.put_lmstudio(home, "pub/Model-GGUF/model-Q8_0.gguf", OTHER)
    homes.put_lmstudio(home, "pub/Model-GGUF/mmproj-model-F16.gguf", OTHER)
    homes.write(home / ".cache/lm-studio/models/old/old-GGUF/old.gguf", DATA)
    before = homes.snapshot_of(home)
    assert found("pub/Model-GGUF") == four, "four bits first"
    assert found("pub/model-gguf:q8_0") == eight
    assert found("model-Q8_0.gguf") == found("MODEL-q8_0") == eight
    assert found("old/old-GGUF") == home / ".cache/lm-studio/models/old/old-GGUF/old.gguf"
    assert [name for _, name in names()] == ["pub/Model-GGUF:Q4_K_M", "pub/Model-GGUF:Q8_0", "old/old-GGUF:old.gguf"]
    assert homes.snapshot_of(home) == before, "something was written"


def test_a_file_name_that_two_models_have(home: Path) -> None:
    homes.put_lmstudio(home, "a/one/m-Q4_0.gguf", DATA)
    homes.put_lmstudio(home, "b/two/m-Q4_0.gguf", DATA)
    with pytest.raises(FetchError, match="several models have that name: a/one:Q4_0, b/two:Q4_0"):
        found("m-Q4_0.gguf")
    assert found("b/two").parent.name == "two"


@pytest.mark.usefixtures("no_hub")
def test_llama_cpp(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = homes.put_llamacpp(home, "ggml-org/gemma-GGUF", "gemma-Q4_0.gguf", DATA)
    loose = homes.write(home / ".cache/llama.cpp/loose.gguf", DATA)
    assert found("ggml-org/gemma-GGUF") == found("ggml-org/gemma-GGUF:Q4_0") == found("gemma-Q4_0.gguf") == path
    assert found("loose") == loose
    (home / ".cache/llama.cpp").rename(tmp_path / "moved")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "moved"))
    assert found("ggml-org/gemma-GGUF") == tmp_path / "moved" / path.name


DIRECTORY = {
    "config.json": b"{}",
    "model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}',
    "model-1.safetensors": b"one",
    "model-2.safetensors": b"two",
}


@pytest.mark.usefixtures("no_hub")
def test_hugging_face_cache(home: Path) -> None:
    snapshot = homes.put_hub(home, "org/m", {**DIRECTORY, "gguf/m-Q4_0.gguf": DATA})
    homes.put_hub(home, "org/m", {"config.json": b"old"}, commit="f" * 40)
    homes.write(snapshot.parent.parent / "refs/main", homes.COMMIT)
    ggufs = homes.put_hub(home, "org/n-GGUF", {"n-Q8_0.gguf": OTHER, "n-Q5_K_M.gguf": DATA})
    before = homes.snapshot_of(home)
    assert found("org/m") == found("hf.co/org/m") == found("https://huggingface.co/org/m") == snapshot
    assert found("org/m:Q4_0") == snapshot / "gguf/m-Q4_0.gguf"
    assert found("org/n-GGUF").name == "n-Q5_K_M.gguf"
    assert found("Org/N-gguf:q8_0") == ggufs / "n-Q8_0.gguf"
    assert homes.snapshot_of(home) == before, "something was written"


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("linked", [False, True], ids=["folder", "link"])
def test_files_that_repositories_of_the_hugging_face_cache_share(
    home: Path, linked: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if linked:
        (tmp_path / "disk").mkdir()
        (home / ".cache").symlink_to(tmp_path / "disk")
    snapshot = homes.put_hub(home, "org/m", DIRECTORY)
    ggufs = homes.put_hub(home, "org/n-GGUF", {"n-Q8_0.gguf": OTHER, "n-Q5_K_M.gguf": DATA})
    copies = homes.put_hub(home, "org/copy-GGUF", {"copy-Q5_K_M.gguf": DATA})
    for each in (snapshot, ggufs, copies):
        for file in homes.share_hub(each).values():
            assert file.is_file() and not file.is_symlink(), "outside the repository's folder"
    assert found("org/m") == snapshot and found("org/n-GGUF:q8_0") == ggufs / "n-Q8_0.gguf"
    assert found("org/copy-GGUF").samefile(found("org/n-GGUF"))
    assert [name for _, name in names()] == ["org/copy-GGUF:Q5_K_M", "org/m", "org/n-GGUF:Q5_K_M", "org/n-GGUF:Q8_0"]
    assert caplog.text == ""


def test_a_link_out_of_the_hugging_face_cache_is_skipped(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = homes.put_hub(home, "org/n", {"n-Q8_0.gguf": DATA})
    blob = (snapshot / "n-Q8_0.gguf").resolve()
    blob.unlink()
    blob.symlink_to(homes.write(tmp_path / "outside", DATA))
    assert names() == [] and "leads out of" in caplog.text


@pytest.mark.parametrize(
    ("variable", "inside"), [("HF_HOME", "hub"), ("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", "")]
)
def test_hugging_face_folders(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, inside: str
) -> None:
    homes.put_hub(home, "org/n", {"n-Q8_0.gguf": DATA})
    target = tmp_path / "moved" / inside
    target.parent.mkdir(exist_ok=True)
    (home / ".cache/huggingface/hub").rename(target)
    monkeypatch.setenv(variable, str(tmp_path / "moved"))
    assert found("org/n").is_relative_to(target)
    monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "xdg/huggingface").mkdir(parents=True)
    target.rename(tmp_path / "xdg/huggingface/hub")
    assert found("org/n").is_relative_to(tmp_path / "xdg")


@pytest.mark.parametrize("lacks", ["model-2.safetensors", "config.json", "incomplete", "index"])
def test_what_is_not_whole_is_left_to_the_hub(home: Path, lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = homes.put_hub(home, "org/m", DIRECTORY)
    if lacks == "incomplete":
        homes.write(snapshot.parent.parent / "blobs/abc.incomplete", "half")
    elif lacks == "index":
        (snapshot / "model.safetensors.index.json").unlink()
        homes.write(snapshot / "model.safetensors.index.json", "{")
    else:
        (snapshot / lacks).unlink()
    monkeypatch.setattr("octavo.weights.hub.fetch", lambda *a, **k: Path("fetched"))
    assert found("org/m") == Path("fetched")


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("left", ["beside its content", "before main moved"])
def test_a_part_that_a_killed_fetch_left_does_not_make_a_model_cut_short_for_ever(home: Path, left: str) -> None:
    snapshot = homes.put_hub(home, "org/m", DIRECTORY)
    folder = snapshot.parent.parent
    if left == "beside its content":
        blob = Path((snapshot / "config.json").readlink()).name
        homes.write(folder / f"blobs/{blob}.incomplete", "half")
        homes.write(folder / f"blobs/{blob}.01ab23cd.incomplete", "half")
    else:
        part = homes.write(folder / "blobs/abc.01ab23cd.incomplete", "half")
        assert places()[1].entries()[0].whole is False
        before = (folder / "refs/main").stat().st_mtime - 1
        os.utime(part, (before, before))
    assert found("org/m") == snapshot


def test_split_files_are_one_model_and_all_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf": DATA + bytes([i]) for i in (1, 2, 3)}
    snapshot = homes.put_hub(home, "org/m", parts)
    monkeypatch.setattr("octavo.weights.hub.fetch", lambda *a, **k: Path("fetched"))
    (entry,) = places()[1].entries()
    assert entry.name == "org/m:Q8_0" and len(entry.files) == 3 and entry.size == 3 * (len(DATA) + 1)
    assert found("org/m:Q8_0") == snapshot / "Q8_0/m-Q8_0-00001-of-00003.gguf"
    (snapshot / "Q8_0/m-Q8_0-00002-of-00003.gguf").unlink()
    assert found("org/m:Q8_0") == Path("fetched")


def test_links_that_lead_out_or_nowhere_are_skipped(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside = homes.write(tmp_path / "outside/secret-Q4_0.gguf", DATA)
    folder = home / ".lmstudio/models/pub/m"
    folder.mkdir(parents=True)
    (folder / "a-Q4_0.gguf").symlink_to(outside)
    (folder / "b-Q4_0.gguf").symlink_to(folder / "nothing")
    (folder / "loop-Q4_0.gguf").symlink_to(folder / "loop-Q4_0.gguf")
    (folder.parent / "out").symlink_to(outside.parent)
    (folder.parent / "round").symlink_to(folder.parent)
    homes.put_lmstudio(home, "pub/m/good-Q4_0.gguf", DATA)
    with caplog.at_level(logging.WARNING, "octavo"):
        assert ("lmstudio", "pub/m:Q4_0") in names()
    assert "leads out of" in caplog.text and "leads nowhere" in caplog.text
    assert "secret" not in str(names())


def test_folders_that_are_files_or_closed_to_us(home: Path) -> None:
    homes.write(home / ".lmstudio/models", "no folder")
    homes.write(home / ".ollama/models/manifests", "no folder")
    homes.write(home / ".cache/huggingface/hub", "no folder")
    homes.write(home / ".cache/llama.cpp", "no folder")
    homes.write(home / ".cache/octavo/models", "no folder")
    assert names() == []


@pytest.mark.usefixtures("no_hub")
def test_order_and_download_dir(home: Path, tmp_path: Path) -> None:
    homes.put_lmstudio(home, "org/n/n-Q4_0.gguf", DATA)
    assert found("org/n").is_relative_to(home / ".lmstudio")
    homes.put_hub(home, "org/n", {"n-Q4_0.gguf": DATA})
    assert found("org/n").is_relative_to(home / ".cache")
    (home / ".cache/huggingface/hub").rename(tmp_path / "kept")
    assert resolve_model("org/n", cache_dir=tmp_path / "kept", progress=False).path.is_relative_to(tmp_path / "kept")


def test_a_revision_and_an_update_ask_the_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes.put_hub(home, "org/n", {"n-Q4_0.gguf": DATA})
    monkeypatch.setattr("octavo.weights.hub.fetch", lambda *a, **k: Path("fetched"))
    assert resolve_model("org/n", revision="v1", progress=False).path == Path("fetched")
    assert resolve_model("org/n", update=True, progress=False).path == Path("fetched")
    homes.put_ollama(home, "m:1", DATA)
    assert resolve_model("m:1", update=True, progress=False).path.name.startswith("sha256-")


def test_the_error_for_an_unknown_model_names_the_nearest_and_the_places(home: Path) -> None:
    homes.put_ollama(home, "llama3.2:1b", DATA)
    homes.put_lmstudio(home, "pub/Qwen-GGUF/qwen-Q4_0.gguf", DATA)
    with pytest.raises(FetchError) as error:
        found("lama3.2:1b")
    says = str(error.value)
    assert "did you mean llama3.2:1b?" in says and "\n" not in says
    for place in (
        "the catalogue (smollm2)",
        "~/.cache/octavo/models",
        "~/.cache/huggingface/hub",
        "~/.lmstudio/models",
    ):
        assert place in says
    with pytest.raises(FetchError, match="did you mean pub/Qwen-GGUF:Q4_0"):
        found("qwen-gguf:q3")


@pytest.mark.parametrize(
    ("text", "name", "choice", "is_repo"),
    [
        ("org/repo", "org/repo", "", True),
        ("hf.co/org/repo:Q4_K_M", "org/repo", "Q4_K_M", True),
        ("https://huggingface.co/org/repo/", "org/repo", "", True),
        ("org/repo:sub/file.gguf", "org/repo", "sub/file.gguf", True),
        ("llama3.2:1b", "llama3.2", "1b", False),
        ("a/b/c", "a/b/c", "", False),
    ],
)
def test_wanted(text: str, name: str, choice: str, is_repo: bool) -> None:
    wanted = Wanted.parse(text)
    assert (wanted.name, wanted.choice, wanted.is_repo) == (name, choice, is_repo)
