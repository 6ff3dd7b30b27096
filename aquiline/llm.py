"""The offline front door: prompts in, answers out, in order."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aquiline.config import EngineConfig
from aquiline.cores import default_num_threads
from aquiline.engine.draft_check import CHECK_TEXT, check_fit
from aquiline.engine.engine import Engine, EngineModels
from aquiline.engine.outputs import SampleGroup
from aquiline.engine.sizing import DTYPES
from aquiline.engine.step_trace import StepRecorder
from aquiline.engine.trace import TreeTrace
from aquiline.errors import DraftMismatchError, InvalidParameterError, PromptError
from aquiline.kernels.cpu.packed import MAX_THREADS
from aquiline.model_store import KNOWN_MODELS, resolve_model
from aquiline.models.assemble import ModelSettings, assemble_draft, assemble_models
from aquiline.models.load_progress import LoadCallback
from aquiline.request import RequestOutput, SamplingParams
from aquiline.shipped_drafts import resolve_draft, shipped_draft
from aquiline.step_costs import CostCallback, StepCostBook
from aquiline.tokenizer import Tokenizer

__all__ = ["LLM", "Conversation", "Message", "OutputCallback", "Prompt", "TraceCallback", "TreeTrace"]

Message = Mapping[str, Any]
Conversation = Sequence[Message]
Prompt = str | Sequence[int]
OutputCallback = Callable[[int, RequestOutput], None]
TraceCallback = Callable[[TreeTrace], None]
# Sequences of integers, but no prompt: a text that was not decoded.
_BYTES = (bytes, bytearray, memoryview)


class LLM:
    """A model with its draft, ready to answer.

    Args:
        model: a known name, a GGUF file, a Hugging Face folder, or a hub id.
        draft: a folder with a draft model; `auto` takes the one shipped for a known model, if any; None or `none`
            decodes plainly.
        config: settings of the engine.
        num_threads: of the kernels, 1 to 1024; None: as `OMP_NUM_THREADS` says, or else one for each physical core that
            the process may use. The process's PyTorch is set to that number, or to one where native kernels run beside
            it.
        on_load_progress: called while weights are read and packed, after each tensor, with how many weights (numbers)
            are done and of how many.
        on_cost_progress: called while the time of steps is measured, which happens once for `--speculate auto` on a
            machine and takes about a second.

    Raises:
        UserError: a model that cannot be found, read or combined, or settings that do not fit it.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        draft: str | None = "auto",
        config: EngineConfig | None = None,
        num_threads: int | None = None,
        on_load_progress: LoadCallback | None = None,
        on_cost_progress: CostCallback | None = None,
    ) -> None:
        self.config = EngineConfig() if config is None else config
        if not isinstance(self.config, EngineConfig):
            raise InvalidParameterError(f"config is {config!r}; it must be an EngineConfig")
        if num_threads is None:
            num_threads = default_num_threads()
        if not isinstance(num_threads, int) or isinstance(num_threads, bool) or not 1 <= num_threads <= MAX_THREADS:
            raise InvalidParameterError(
                f"num_threads is {num_threads!r}; it must be an integer from 1 to {MAX_THREADS}, or None"
            )
        path = resolve_model(model)
        mode = self.config.speculative.mode
        # A named draft has to exist even where nothing is drafted; the shipped one is looked for when it is needed.
        draft_path = None if mode.is_off and draft == "auto" else _draft_path(model, draft)
        if mode.is_off:
            draft_path = None
        if draft_path is None and mode.shape is not None and not self.config.speculative.looks_up(has_draft=False):
            raise InvalidParameterError(
                f"--speculate is {mode.text!r} and there is no draft model for {model!r}; name one with --draft, or use"
                " --speculate off or --lookup auto"
            )
        self.tokenizer = Tokenizer.from_path(path)
        settings = ModelSettings(
            dtype=DTYPES[self.config.dtype],
            backend=self.config.backend,
            quantization=self.config.quantization,
            draft_quantization=self.config.draft_quantization,
            num_threads=num_threads,
        )
        models = assemble_models(path, draft_path, settings, on_load_progress)
        self._settings = settings
        self.backend = models.backend
        # Beside the pool of the native kernels PyTorch gets one thread: two pools would wait for each other's cores.
        torch.set_num_threads(1 if self.backend == "cpu" else settings.num_threads)
        eos_token_ids = self.tokenizer.eos_token_ids | frozenset(models.target.config.eos_token_ids)
        self._models = EngineModels(
            models.target, models.draft, self.tokenizer.new_decoder, eos_token_ids, self.tokenizer.vocabulary
        )
        self._check_draft(draft_path)
        self._costs = StepCostBook(path, draft_path, self.backend, num_threads, on_cost_progress)
        self.engine = self._new_engine()
        self._num_calls = 0

    def _new_engine(self) -> Engine:
        return Engine(self._models, self.config, planner=self._costs.planner(self._models, self.config))

    @property
    def step_costs(self) -> StepCostBook:
        """What steps cost on this machine."""
        return self._costs

    @property
    def models(self) -> EngineModels:
        """Target and draft as they were loaded, for programs that measure them."""
        return self._models

    @property
    def num_threads(self) -> int:
        """Of the kernels."""
        return self._settings.num_threads

    def reconfigured(self, config: EngineConfig) -> LLM:
        """The same loaded models behind other settings of the engine.

        Raises:
            InvalidParameterError: settings that do not fit the models, or that would load them in another way; a tree
                where no draft was loaded.
        """
        for name in ("dtype", "backend", "quantization", "draft_quantization"):
            if getattr(config, name) != getattr(self.config, name):
                raise InvalidParameterError(f"{name} is settled when a model is loaded; load it again to change it")
        has_draft = self._models.draft is not None
        if config.speculative.mode.shape is not None and not has_draft and not config.speculative.looks_up(has_draft):
            raise InvalidParameterError(
                "no draft model was loaded and nothing is looked up; load the model with a draft to grow trees"
            )
        other = copy.copy(self)
        other.config = config
        other.engine = other._new_engine()
        return other

    def with_draft(self, draft: str) -> LLM:
        """The same loaded target with another draft, for programs that compare drafts.

        Args:
            draft: a folder or hub id; its features must be those of the draft that was loaded with the target.

        Raises:
            InvalidParameterError: the target was loaded without a draft.
            UserError: a draft that cannot be found, read, or combined with the target.
        """
        if self._models.draft is None:
            raise InvalidParameterError("no draft model was loaded; load the model with one to exchange it")
        path = _draft_path("", draft)
        if path is None:
            raise InvalidParameterError(f"the draft is {draft!r}; name a folder or a hub id")
        aux_layer_ids = self._models.draft.config.aux_layer_ids
        other = copy.copy(self)
        model = assemble_draft(path, self._models.target, aux_layer_ids, self._settings)
        other._models = replace(self._models, draft=model)
        other._costs = replace(self._costs, draft=path, _known={})
        other.engine = other._new_engine()
        return other

    def record_steps(self) -> StepRecorder:
        """Begin to record every step of the engine, phase by phase; `chrome_trace` makes a trace of it."""
        recorder = StepRecorder()
        self.engine.clock.recorder = recorder
        return recorder

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_output: OutputCallback | None = None,
        on_trace: TraceCallback | None = None,
    ) -> list[RequestOutput]:
        """Continue raw prompts.

        Args:
            prompts: one text, or one list of token ids, or a list of either.
            params: for all prompts, or one for each; None takes the defaults.
            on_output: called after every step with (index of the prompt, its state so far) for each prompt that grew;
                a request that it aborts ends where it stands.
            on_trace: called after every step with the draft tree of each prompt.

        Returns:
            One finished output per prompt, in order.

        Raises:
            PromptError: a prompt that is empty, malformed or too long; nothing is run then.
            InvalidParameterError: parameters that do not fit, or a call inside a callback of another one; nothing is
                run then.
        """
        texts: list[Prompt] = _as_list(prompts)
        encoded = [self._encode(index, prompt) for index, prompt in enumerate(texts)]
        return self._run(texts, encoded, params, on_output, on_trace)

    def chat(
        self,
        conversations: Conversation | Sequence[Conversation],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_output: OutputCallback | None = None,
        on_trace: TraceCallback | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations through the model's chat template; otherwise as `generate`.

        Args:
            conversations: one list of messages (`role`, `content`), or a list of such lists.
        """
        if isinstance(conversations, str):
            raise PromptError(
                "chat takes messages; give [{'role': 'user', 'content': TEXT}], or call generate with a text"
            )
        if isinstance(conversations, Mapping) or not isinstance(conversations, Sequence) or not conversations:
            raise PromptError("there is no message; give a list of messages, or a list of such lists")
        many = [conversations] if isinstance(conversations[0], Mapping) else conversations
        encoded = []
        for index, messages in enumerate(many):
            with _place_named(index, len(many)):
                encoded.append(self.tokenizer.apply_chat_template(messages))  # type: ignore[arg-type]
        return self._run([None] * len(encoded), encoded, params, on_output, on_trace)

    def _check_draft(self, path: Path | None) -> None:
        """Raise DraftMismatchError, or warn, when the draft's guesses are no better than chance."""
        target, draft, action = self._models.target, self._models.draft, self.config.speculative.draft_check
        if draft is None or action == "off":
            return
        fit = check_fit(target, draft, self.tokenizer.encode(CHECK_TEXT), DTYPES[self.config.dtype])
        if fit is None or not fit.is_at_chance:
            return
        message = (
            f"the draft {path} guesses {fit.num_right} of {fit.num_positions} tokens of a text as the target does, no "
            f"better than chance ({100 * fit.chance:.0f} %); it is hardly trained, not for this target, or put "
            "together in another way: aquiline draft check looks for the cause, and --draft-check off or warn loads it "
            "all the same"
        )
        if action == "refuse":
            raise DraftMismatchError(message)
        warnings.warn(message, stacklevel=3)

    def _encode(self, index: int, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, Sequence) or isinstance(prompt, _BYTES):
            raise PromptError(f"prompt {index} is a {type(prompt).__name__}; give a text or a list of token ids")
        if not isinstance(prompt, str):
            return [*prompt]
        token_ids = self.tokenizer.encode(prompt)
        if not prompt or not token_ids:
            raise PromptError(f"prompt {index} is empty; give at least one character")
        return token_ids

    def _run(
        self,
        prompts: Sequence[Prompt | None],
        encoded: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        on_output: OutputCallback | None,
        on_trace: TraceCallback | None,
    ) -> list[RequestOutput]:
        each = _params_of_each(params, len(encoded))
        if self.engine.has_unfinished:
            raise InvalidParameterError("the engine still has requests to answer; ask when they have ended")
        self._num_calls += 1
        index_of: dict[str, int] = {}
        groups: list[SampleGroup] = []
        self.engine.on_trace = on_trace
        try:
            for index, token_ids in enumerate(encoded):
                request_id = f"{self._num_calls}-{index}"
                prompt = prompts[index]
                text = prompt if isinstance(prompt, str) else None
                with _place_named(index, len(encoded)):
                    groups.append(self.engine.add_request(request_id, token_ids, each[index], prompt=text))
                index_of[request_id] = index
            while self.engine.has_unfinished:
                for output in self.engine.step():
                    if on_output is not None:
                        on_output(index_of[output.request_id], output)
        finally:
            # Whatever went wrong, or whoever interrupted: the engine must not keep half of this call.
            for request_id in index_of:
                self.engine.abort(request_id)
            self.engine.on_trace = None
        return [group.output() for group in groups]


@contextmanager
def _place_named(index: int, num_prompts: int) -> Iterator[None]:
    """Say which of several prompts is refused."""
    try:
        yield
    except PromptError as error:
        if num_prompts == 1:
            raise
        raise PromptError(f"prompt {index} of {num_prompts}, counted from 0: {error}") from error


def _draft_path(model: str, draft: str | None) -> Path | None:
    if draft is None or draft == "none":
        return None
    if draft == "auto":
        return shipped_draft(KNOWN_MODELS[model].draft) if model in KNOWN_MODELS else None
    return resolve_draft(draft)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many to many; a list that holds numbers is one prompt of token ids."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, _BYTES):
        raise PromptError(f"prompts is a {type(prompts).__name__}; give a text, token ids, or a list of either")
    if prompts and all(isinstance(entry, int) for entry in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _params_of_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if not isinstance(params, Sequence) or not all(isinstance(entry, SamplingParams) for entry in params):
        raise InvalidParameterError(f"params is {params!r}; give SamplingParams, or a list with one for each prompt")
    if len(params) != num_prompts:
        raise InvalidParameterError(
            f"there are {len(params)} sampling parameters for {num_prompts} prompts; give one for all, or one for each"
        )
    return params
