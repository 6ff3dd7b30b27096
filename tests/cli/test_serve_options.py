"""Options of `aquiline serve`: a YAML file, and the words of other engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aquiline.cli.app import build_parser
from aquiline.cli.serve import ServeSettings, check_arguments
from aquiline.errors import InvalidParameterError
from tests.test_docs import subcommand


def parse(*argv: str) -> ServeSettings:
    parser: Any = build_parser()
    return check_arguments(subcommand(parser, "serve"), parser.parse_args(["serve", *argv]))  # type: ignore[arg-type]


def test_defaults() -> None:
    settings = parse()
    assert (settings.model, settings.draft, settings.server.port) == ("smollm2-135m", "auto", 8000)
    assert settings.config.speculative.mode.text == "auto"


def test_a_file_sets_what_is_not_typed(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: some/model\nport: 9000\nmax-num-seqs: 7\nmax_queue: 5\ndraft: none\nno-prefix-cache: true\n"
        "api-key: [one, two]\nrequest_timeout: 2.5\nspeculate: 'off'\nthreads: 2\n"
    )
    settings = parse("--config", str(file), "--max-queue", "6", "--draft", "d")
    assert (settings.model, settings.draft, settings.num_threads) == ("some/model", "d", 2)
    assert (settings.server.port, settings.server.max_queue, settings.server.request_timeout) == (9000, 6, 2.5)
    assert settings.server.api_keys == ("one", "two")
    assert settings.config.scheduler.max_num_seqs == 7 and not settings.config.cache.enable_prefix_cache
    assert settings.config.speculative.mode.is_off
    assert parse("other", "--config", str(file)).model == "other"


def test_a_file_may_speak_of_other_engines(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("speculative-config: {method: eagle3, model: d, num_speculative_tokens: 2}\n")
    settings = parse("--config", str(file))
    assert (settings.draft, settings.config.speculative.mode.text) == ("d", "chain:2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("prot: 1", "'prot'", id="unknown"),
        pytest.param("port: high", "'high' is not an integer", id="type"),
        pytest.param("port: true", "True is not a value", id="truth"),
        pytest.param("port: [1, 2]", "not a value", id="list"),
        pytest.param("port: null", "None is not", id="null"),
        pytest.param("port: 70000", "port is 70000", id="range"),
        pytest.param("port: 1\nport: 2", "twice", id="twice"),
        pytest.param("no-prefix-cache: false", "a switch", id="switch"),
        pytest.param("- port", "option names", id="no mapping"),
        pytest.param("", "option names", id="empty"),
        pytest.param("a: [", "no YAML", id="no yaml"),
        pytest.param("config: other.yaml", "'config'", id="another file"),
        pytest.param("port: !!python/object:os.system 1", "no YAML", id="object"),
    ],
)
def test_mistakes_in_a_file_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    with pytest.raises(InvalidParameterError) as caught:
        parse("--config", str(file))
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        parse("--config", "no/such/file")


SGLANG = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")


def sglang(steps: int, topk: int, num_draft_tokens: int) -> list[str]:
    values = (steps, topk, num_draft_tokens)
    return [text for flag, value in zip(SGLANG, values, strict=True) for text in (flag, str(value))]


@pytest.mark.parametrize(
    ("argv", "draft", "mode"),
    [
        (["--speculative-config", '{"method": "eagle3", "model": "d", "num_speculative_tokens": 4}'], "d", "chain:4"),
        (["--speculative-config", '{"num_speculative_tokens": 1, "draft_tensor_parallel_size": 1}'], "auto", "chain:1"),
        (
            [
                "--speculative-config",
                '{"num_speculative_tokens": 3, "speculative_token_tree": "[(0,), (1,), (0, 0)]"}',
            ],
            "auto",
            "paths:0,1,00",
        ),
        (sglang(3, 1, 4), "auto", "chain:3"),
        (["--speculative-algorithm", "eagle", *sglang(5, 4, 17)], "auto", "dynamic:steps=5,topk=4,nodes=16"),
        (["--speculative-draft-model-path", "d"], "d", "auto"),
        (["--draft", "d", "--speculative-draft-model-path", "d", *sglang(1, 1, 2)], "d", "chain:1"),
    ],
    ids=str,
)
def test_words_of_other_engines(argv: list[str], draft: str, mode: str) -> None:
    settings = parse(*argv)
    assert (settings.draft, settings.config.speculative.mode.text) == (draft, mode)


def test_ngram_is_lookup() -> None:
    settings = parse("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}')
    speculative = settings.config.speculative
    assert (settings.draft, speculative.lookup, speculative.lookup_tokens) == ("none", "on", 5)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--speculative-config", "eagle"], "JSON object"),
        (["--speculative-config", "{}"], "num_speculative_tokens"),
        (["--speculative-config", '{"num_speculative_tokens": true}'], "num_speculative_tokens"),
        (["--speculative-config", '{"num_speculative_tokens": 2, "method": "medusa"}'], "medusa"),
        (["--speculative-config", '{"num_speculative_tokens": 2, "disable_by_batch_size": 4}'], "disable_by_batch"),
        (["--speculative-config", '{"num_speculative_tokens": 2, "draft_tensor_parallel_size": 2}'], "must be 1"),
        (["--speculative-config", '{"num_speculative_tokens": 2, "speculative_token_tree": "[(0,)]"}'], "as many as"),
        (["--speculative-config", '{"num_speculative_tokens": 1, "speculative_token_tree": "f()"}'], "paths of digits"),
        (["--speculative-config", '{"num_speculative_tokens": 99}'], "99"),
        (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2, "model": "d"}'], "model"),
        (["--speculative-config", '{"num_speculative_tokens": 2}', *sglang(1, 1, 2)], "one kind"),
        (["--speculative-config", '{"num_speculative_tokens": 2}', "--speculate", "off"], "one kind"),
        (["--speculative-config", '{"num_speculative_tokens": 2, "model": "d"}', "--draft", "e"], "another draft"),
        (sglang(3, 1, 3), "which makes 4"),
        (sglang(3, 1, 4)[:2], "belong together"),
        (["--speculative-algorithm", "NEXTN"], "NEXTN"),
        (sglang(0, 4, 5), "steps"),
    ],
    ids=str,
)
def test_contradictions_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        parse(*argv)
    assert message in str(caught.value)
