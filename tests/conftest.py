"""One thread per test process: the suite runs several processes, and threads that wait for each other's cores stall."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
# Nothing is measured, and no tree depends on a clock.
os.environ["AQUILINE_COSTS"] = "generic"

import torch

torch.set_num_threads(1)
