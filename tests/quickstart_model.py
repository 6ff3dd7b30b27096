"""Whether the model that the test command fetches is here; tests marked `model` are skipped where it is not."""

from __future__ import annotations

from aquiline.model_store import cached_path

QUICKSTART_MODEL = "smollm2-135m"
IS_ON_DISK = cached_path(QUICKSTART_MODEL).is_file()
PULL_IT = f"run: aquiline pull {QUICKSTART_MODEL}"
