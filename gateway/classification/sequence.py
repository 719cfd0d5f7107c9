"""Any sequence-classification model of ``transformers`` as a domain classifier.

For whoever has a model of their own. It stands beside the text model, whose bans it can add to, or in its
place. Knows nothing of thresholds; the probabilities are the model's own, calibrated or not.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.classification.base import Reading
from gateway.classification.stack import BAN_DOMAINS
from gateway.errors import ConfigError, Problem
from gateway.types import DOMAINS, ChatRequest, Signal

BATCH = 8
"""Windows in a forward pass."""
MAX_WINDOWS = 64
"""Windows scored of one request; the rest shows as scored < total."""

Floats = npt.NDArray[np.float32]


class SequenceClassifier:
    """Signal ``domain`` from a model; domains that it has no label for get no signal.

    Every message is read in half overlapping windows of what the model can read at once. Medical and legal
    take the highest window, other domains the mean. Token counts are the model's.
    """

    def __init__(self, model: str, *, labels: Mapping[str, str] | None = None) -> None:
        """``labels``: domains by the model's labels, where these are not domains' names themselves.

        Raises ConfigError when transformers or the model is missing, or no label is a domain.
        """
        transformers: Any = _transformers()
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            self._model = transformers.AutoModelForSequenceClassification.from_pretrained(model)
        except (OSError, ValueError) as error:
            message = f"cannot load a sequence-classification model: {error}"
            raise ConfigError([Problem(message, path=model)]) from None
        self._model.eval()
        names = [self._model.config.id2label[at] for at in range(self._model.config.num_labels)]
        self._columns = _columns(model, names, labels or {})
        self._multi = self._model.config.problem_type == "multi_label_classification"
        self._limit = min(self._tokenizer.model_max_length, 512)
        self._window = self._limit - self._tokenizer.num_special_tokens_to_add()
        self._hash = _content_hash(model, self._columns)

    @property
    def content_hash(self) -> str:
        """SHA-256 of the model's files and of what its labels mean."""
        return self._hash

    def classify(self, request: ChatRequest) -> Reading:
        """A probability for every domain that the model knows; none when there is no text."""
        windows = [window for text in request.texts() for window in self._windows(text)]
        total = len(request.prompt) if isinstance(request.prompt, tuple) else 0
        total += sum(map(len, windows))
        read = windows[:MAX_WINDOWS]
        if not read:
            return Reading((), 0, total)
        scores = np.concatenate(
            [self._scores(read[at : at + BATCH]) for at in range(0, len(read), BATCH)]
        )
        signals = []
        for domain, column in sorted(self._columns.items()):
            own = scores[:, column]
            score = own.max() if domain in BAN_DOMAINS else own.mean()
            signals.append(Signal("domain", domain, float(score), "sequence"))
        return Reading(tuple(signals), sum(map(len, read)), total)

    def _windows(self, text: str) -> list[list[int]]:
        clean = text.encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = self._tokenizer(clean, add_special_tokens=False, verbose=False)[
            "input_ids"
        ]
        step = max(self._window // 2, 1)
        last = max(len(ids) - self._window, 0)
        return [ids[at : at + self._window] for at in [*range(0, last, step), last] if ids]

    def _scores(self, windows: Sequence[list[int]]) -> Floats:
        texts = [self._tokenizer.decode(window) for window in windows]
        batch = self._tokenizer(
            texts, truncation=True, padding=True, max_length=self._limit, return_tensors="pt"
        )
        torch: Any = importlib.import_module("torch")
        with torch.inference_mode():
            logits = self._model(**batch).logits.float()
        shares = logits.sigmoid() if self._multi else logits.softmax(dim=-1)
        found: Floats = shares.cpu().numpy()
        return found


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError:
        problem = Problem(
            "a sequence-classification model needs transformers",
            path="transformers",
            hint="pip install transformers torch",
        )
        raise ConfigError([problem]) from None


def _columns(model: str, names: Sequence[str], labels: Mapping[str, str]) -> dict[str, int]:
    """The column of each domain that the model knows."""
    if strange := sorted(set(labels) - set(names)) + sorted(set(labels.values()) - set(DOMAINS)):
        message = f"labels names {', '.join(strange)}, which the model or Draftgate does not have"
        hint = f"the model's: {', '.join(names)}; domains: {', '.join(DOMAINS)}"
        raise ConfigError([Problem(message, path=model, hint=hint)])
    found = {
        labels.get(name, name): column
        for column, name in enumerate(names)
        if labels.get(name, name) in DOMAINS
    }
    if not found:
        message = f"none of the model's labels is a domain: {', '.join(names)}"
        hint = "say what they mean: labels={'LABEL_0': 'medical', …}"
        raise ConfigError([Problem(message, path=model, hint=hint)])
    return found


def _content_hash(model: str, columns: Mapping[str, int]) -> str:
    digest = hashlib.sha256(repr((model, sorted(columns.items()))).encode())
    folder = Path(model)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
