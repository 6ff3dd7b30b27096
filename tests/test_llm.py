"""The front door on a tiny model in a folder: prompts, conversations, callbacks, and what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aquiline.config import EngineConfig, LookupMode, SchedulerConfig, SpeculativeConfig
from aquiline.cores import default_num_threads
from aquiline.errors import (
    DraftMismatchError,
    InvalidParameterError,
    ModelNotFoundError,
    PromptError,
    UserError,
)
from aquiline.llm import LLM, TreeTrace
from aquiline.models.model_config import LlamaConfig
from aquiline.request import FinishReason, RequestOutput, SamplingParams
from aquiline.speculation import parse_speculation
from tests.checkpoints import write_draft, write_target
from tests.tiny import tiny_eagle_config, tiny_llama_config
from tests.tiny_tokenizers import train_byte_level

QUESTION = [{"role": "user", "content": "The eagle flies?"}]
PARAMS = SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def target_config() -> LlamaConfig:
    return replace(tiny_llama_config(), vocab_size=train_byte_level().get_vocab_size(), max_position=96)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, target_config: LlamaConfig) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_target(folder / "target", target_config)
    full = replace(tiny_eagle_config(target_config), draft_vocab_size=target_config.vocab_size)
    write_draft(folder / "draft", full)
    other = replace(full, layers=replace(full.layers, vocab_size=50), draft_vocab_size=50)
    write_draft(folder / "other_draft", other)
    return folder


def open_llm(
    folder: Path, speculate: str = "tree:2x2", draft: str | None = "draft", lookup: LookupMode = "auto"
) -> LLM:
    config = EngineConfig(
        dtype="float32",
        speculative=SpeculativeConfig(parse_speculation(speculate), draft_check="off", lookup=lookup),
        scheduler=SchedulerConfig(max_num_seqs=3),
    )
    return LLM(str(folder / "target"), draft=str(folder / draft) if draft else None, config=config)


def texts_of(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_speculation_changes_nothing(folder: Path) -> None:
    prompts = ["The eagle", "over the sea", "x", "12 km"]
    plain = open_llm(folder, "off", None).generate(prompts, PARAMS)
    fast = open_llm(folder).generate(prompts, PARAMS)
    assert [o.outputs[0].token_ids for o in fast] == [o.outputs[0].token_ids for o in plain]
    assert texts_of(fast) == texts_of(plain)
    assert sum(o.outputs[0].speculation.num_draft_tokens for o in fast) > 0
    assert [o.prompt for o in fast] == prompts


def test_one_prompt_needs_no_list(folder: Path) -> None:
    llm = open_llm(folder)
    assert texts_of(llm.generate("The eagle", PARAMS)) == texts_of(llm.generate(["The eagle"], PARAMS))
    token_ids = llm.tokenizer.encode("The eagle")
    assert texts_of(llm.generate(token_ids, PARAMS)) == texts_of(llm.generate("The eagle", PARAMS))
    assert texts_of(llm.chat(QUESTION, PARAMS)) == texts_of(llm.chat([QUESTION], PARAMS))


def test_chat_renders_the_template(folder: Path) -> None:
    llm = open_llm(folder)
    output = llm.chat(QUESTION, PARAMS)[0]
    assert list(output.prompt_token_ids) == llm.tokenizer.apply_chat_template(QUESTION)


def test_each_prompt_may_have_its_own_parameters(folder: Path) -> None:
    llm = open_llm(folder)
    outputs = llm.generate(["a", "b"], [replace(PARAMS, max_tokens=3), replace(PARAMS, max_tokens=5, n=2)])
    assert [[len(s.token_ids) for s in output.outputs] for output in outputs] == [[3], [5, 5]]
    assert outputs[1].outputs[0].token_ids != outputs[1].outputs[1].token_ids
    assert outputs[0].outputs[0].finish_reason is FinishReason.LENGTH


def test_outputs_grow_and_never_take_anything_back(folder: Path) -> None:
    seen: dict[int, list[RequestOutput]] = {0: [], 1: []}
    final = open_llm(folder).generate(["a", "b"], PARAMS, on_output=lambda index, output: seen[index].append(output))
    for index, outputs in seen.items():
        texts = [output.outputs[0].text for output in outputs]
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
        assert outputs[-1] == final[index]
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]


def test_traces_tell_what_was_committed(folder: Path) -> None:
    committed: list[int] = []
    llm = open_llm(folder)
    output = llm.generate("a", PARAMS, on_trace=lambda trace: committed.extend(trace.committed_token_ids))[0]
    assert tuple(committed) == output.outputs[0].token_ids


def test_no_prompts_no_answers(folder: Path) -> None:
    assert open_llm(folder).generate([], PARAMS) == []


def test_a_reported_seed_gives_the_answer_again(folder: Path) -> None:
    llm = open_llm(folder)
    first = llm.generate("a", replace(PARAMS, seed=None))[0]
    again = llm.generate("a", replace(PARAMS, seed=first.seed))[0]
    assert again.outputs[0].token_ids == first.outputs[0].token_ids


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        pytest.param(lambda llm: llm.generate(""), PromptError, id="empty text"),
        pytest.param(lambda llm: llm.generate(["a", ""]), PromptError, id="empty among others"),
        pytest.param(lambda llm: llm.generate([[]]), PromptError, id="no token ids"),
        pytest.param(lambda llm: llm.generate([[1, -1]]), PromptError, id="negative token id"),
        pytest.param(lambda llm: llm.generate([["a"]]), PromptError, id="text among token ids"),
        pytest.param(lambda llm: llm.generate([3.5]), PromptError, id="a number"),
        pytest.param(lambda llm: llm.generate(7), PromptError, id="no sequence"),
        pytest.param(lambda llm: llm.generate("word " * 200), PromptError, id="longer than the context"),
        pytest.param(lambda llm: llm.chat([]), PromptError, id="no messages"),
        pytest.param(lambda llm: llm.chat([{"role": "user"}]), PromptError, id="message without content"),
        pytest.param(lambda llm: llm.chat({"role": "user"}), PromptError, id="one message, no list"),
        pytest.param(lambda llm: llm.generate(b"a"), PromptError, id="bytes"),
        pytest.param(lambda llm: llm.generate(["a", b"a"]), PromptError, id="bytes among others"),
        pytest.param(lambda llm: llm.generate([True, False]), PromptError, id="truth values"),
        pytest.param(lambda llm: llm.generate(["a"], [PARAMS, PARAMS]), InvalidParameterError, id="two for one"),
        pytest.param(lambda llm: llm.generate("a", {"temperature": 0}), InvalidParameterError, id="a dictionary"),
        pytest.param(lambda llm: llm.generate(["a"], [None]), InvalidParameterError, id="nothing for one"),
        pytest.param(lambda llm: llm.generate(["a"], 7), InvalidParameterError, id="no parameters"),
        pytest.param(
            lambda llm: llm.generate("a", SamplingParams(stop_token_ids=[10**6])),
            InvalidParameterError,
            id="unknown stop token",
        ),
    ],
)
def test_mistakes_are_refused_and_the_engine_goes_on(
    ask: Callable[[LLM], object], error: type[UserError], folder: Path
) -> None:
    llm = open_llm(folder)
    with pytest.raises(error) as caught:
        ask(llm)
    assert "\n" not in str(caught.value)
    assert not llm.engine.has_unfinished
    assert len(llm.generate("a", PARAMS)[0].outputs[0].token_ids) == 12


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda llm: llm.generate(["a", "word " * 200, "b"]), id="too long"),
        pytest.param(lambda llm: llm.generate(["a", [1, -1], "b"]), id="token ids"),
        pytest.param(lambda llm: llm.chat([QUESTION, [{"role": "user"}], QUESTION]), id="message"),
        pytest.param(lambda llm: llm.chat([QUESTION, [{"role": "pirate", "content": "a"}], QUESTION]), id="template"),
    ],
)
def test_of_several_prompts_the_refused_one_is_named(ask: Callable[[LLM], object], folder: Path) -> None:
    with pytest.raises(PromptError, match=r"^prompt 1 of 3, counted from 0: "):
        ask(open_llm(folder))


def test_a_draft_for_another_target_is_refused(folder: Path) -> None:
    with pytest.raises(DraftMismatchError, match="50"):
        open_llm(folder, draft="other_draft")


def test_a_tree_without_a_draft_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidParameterError, match="no draft"):
        open_llm(folder, "chain:2", None, lookup="off")


def test_without_a_draft_tokens_are_looked_up(folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    plain = open_llm(folder, "off").generate("over the sea over the", params)
    for speculate in ("auto", "chain:4"):
        llm = open_llm(folder, speculate, None)
        looked_up = llm.generate("over the sea over the", params)
        assert texts_of(looked_up) == texts_of(plain)
        figures = looked_up[0].outputs[0].speculation
        assert figures.num_draft_tokens == figures.num_lookup_tokens > 0
    with pytest.raises(InvalidParameterError, match="nothing is looked up"):
        llm.reconfigured(replace(llm.config, speculative=replace(llm.config.speculative, lookup="off")))


@pytest.mark.parametrize("config", [{}, {"dtype": "float32"}, SchedulerConfig()], ids=["empty", "dict", "a part"])
def test_settings_of_another_kind_are_refused(folder: Path, config: Any) -> None:
    with pytest.raises(InvalidParameterError, match="it must be an EngineConfig"):
        LLM(str(folder / "target"), draft=None, config=config)


def test_a_text_is_no_conversation(folder: Path) -> None:
    with pytest.raises(PromptError, match="call generate with a text"):
        open_llm(folder).chat("Hello")  # type: ignore[arg-type]


def test_unknown_models_are_refused() -> None:
    with pytest.raises(ModelNotFoundError):
        LLM("no/such/folder/anywhere")


def test_an_unknown_draft_is_named_as_one(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no draft '.*no/such/draft/anywhere' here"):
        open_llm(folder, "chain:2", "no/such/draft/anywhere")


def test_a_folder_that_holds_no_draft_is_not_said_to_be_missing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"the folder .* is no draft, for it has no config\.json"):
        open_llm(folder, "chain:2", str(tmp_path))


def test_an_exception_in_a_callback_leaves_nothing_behind(folder: Path) -> None:
    llm = open_llm(folder)

    def fail(_: int, __: RequestOutput) -> None:
        raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="own"):
        llm.generate(["a", "b"], PARAMS, on_output=fail)
    assert not llm.engine.has_unfinished
    assert llm.engine.cache.num_free_blocks == llm.engine.cache.num_blocks


@pytest.mark.parametrize("by", ["on_output", "on_trace"])
def test_a_request_that_a_callback_aborts_ends_where_it_stands(folder: Path, by: str) -> None:
    llm = open_llm(folder)
    whole = llm.generate(["a", "b"], PARAMS)

    def on_output(index: int, output: RequestOutput) -> None:
        if index == 0 and len(output.outputs[0].token_ids) >= 4:
            llm.engine.abort(output.request_id)

    def on_trace(trace: TreeTrace) -> None:
        if trace.request_id.endswith("-0") and trace.step >= first_step + 3:
            llm.engine.abort(trace.request_id)

    first_step = llm.engine.num_steps
    if by == "on_output":
        cut, other = llm.generate(["a", "b"], PARAMS, on_output=on_output)
    else:
        cut, other = llm.generate(["a", "b"], PARAMS, on_trace=on_trace)
    assert cut.finished
    assert cut.outputs[0].finish_reason is FinishReason.ABORT
    num_tokens = len(cut.outputs[0].token_ids)
    assert 4 <= num_tokens < 12
    assert cut.outputs[0].token_ids == whole[0].outputs[0].token_ids[:num_tokens]
    assert other.outputs[0].token_ids == whole[1].outputs[0].token_ids
    assert llm.engine.cache.num_free_blocks == llm.engine.cache.num_blocks


def test_a_question_inside_the_answer_to_another_is_refused(folder: Path) -> None:
    llm = open_llm(folder)

    def ask_again(_: int, __: RequestOutput) -> None:
        llm.generate("c", PARAMS)

    with pytest.raises(InvalidParameterError, match="still has requests"):
        llm.generate(["a", "b"], PARAMS, on_output=ask_again)
    assert not llm.engine.has_unfinished
    assert len(llm.generate("a", PARAMS)[0].outputs[0].token_ids) == 12


def test_a_named_draft_has_to_exist_even_where_nothing_is_drafted(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        open_llm(folder, "off", "no_such_draft")


def test_the_number_of_threads_is_the_one_asked_for(folder: Path) -> None:
    before = torch.get_num_threads()
    try:
        config = EngineConfig(dtype="float32", speculative=SpeculativeConfig(parse_speculation("off")))
        LLM(str(folder / "target"), draft=None, config=config, num_threads=2)
        assert torch.get_num_threads() == 2
        LLM(str(folder / "target"), draft=None, config=config)
        assert torch.get_num_threads() == default_num_threads()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("num_threads", [0, -1, 1025, 2.0, "2", True])
def test_a_wrong_number_of_threads_is_refused(folder: Path, num_threads: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"num_threads is .* from 1 to 1024"):
        LLM(str(folder / "target"), draft=None, num_threads=num_threads)


def test_progress_of_loading_reaches_its_end(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    LLM(str(folder / "target"), draft=None, on_load_progress=lambda done, total: calls.append((done, total)))
    assert len(calls) > 1 and calls[-1][0] == calls[-1][1] > 0
