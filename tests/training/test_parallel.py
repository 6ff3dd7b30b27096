"""Two processes train what one trains."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from aquiline.training.checkpoint import FOLDER, STATE
from aquiline.training.parallel import Processes
from tests.source_tree import ROOT
from tests.training.toy_run import toy_trainer

PROGRAM = """
import sys
from pathlib import Path
import torch
from aquiline.training.parallel import join_processes, leave_processes
from tests.training.toy_run import toy_examples, toy_settings, toy_target, DRAFT_IDS
from aquiline.training.trainer import Trainer, TrainerCallbacks, TrainingData
torch.set_num_threads(1)
processes = join_processes(torch.device("cpu"))
records = []
trainer = Trainer(toy_settings(), toy_target(), TrainingData(toy_examples(), DRAFT_IDS), Path(sys.argv[1]), processes)
trainer.run(TrainerCallbacks(on_step=records.append))
assert bool(records) == processes.is_first
leave_processes()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_two_processes_end_with_the_weights_of_one_up_to_rounding(tmp_path: Path) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "two")]
    running = [
        subprocess.Popen(command, cwd=ROOT, env=os.environ | address | {"RANK": str(rank), "PYTHONPATH": str(ROOT)})
        for rank in range(2)
    ]
    assert [process.wait(timeout=200) for process in running] == [0, 0]
    one = toy_trainer(tmp_path / "one").run()
    found, expected = load_file(tmp_path / "two" / FOLDER / one.name / STATE), load_file(one / STATE)
    for name in expected:
        if name.startswith("weights."):
            torch.testing.assert_close(found[name], expected[name], atol=2e-3, rtol=1e-3)


def test_processes_share_out_the_examples_of_a_step() -> None:
    shares = [Processes(rank, 3).share(range(10, 18)) for rank in range(3)]
    assert shares == [[10, 13, 16], [11, 14, 17], [12, 15]]
    assert [Processes(rank, 3).is_first for rank in range(3)] == [True, False, False]
