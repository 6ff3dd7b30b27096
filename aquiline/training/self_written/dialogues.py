"""Asks the target for user turns and answers, and keeps what is worth training on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aquiline.errors import TrainingDataError
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.training.examples import TrainingExample
from aquiline.training.exclusion import ExcludedPrompts, words_of
from aquiline.training.fingerprints import is_held_out, text_fingerprint, tokens_fingerprint
from aquiline.training.masks import encode_answered
from aquiline.training.self_written.generation import TokenCallback, Written, write_all
from aquiline.training.self_written.loops import is_repetitive
from aquiline.training.self_written.settings import ANSWER_TEMPERATURES, SelfWrittenSettings
from aquiline.training.self_written.turns import UserTurn
from aquiline.training.self_written.user_turns import UserTurnPrompt, user_turn_prompt

Message = Mapping[str, str]
MAX_SEED_BITS = 62
# Short answers ("Yes.") may come again; longer ones that do are phrases that fit every question.
MIN_REPEATABLE_TOKENS = 16
# What is left of a looping answer, or has room behind a long prompt, must be worth keeping.
MIN_CUT_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation that ends with an answer.

    Attributes:
        turn: how it began.
        fingerprint: of the first thing that was asked.
        has_ended: the last answer came to an end by itself.
    """

    turn: UserTurn
    messages: tuple[Message, ...]
    example: TrainingExample
    fingerprint: int
    has_ended: bool

    @property
    def answer(self) -> str:
        return self.messages[-1]["content"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A conversation that waits for an answer; the fields are those of `Dialogue`."""

    turn: UserTurn
    messages: tuple[Message, ...]
    fingerprint: int


@dataclass
class Seen:
    """What has been asked and answered before, and why anything was dropped."""

    questions: set[int] = field(default_factory=set)
    answers: set[int] = field(default_factory=set)
    num_dropped: Counter[str] = field(default_factory=Counter)

    def learn_answer(self, token_ids: Sequence[int]) -> bool:
        """Whether an answer is new; it is not from then on. Short ones always are."""
        if len(token_ids) < MIN_REPEATABLE_TOKENS:
            return True
        fingerprint = tokens_fingerprint(token_ids)
        is_new = fingerprint not in self.answers
        self.answers.add(fingerprint)
        return is_new


@dataclass(frozen=True)
class DialogueWriter:
    """Completes user turns and answers them.

    Attributes:
        llm: a target without a draft, or with one; the texts are the same.
        on_tokens: called with how many tokens have come.
    """

    llm: LLM
    settings: SelfWrittenSettings
    excluded: ExcludedPrompts
    seen: Seen
    on_tokens: TokenCallback

    def puts_aside(self, dialogue: Dialogue) -> bool:
        """Whether a dialogue is held out for evaluation."""
        return is_held_out(dialogue.fingerprint, self.settings.seed, self.settings.held_out_share)

    def begin(self, turns: Sequence[UserTurn], rng: random.Random) -> list[Dialogue]:
        """Complete and answer first turns; what was dropped is missing in the result."""
        texts = self._complete(turns, [()] * len(turns), rng)
        asked = []
        for turn, text in zip(turns, texts, strict=True):
            if text is not None and self._is_new(text):
                asked.append(Asked(turn, (_user(text),), text_fingerprint(text)))
        return [dialogue for dialogue in self.answer(asked, rng) if dialogue is not None]

    def follow_up(self, dialogues: Sequence[Dialogue], turns: Sequence[UserTurn], rng: random.Random) -> list[Dialogue]:
        """Go on with each dialogue by one more turn; where that does not work it stays as it is."""
        texts = self._complete(turns, [dialogue.messages for dialogue in dialogues], rng)
        result, going = list(dialogues), []
        for index, text in enumerate(texts):
            if text is not None and not self._is_excluded(text):
                going.append(index)
        asked = [
            Asked(
                dialogues[index].turn,
                (*dialogues[index].messages, _user(str(texts[index]))),
                dialogues[index].fingerprint,
            )
            for index in going
        ]
        for index, dialogue in zip(going, self.answer(asked, rng), strict=True):
            result[index] = dialogue or result[index]
        return result

    def _complete(
        self, turns: Sequence[UserTurn], earlier: Sequence[Sequence[Message]], rng: random.Random
    ) -> list[str | None]:
        """The text of each turn; None for one that the target did not bring to an end."""
        prompt_of: dict[int, UserTurnPrompt] = {}
        for index, turn in enumerate(turns):
            if not turn.is_complete:
                prompt = user_turn_prompt(self.llm.tokenizer, turn.text, earlier[index])
                if self._fits(prompt.token_ids, "user turns"):
                    prompt_of[index] = prompt
        prompts = list(prompt_of.values())
        params = [
            SamplingParams(
                temperature=self.settings.user_temperature,
                max_tokens=self.settings.max_user_tokens,
                stop=() if prompt.stop is None else (prompt.stop,),
                stop_token_ids=() if prompt.stop_token_id is None else (prompt.stop_token_id,),
                seed=rng.getrandbits(MAX_SEED_BITS),
            )
            for prompt in prompts
        ]
        written = write_all(self.llm, [prompt.token_ids for prompt in prompts], params, self.on_tokens)
        texts: list[str | None] = [turn.text if turn.is_complete else None for turn in turns]
        for index, continuation in zip(prompt_of, written, strict=True):
            texts[index] = self._checked_turn(turns[index].text, continuation)
        return texts

    def _checked_turn(self, beginning: str, continuation: Written) -> str | None:
        text = (beginning + continuation.text).strip()
        words = words_of(continuation.text)
        if continuation.is_looping or is_repetitive(words) or "\ufffd" in text:
            self.seen.num_dropped["degenerate user turns"] += 1
        elif not continuation.has_ended:
            self.seen.num_dropped["truncated user turns"] += 1
        elif len(words_of(text)) < 2:
            self.seen.num_dropped["empty user turns"] += 1
        else:
            return text
        return None

    def _is_new(self, text: str) -> bool:
        fingerprint = text_fingerprint(text)
        if fingerprint in self.seen.questions:
            self.seen.num_dropped["duplicate questions"] += 1
            return False
        self.seen.questions.add(fingerprint)
        return not self._is_excluded(text)

    def _is_excluded(self, text: str) -> bool:
        is_excluded = self.excluded.overlap(text)
        self.seen.num_dropped["excluded questions"] += is_excluded
        return is_excluded

    def answer(self, asked: Sequence[Asked], rng: random.Random) -> list[Dialogue | None]:
        """A dialogue for each question; None for an answer that is dropped."""
        prompt_of: dict[int, list[int]] = {}
        for index, each in enumerate(asked):
            prompt = self.llm.tokenizer.apply_chat_template(each.messages)
            if self._fits(prompt, "questions"):
                prompt_of[index] = prompt
        temperatures, weights = zip(*ANSWER_TEMPERATURES, strict=True)
        params = [
            SamplingParams(
                temperature=temperature,
                max_tokens=self.settings.max_answer_tokens,
                seed=rng.getrandbits(MAX_SEED_BITS),
            )
            for temperature in rng.choices(temperatures, weights, k=len(prompt_of))
        ]
        written = write_all(self.llm, list(prompt_of.values()), params, self.on_tokens)
        result: list[Dialogue | None] = [None] * len(asked)
        for index, answer in zip(prompt_of, written, strict=True):
            result[index] = self._dialogue(asked[index], answer)
        return result

    def _fits(self, prompt: Sequence[int], kind: str) -> bool:
        """Whether something of use can be written behind a prompt before the context ends."""
        fits = len(prompt) + MIN_CUT_TOKENS <= self.llm.engine.sizes.max_model_len
        self.seen.num_dropped[f"{kind} that are too long"] += not fits
        return fits

    def _dialogue(self, asked: Asked, answer: Written) -> Dialogue | None:
        if not answer.text.strip():
            self.seen.num_dropped["empty answers"] += 1
        elif answer.is_looping and len(answer.token_ids) < MIN_CUT_TOKENS:
            self.seen.num_dropped["degenerate answers"] += 1
        elif not self.seen.learn_answer(answer.token_ids):
            self.seen.num_dropped["duplicate answers"] += 1
        else:
            return self._encoded(asked, answer)
        return None

    def _encoded(self, asked: Asked, answer: Written) -> Dialogue | None:
        llm = self.llm
        try:
            example = encode_answered(
                llm.tokenizer, asked.messages, answer.token_ids, llm.models.eos_token_ids, asked.turn.category
            )
        except TrainingDataError:  # a template may render earlier answers otherwise than they were written
            self.seen.num_dropped["earlier answers that cannot be found"] += 1
            return None
        messages = (*asked.messages, {"role": "assistant", "content": answer.text})
        return Dialogue(asked.turn, messages, example, asked.fingerprint, answer.has_ended)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
