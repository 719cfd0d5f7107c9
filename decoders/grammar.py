"""Grammars as constraints: JSON schemas, regular expressions, choices and EBNF, matched by xgrammar.

Compiling is slow and belongs to a thread of the caller's; matching is fast and happens in the
engine's. Knows nothing of models or of the loop.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from decoders.constraints import ConstraintError, GrammarError
from decoders.json_schema import check_text, checked, parse_json
from decoders.pattern import check_pattern

if TYPE_CHECKING:
    import xgrammar

MAX_CACHE_BYTES = 256 << 20
"""Compiled grammars that are kept for their next use."""
MAX_SOURCE_CHARACTERS = 65_536
MAX_EBNF_QUANTIFIERS = 128
_XGRAMMAR_PLACE = re.compile(r"\[[\d:]+\] \S+?:\d+: ")


class GrammarKind(StrEnum):
    """How a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    EBNF = "grammar"


@dataclass(frozen=True)
class Grammar:
    """What an answer may say, as its author wrote it."""

    kind: GrammarKind
    source: str
    """A JSON schema; a regular expression for the whole answer; a JSON array of the texts to choose
    from; or EBNF in llama.cpp's notation, beginning at ``root``."""


class CompiledGrammar:
    """A grammar made ready for one vocabulary. Immutable: rows share it."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, vocab_size: int) -> None:
        self._compiled = compiled
        self._vocab_size = vocab_size

    def constraint(self) -> GrammarConstraint:
        """A constraint at the grammar's beginning, for one row."""
        import xgrammar

        return GrammarConstraint(xgrammar.GrammarMatcher(self._compiled), self._vocab_size)


class GrammarCompiler:
    """Compiles grammars for one tokenizer, and keeps them up to `MAX_CACHE_BYTES`."""

    def __init__(self, vocabulary: Sequence[bytes], end_ids: Collection[int]) -> None:
        """``vocabulary`` is what each token id adds to a text; empty for special tokens.

        Raises GrammarError for a tokenizer without an end: no constrained answer could stop.
        """
        self._vocabulary = vocabulary
        self._end_ids = sorted(token_id for token_id in end_ids if token_id < len(vocabulary))
        if not self._end_ids:
            raise GrammarError("the model has no token that ends an answer")
        self._lock = threading.Lock()
        self._compiler: xgrammar.GrammarCompiler | None = None

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile, or find in the cache. Any thread; takes up to seconds, without the GIL.

        Raises GrammarError when it is wrong, UnsupportedGrammar when it cannot be enforced exactly.
        """
        if len(grammar.source) > MAX_SOURCE_CHARACTERS:
            raise GrammarError(
                f"has {len(grammar.source)} characters; the limit is {MAX_SOURCE_CHARACTERS}"
            )
        check_text(grammar.source)
        compiler = self._ready()
        try:
            compiled = _compile(compiler, grammar)
        except RuntimeError as error:
            raise GrammarError(_reason(error)) from None
        return CompiledGrammar(compiled, len(self._vocabulary))

    def _ready(self) -> xgrammar.GrammarCompiler:
        # Importing the library takes a second or more: paid by the first request that needs it.
        with self._lock:
            if self._compiler is None:
                import xgrammar

                info = xgrammar.TokenizerInfo(
                    list(self._vocabulary),
                    xgrammar.VocabType.RAW,
                    vocab_size=len(self._vocabulary),
                    stop_token_ids=self._end_ids,
                )
                self._compiler = xgrammar.GrammarCompiler(
                    info, max_threads=1, cache_limit_bytes=MAX_CACHE_BYTES
                )
            return self._compiler


class GrammarConstraint:
    """A place in a grammar. Its rollbacks are the matcher's own."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self, draft_ids: Sequence[int]) -> Tensor:
        """As the grammar says; an end of sequence where the grammar may end, and nowhere else."""
        words = -(-self._vocab_size // 32)
        bits = torch.full((len(draft_ids) + 1, words), -1, dtype=torch.int32)
        accepted = 0
        for i in range(len(draft_ids) + 1):
            self._matcher.fill_next_token_bitmask(bits, i)
            if i == len(draft_ids) or not self._go_on(draft_ids[i]):
                break
            accepted += 1
            if self._matcher.is_terminated():
                break
        self._go_back(accepted)
        unpacked = np.unpackbits(
            bits.numpy().view(np.uint8), axis=-1, count=self._vocab_size, bitorder="little"
        )
        return torch.from_numpy(unpacked.view(np.bool_))

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        """How far the grammar goes along."""
        count = 0
        while count < len(token_ids) and self._go_on(token_ids[count]):
            count += 1
        self._go_back(count)
        return count

    def accept(self, token_ids: Sequence[int]) -> None:
        """Move the matcher."""
        for token_id in token_ids:
            if not self._go_on(token_id):
                raise ConstraintError("no token of the vocabulary can continue the grammar here")

    def _go_on(self, token_id: int) -> bool:
        # Once it has ended, the library complains aloud about any further token.
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token_id))

    def _go_back(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)


def _compile(compiler: xgrammar.GrammarCompiler, grammar: Grammar) -> xgrammar.CompiledGrammar:
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        # One line, with ", " and ": ": whitespace without end is where small models get lost.
        return compiler.compile_json_schema(checked(grammar.source), any_whitespace=False)
    if grammar.kind is GrammarKind.REGEX:
        check_pattern(grammar.source)
        return compiler.compile_regex(grammar.source)
    if grammar.kind is GrammarKind.CHOICE:
        return compiler.compile_grammar(_alternatives(grammar.source))
    if sum(map(grammar.source.count, "*+?{")) > MAX_EBNF_QUANTIFIERS:
        raise GrammarError(f"has more than {MAX_EBNF_QUANTIFIERS} quantifiers")
    return compiler.compile_grammar(grammar.source)


def _alternatives(source: str) -> str:
    """EBNF of a JSON array of texts."""
    texts = parse_json(source)
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise GrammarError("must be a list of texts, and not empty")
    return "root ::= " + " | ".join(f'"{_escaped(text)}"' for text in texts)


def _escaped(text: str) -> str:
    return "".join(
        character if character.isalnum() and character.isascii() else f"\\U{ord(character):08X}"
        for character in text
    )


def _reason(error: RuntimeError) -> str:
    """The library's message without where in its source it was raised."""
    message = _XGRAMMAR_PLACE.sub("", str(error)).strip()
    return f"cannot be used: {message.splitlines()[0] if message else 'no reason was given'}"
