"""Small tokenizers for tests, trained in a moment and written as Hugging Face folders and GGUF files."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from aquiline.gguf_tokenizer import TokenType

VOCAB_SIZE = 400
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}\n"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = (
    "The eagle flies over the sea, and the eagle's young wait for 1234 fish.",
    "def step(self):\n    for index in range(10):\n        print(index, 'done')\n\n\treturn None",
    "Der Adler fliegt über das Meer; l'aigle survole la mer à 12,5 km. 3.14159 = 22/7?",
    "orzeł 鷹は空を飛ぶ 🦅🦅 don't we'll I'm they've  two  spaces   three",
) * 4
TEXTS = (
    "",
    " ",
    "The eagle flies.",
    " leading and trailing ",
    "two  three   four    \n\n\n\t\tmixed \t \n end  ",
    "1 12 123 1234 12345 3.14159 x86_64 v1.2.3 ½ ² ٣",
    "don't I'M they'VE we'll it's DON'T",
    "def f(x):\n\treturn x ** 2  # ok\r\n",
    "ünïcödé naïve 鷹は空を飛ぶ Ωμέγα שלום",
    "🦅 👩‍👩‍👧 🇩🇪 e\u0301 \u200b \ufffd \x00 \x7f",
    "a<|im_end|>b <|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "< |im_end|> <|im_end| > <|IM_END|>",
    "$100 + 50% <= ~a^b|c",
)


def train_byte_level() -> tokenizers.Tokenizer:
    """Byte-level BPE of a few hundred tokens, with the special tokens first and digits kept single."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def write_hf_folder(folder: Path, backend: tokenizers.Tokenizer, config: Mapping[str, Any] | None = None) -> Path:
    """A model folder that holds a tokenizer only."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings if config is None else dict(config)))
    return folder


def byte_level_metadata(backend: tokenizers.Tokenizer, pre: str = "smollm") -> dict[str, Any]:
    """GGUF keys that describe a byte-level tokenizer."""
    model = json.loads(backend.to_str())["model"]
    texts = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "ggml.model": "gpt2",
        "ggml.pre": pre,
        "ggml.tokens": texts,
        "ggml.token_type": [int(TokenType.CONTROL if text in SPECIAL_TOKENS else TokenType.NORMAL) for text in texts],
        "ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }


def train_sentencepiece() -> sentencepiece.SentencePieceProcessor:
    """SentencePiece BPE with byte tokens, as Llama 2 has it."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.splitlines()]),
        model_writer=model,
        model_type="bpe",
        vocab_size=500,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        character_coverage=0.98,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_metadata(trained: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """GGUF keys that describe a SentencePiece tokenizer."""
    types = []
    for token_id in range(trained.vocab_size()):
        kind = TokenType.NORMAL
        if trained.is_unknown(token_id):
            kind = TokenType.UNKNOWN
        elif trained.is_control(token_id):
            kind = TokenType.CONTROL
        elif trained.is_byte(token_id):
            kind = TokenType.BYTE
        types.append(int(kind))
    return {
        "ggml.model": "llama",
        "ggml.tokens": [trained.id_to_piece(token_id) for token_id in range(trained.vocab_size())],
        "ggml.scores": [float(trained.get_score(token_id)) for token_id in range(trained.vocab_size())],
        "ggml.token_type": types,
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 0,
    }


def sentencepiece_backend(trained: sentencepiece.SentencePieceProcessor) -> tokenizers.Tokenizer:
    """The decoding half of a SentencePiece tokenizer, as `tokenizer.json` files of Llama 2 have it."""
    ids = {trained.id_to_piece(token_id): token_id for token_id in range(trained.vocab_size())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def write_gguf(path: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file without tensors; keys are written without their `tokenizer.` prefix."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        name = f"tokenizer.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            assert isinstance(value, Sequence)
            writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
