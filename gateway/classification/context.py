"""The context classifier: does a request bring the source its answer should come from?

Rules, no weights: the same text gives the same answer. Knows nothing of domains, nor whether the
source is true.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from gateway.classification.base import Reading
from gateway.types import ChatRequest, Message, Signal

MIN_MARKED_CHARACTERS = 80
"""What is marked as a source must be at least so long to be one."""

_TOOL_ROLES = ("tool", "function")
_LABELS = (
    "abstract|article|context|documents?|email|excerpt|input text|notes?|passages?|references?|reports?|"
    "search results|sources?|text|transcript|"
    "auszug|dokument|kontext|quelle|contexte|contexto|documento|fuente|texte|texto|контекст|текст|"
    "上下文|原文|文章|本文|資料"
)
_LABEL = re.compile(
    rf"^[ \t#>*_\[(]{{0,8}}(?:{_LABELS})(?:[ \t]{{0,2}}[#\d]{{1,4}})?[ \t*_\])]{{0,8}}[:：]",
    re.IGNORECASE | re.MULTILINE,
)
_TAG = re.compile(
    r"<(article|context|documents?|email|excerpt|file|passage|quote|reference|result|source|text|transcript)"
    r"\b[^<>]{0,400}>",
    re.IGNORECASE,
)
_CLOSING_TAG = re.compile(r"</\w")
_QUOTED = re.compile(
    rf"(?:(?<![^\s(:])\"|[“„«「『])[^\"“”„«»「」『』]{{{MIN_MARKED_CHARACTERS},}}[\"“”»」』]"
)
_QUOTE_LINE = re.compile(r"^[ \t]{0,3}>(.*)$", re.MULTILINE)


class ContextClassifier:
    """Signal ``has_context``, ``true`` or ``false`` with score 1.0.

    True when a tool has answered; when any message holds a marked passage (after a label such as
    ``Context:`` at the start of a line, in ``<document>`` or the like, fenced, quoted by ``>`` or in
    quotation marks); or when ``min_context_characters`` and more stand beside the question in a user's
    message, the question being its first or its last line.
    Sees all of every text, so it reports no token counts.
    """

    def __init__(self, *, min_context_characters: int = 600) -> None:
        self._min_passage = min_context_characters
        rules = (
            min_context_characters,
            MIN_MARKED_CHARACTERS,
            *(rule.pattern for rule in (_LABEL, _TAG, _QUOTED, _QUOTE_LINE)),
        )
        self._hash = hashlib.sha256(repr(rules).encode()).hexdigest()

    @property
    def content_hash(self) -> str:
        """SHA-256 over the rules and their limits."""
        return self._hash

    def classify(self, request: ChatRequest) -> Reading:
        """Look at every message; a prompt given as token ids carries nothing that can be seen."""
        messages = request.messages or tuple(Message("user", text) for text in request.texts())
        value = "true" if any(map(self._carries, messages)) else "false"
        return Reading((Signal(name="has_context", value=value, score=1.0, source="context"),))

    def _carries(self, message: Message) -> bool:
        if message.role in _TOOL_ROLES:
            return bool(message.content and message.content.strip())
        if any(length >= MIN_MARKED_CHARACTERS for length in _marked(message.text)):
            return True
        return message.role == "user" and _beside_the_question(message.text) >= self._min_passage


def _beside_the_question(text: str) -> int:
    """Characters left when the first or the last line, whichever is shorter, is taken as the question."""
    lines = text.strip().splitlines()
    if len(lines) < 2:
        return len(text.strip())
    return sum(map(len, lines)) - min(len(lines[0]), len(lines[-1]))


def _marked(text: str) -> Iterator[int]:
    """The length in characters of every passage that is marked as such."""
    for label in _LABEL.finditer(text):
        yield len(text[label.end() : label.end() + 4 * MIN_MARKED_CHARACTERS].strip())
    for tag in _TAG.finditer(text):
        inside = text[tag.end() : tag.end() + 4 * MIN_MARKED_CHARACTERS]
        yield len(_CLOSING_TAG.split(inside, maxsplit=1)[0].strip())
    yield sum(len(part.strip()) for part in text.split("```")[1::2])
    yield sum(len(line.strip()) for line in _QUOTE_LINE.findall(text))
    for quoted in _QUOTED.finditer(text):
        yield len(quoted.group())
