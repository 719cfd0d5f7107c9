"""A transformers tokenizer as a `Tokenizer`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import GenerationConfig, PreTrainedTokenizerBase

from decoders.params import ParameterError


class HFTokenizer:
    """Encodes, renders chats and decodes with the model's own tokenizer and chat template."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self.eos_ids = _eos_ids(tokenizer, generation_config)
        self.special_ids = _special_ids(tokenizer)
        self.vocab_size = max(tokenizer.get_vocab().values()) + 1
        self._byte_of = _byte_alphabet() if _is_byte_level(tokenizer) else None

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, with the special tokens that the model expects around it."""
        token_ids: list[int] = self._tokenizer(text)["input_ids"]
        return token_ids

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be used."""
        return bool(self._tokenizer.chat_template)

    @property
    def chat_template(self) -> str:
        """The template's text; empty where there is none."""
        return str(self._tokenizer.chat_template or "")

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template shows tools to the model."""
        return _TOOLS.search(self.chat_template) is not None

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins."""
        if not self._tokenizer.chat_template:
            raise ParameterError("messages", "cannot be used: the model has no chat template")
        try:
            encoded = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                add_generation_prompt=True,
                return_dict=True,
            )
        except (TemplateError, TypeError) as error:
            raise ParameterError("messages", f"do not fit the chat template: {error}") from error
        token_ids: list[int] = encoded["input_ids"]
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def difference(self, other: HFTokenizer) -> str | None:
        """Which id means something else in ``other``, in words; None where none does.

        One of the two may have more ids than the other, as a padded or extended vocabulary has.
        """
        common = min(self.vocab_size, other.vocab_size)
        mine, others = (
            {i: token for token, i in t._tokenizer.get_vocab().items() if i < common}
            for t in (self, other)
        )
        for token_id in sorted(mine.keys() | others.keys()):
            if mine.get(token_id) != others.get(token_id):
                return (
                    f"token id {token_id} is {mine.get(token_id)!r} in one and "
                    f"{others.get(token_id)!r} in the other"
                )
        if missing := sorted(token_id for token_id in self.eos_ids if token_id >= common):
            return f"token id {missing[0]}, which ends an answer, is in one of them only"
        return None

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text, its leading space included."""
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return b""
        if self._byte_of is not None and all(character in self._byte_of for character in token):
            return bytes(self._byte_of[character] for character in token)
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return str(token).replace("\u2581", " ").encode()

    def vocabulary(self, size: int) -> list[bytes]:
        """What each token id below ``size`` adds to an answer; nothing for special tokens."""
        special = self.special_ids | self.eos_ids
        return [b"" if i in special else self.token_bytes(i) for i in range(size)]


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Token ids that `decode` leaves out."""
    added = tokenizer.added_tokens_decoder.items()
    special = {token_id for token_id, token in added if token.special}
    return frozenset(special.union(tokenizer.all_special_ids))


_TOOLS = re.compile(r"\btools\b")
# How SentencePiece spells a byte that no other token covers.
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and "ByteLevel" in json.dumps(
        json.loads(backend.to_str())["decoder"]
    )


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in that byte-level BPE vocabularies (GPT-2's and later) use for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


def _eos_ids(
    tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None
) -> frozenset[int]:
    """The tokenizer's and the generation configuration's: chat models often end turns with another."""
    found: set[int] = set()
    for ids in (tokenizer.eos_token_id, generation_config and generation_config.eos_token_id):
        if ids is not None:
            found.update([ids] if isinstance(ids, int) else ids)
    return frozenset(found)
