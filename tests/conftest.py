"""One thread per test process: the suite runs several processes, and threads that wait for each other's cores stall."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
# Nothing is measured, and no tree depends on a clock.
os.environ["AQUILINE_COSTS"] = "generic"

import pytest
import torch

torch.set_num_threads(1)

# A file is the work of one process, so the longest begin first: at the end of the alphabet they would run alone.
LONGEST_FILES = (
    "test_real_equality.py",
    "test_planner_confidence.py",
    "test_train.py",
    "test_docs.py",
    "test_real_load.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST_FILES)
