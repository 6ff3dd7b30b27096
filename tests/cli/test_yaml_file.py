"""Settings of a YAML file: what is wrong is named with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from aquiline.cli.train_options import values_of_file
from aquiline.cli.yaml_file import read_yaml
from aquiline.errors import InvalidParameterError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("target: a\nlayers: 2\n", "run.yaml line 2: 'layers' is not a setting of train", id="unknown"),
        pytest.param("seed: 1\n\nseed: 2\n", "run.yaml line 3: seed is given twice, first in line 1", id="twice"),
        pytest.param("num_layers: two\n", "run.yaml line 1: num_layers is 'two'; it must be an integer", id="text"),
        pytest.param("num_layers: 2.0\n", "run.yaml line 1: num_layers is 2.0; it must be an integer", id="float"),
        pytest.param("num_layers: true\n", "run.yaml line 1: num_layers is True; it must be an integer", id="bool"),
        pytest.param("ema_decay: high\n", "run.yaml line 1: ema_decay is 'high'; it must be a number", id="number"),
        pytest.param("fc_norm: 1\n", "run.yaml line 1: fc_norm is 1; it must be true or false", id="switch"),
        pytest.param("target: [a]\n", r"run.yaml line 1: target is \['a'\]; it must be a text", id="list"),
        pytest.param("data: [a, 3]\n", "run.yaml line 1: an entry of data is 3; it must be a text", id="entry"),
        pytest.param("data: []\n", r"run.yaml line 1: data is \[\]; it must be a list of texts", id="empty-list"),
        pytest.param("aux_layer_ids: [1, a]\n", "line 1: aux_layer_ids is .* it must be a list of integers", id="ids"),
        pytest.param("stages: fast\n", "line 1: stages is 'fast'; it must be a list of mappings", id="stages"),
        pytest.param("stages: [{steps: 1}]\n", "line 1: a stage is .* some of ttt_steps, learning_rate", id="stage"),
        pytest.param("stages: [{ttt_steps: x}]\n", "line 1: ttt_steps of a stage is 'x'", id="stage-type"),
        pytest.param("stages: [{ttt_steps: 0}]\n", "line 1: ttt_steps is 0; it must be an integer", id="stage-range"),
        pytest.param(
            "stages:\n- ttt_steps: 1\n  ttt_steps: 2\n", "line 3: ttt_steps is given twice", id="twice-in-stage"
        ),
        pytest.param("- a\n- b\n", "run.yaml line 1: a mapping of settings is expected", id="no-mapping"),
        pytest.param("target: [a\n", "run.yaml line 2 is not YAML", id="syntax"),
        pytest.param("target: !!python/object:os.system a\n", "line 1 is not YAML: could not determine", id="object"),
        pytest.param("1: a\n", "run.yaml line 1: a setting's name must be a text", id="key"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(InvalidParameterError, match=message) as caught:
        values_of_file(read_yaml(str(path)))
    assert "\n" not in str(caught.value)


def test_plain_values_come_through(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "target: 'a: b'\nema_decay: 1e-3\nbeta1: 0.5\nseed: 0\nfreeze_head: false\nno_plot: true\ndata: x\n"
    )
    assert values_of_file(read_yaml(str(path))) == {
        "target": "a: b",
        "ema_decay": 0.001,
        "beta1": 0.5,
        "seed": 0,
        "freeze_head": False,
        "has_plot": False,
        "data": ["x"],
    }


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("# nothing yet\n")
    assert read_yaml(str(path)) == {}


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidParameterError, match="not UTF-8"):
        read_yaml(str(path))
