"""From text and conversations to token ids, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aquiline.chat_template import ChatTemplate
from aquiline.errors import PromptError
from aquiline.gguf_tokenizer import read_gguf_tokenizer
from aquiline.hf_tokenizer import read_hf_tokenizer
from aquiline.token_bytes import IncrementalDecoder, TokenBytes
from aquiline.tokenizer_parts import TokenizerParts


class Tokenizer:
    """One model's tokenizer.

    Attributes:
        bos_token_id: id that begins a text; None when the model has none.
        eos_token_ids: ids that end an answer.
        special_token_ids: ids that `decode` leaves out unless asked not to.
        vocab_size: one more than the highest token id.
        has_chat_template: whether `apply_chat_template` works.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._token_bytes = TokenBytes(parts.backend)
        self._source = parts.source
        added = parts.backend.get_added_tokens_decoder()
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size: int = max(parts.backend.get_vocab(with_added_tokens=True).values()) + 1
        self._chat_template = (
            None if parts.chat_template is None else ChatTemplate(parts.chat_template, parts.named_tokens, parts.source)
        )

    @classmethod
    def from_path(cls, path: Path) -> Tokenizer:
        """Read the tokenizer of a Hugging Face folder or a GGUF file.

        Raises:
            ModelFormatError: a file is missing, damaged or contradicts another.
            UnsupportedFeatureError: a kind of tokenizer that is not offered here.
        """
        return cls(read_hf_tokenizer(path) if path.is_dir() else read_gguf_tokenizer(path))

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        Special tokens written out in the text (`<|im_start|>`) become those tokens, in prompts as in templates, as
        Hugging Face tokenizers do.

        Args:
            add_special_tokens: add what the model puts around every text, such as the beginning-of-sequence token.

        Raises:
            PromptError: not text, or text with surrogates, which no encoding can hold.
        """
        if not isinstance(text, str):
            raise PromptError(f"the prompt is a {type(text).__name__}; it must be text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the prompt has a lone surrogate at character {error.start}; it must be valid Unicode"
            ) from None
        # Of one text by itself the library would hold the interpreter until it is done, and other threads up with it.
        encodings = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        token_ids: list[int] = encodings[0].ids
        return token_ids

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Token ids of a conversation, ready for the assistant's next answer.

        Raises:
            PromptError: no chat template, malformed messages, or messages the template refuses.
        """
        return self.encode(self.render_chat(messages, add_generation_prompt, tools), add_special_tokens=False)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as the text that `apply_chat_template` encodes."""
        if self._chat_template is None:
            raise PromptError(f"{self._source} has no chat template; give a plain prompt instead of messages (--raw)")
        return self._chat_template.render(messages, add_generation_prompt, tools)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of a whole list of tokens; bytes that are not UTF-8 become replacement characters."""
        token_bytes = self._bytes_lookup(skip_special_tokens)
        encoded = b"".join(map(token_bytes, token_ids))
        if self._token_bytes.drops_first_space:
            encoded = encoded.removeprefix(b" ")
        return encoded.decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself, special tokens included."""
        return self._token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text, special tokens included; empty for an id without a token."""
        return self._token_bytes(token_id)

    def vocabulary(self) -> list[bytes]:
        """The bytes of every token, by id; empty for special tokens and for ids without a token."""
        token_bytes = self._bytes_lookup(skip_special_tokens=True)
        return [token_bytes(token_id) for token_id in range(self.vocab_size)]

    def new_decoder(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool = True) -> IncrementalDecoder:
        """A decoder for one output that continues `prompt_token_ids`."""
        token_bytes = self._bytes_lookup(skip_special_tokens)
        return IncrementalDecoder(token_bytes, prompt_token_ids, self._token_bytes.drops_first_space)

    def _bytes_lookup(self, skip_special_tokens: bool) -> Callable[[int], bytes]:
        if not skip_special_tokens:
            return self._token_bytes
        return lambda token_id: b"" if token_id in self.special_token_ids else self._token_bytes(token_id)
