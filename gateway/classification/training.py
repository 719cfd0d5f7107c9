"""Trains the text model: labelled rows in, the bytes of a weights file out.

Both stages are fitted on all rows but a fold, and score that fold; what they say of rows whose sources
they have not seen is weighed into probabilities. Then both are fitted on all rows. Needs scikit-learn and
torch, which running a gateway does not. Knows no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classification import (
    features,
    head_training,
    lexical_training,
    reader,
    reader_training,
    stacking,
    text_model,
    weights,
)
from gateway.classification.encoder import Encoder
from gateway.classification.linear import LinearModel
from gateway.classification.pieces import Pieces
from gateway.classification.rows import Row, labels_of
from gateway.classification.stages import EncoderStage, Floats, LexicalStage
from gateway.classification.synthetic import Mixture
from gateway.classification.transformer import Transformer
from gateway.errors import ConfigError, Problem
from gateway.types import DOMAINS

MIN_ROWS = 5
"""Rows that every domain needs: one for each fold."""

Progress = Callable[[int, int], None]
"""Called with the number of steps done and of those to do."""

Booleans = npt.NDArray[np.bool_]


class Options(msgspec.Struct, frozen=True):
    """What can be tuned about a training run."""

    folds: int = 4
    lexical_mixture: Mixture = Mixture(inside=0.12, alike=0.12, strung=0.03)
    head_mixture: Mixture = Mixture(inside=0.25, alike=0.1, strung=0.1)
    seed: int = 7
    points: stacking.OperatingPoints = stacking.OperatingPoints()


class Trained(msgspec.Struct, frozen=True):
    """A trained model, and what is known about it before it has met another row."""

    data: bytes
    """Of the weights file."""
    held_out: Floats
    """Probabilities of every row by stages that have not seen its source, shape (rows, domains)."""


def train(
    rows: Sequence[Row],
    encoder_arrays: weights.Arrays,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Fit on all rows, with the encoder of ``encoder_arrays`` as it is but for its head.

    Raises ConfigError when scikit-learn is missing or a domain has too few rows.
    """
    chosen = options or Options()
    _require(rows)
    labels = labels_of(rows)
    fold_of = folds(rows, labels, chosen.folds)
    transformer = reader.transformer_of(encoder_arrays)
    steps = 1 + 2 * chosen.folds + (chosen.folds + 1) * (len(DOMAINS) + 1)
    tick = _Counter(progress, steps + (2 * chosen.folds + 1 if transformer else 0))
    fits = _Fits(rows, fold_of, encoder_arrays, chosen, tick)
    kinds = LexicalStage.kinds + EncoderStage.kinds
    evidence = np.zeros((len(rows), kinds, len(DOMAINS)), dtype=np.float32)
    for fold in range(chosen.folds):
        inside = fold_of == fold
        outside = [at for at in range(chosen.folds) if at != fold]
        some = [row for row, at in zip(rows, inside, strict=True) if at]
        evidence[inside] = _evidence(*fits.stages(outside), some)
        tick()
    stack = stacking.fit(evidence, labels, chosen.points)
    lexical, head = fits.final()
    third = None
    if transformer is not None:
        third = _third_stage(transformer, rows, fold_of, chosen, tick)
    if third is None:
        data = weights.dump(lexical, reader.without(encoder_arrays) | head, stack)
        return Trained(data, text_model.logistic(stack.logits(evidence)))
    whole = np.concatenate((evidence, third.scores[:, None]), axis=1)
    stack, careful = reader_training.stacked(stack, whole, labels, third.read, chosen.points)
    arrays = encoder_arrays | head | reader.arrays_of(third.head, careful)
    logits = reader_training.combined(stack, careful, whole, third.read)
    return Trained(weights.dump(lexical, arrays, stack), text_model.logistic(logits))


class _Third(msgspec.Struct, frozen=True):
    """A reader's head, and what heads that had not seen their sources said of the rows."""

    head: reader.Head
    scores: Floats
    """Shape (rows, domains)."""
    read: Booleans


def _third_stage(
    transformer: Transformer,
    rows: Sequence[Row],
    fold_of: npt.NDArray[np.int64],
    options: Options,
    tick: _Counter,
) -> _Third | None:
    """None where too few rows of some domain are short and in English."""
    read = np.zeros(len(rows), dtype=np.bool_)
    scores = np.zeros((len(rows), len(DOMAINS)), dtype=np.float32)
    real: list[reader_training.Part] = []
    made: list[reader_training.Part] = []
    for fold in range(options.folds):
        some = [row for row, at in zip(rows, fold_of, strict=True) if at == fold]
        real.append(reader_training.part(transformer, some))
        wrapped = reader_training.made_of(some, options.seed + fold)
        made.append(reader_training.part(transformer, wrapped))
        tick()
    if not _enough(real):
        tick(options.folds + 1)
        return None
    for fold in range(options.folds):
        outside = [at for at in range(options.folds) if at != fold]
        parts = [pool[at] for pool in (real, made) for at in outside]
        head = reader_training.fit_head(parts, options.seed)
        read[fold_of == fold] = real[fold].read
        scores[fold_of == fold] = head.scores(real[fold].seen)
        tick()
    head = reader_training.fit_head([*real, *made], options.seed)
    tick()
    return _Third(head, scores, read)


def _enough(parts: Sequence[reader_training.Part]) -> bool:
    counts = [some.labels[some.read].sum(axis=0) for some in parts]
    rest = [some.read.sum() - count for some, count in zip(parts, counts, strict=True)]
    # Whichever fold is held out, the others must have some.
    return all((np.sum(kind, axis=0) > one).all() for kind in (counts, rest) for one in kind)


class _Fits:
    """Samples of every fold, made once, and stages fitted on some of them."""

    def __init__(
        self,
        rows: Sequence[Row],
        fold_of: npt.NDArray[np.int64],
        arrays: weights.Arrays,
        options: Options,
        tick: Callable[[], None],
    ) -> None:
        self._arrays, self._seed, self._tick = arrays, options.seed, tick
        names = weights.piece_names(arrays["pieces"])
        self._pieces = Pieces(names, arrays["piece_scores"].astype(float).tolist())
        encoder = Encoder(self._pieces, arrays)
        self._vocabulary = lexical_training.vocabulary_of(rows)
        tick()
        self._lexical: list[lexical_training.Samples] = []
        self._head: list[head_training.Samples] = []
        for fold in range(options.folds):
            part = [row for row, at in zip(rows, fold_of, strict=True) if at == fold]
            seed = options.seed + fold
            self._lexical.append(
                lexical_training.samples(self._vocabulary, part, options.lexical_mixture, seed)
            )
            self._head.append(head_training.samples(encoder, part, options.head_mixture, seed))
            tick()

    def stages(self, folds: Sequence[int]) -> tuple[LexicalStage, EncoderStage]:
        """Fitted on the rows of ``folds``."""
        lexical, head = self._fit(folds)
        encoder = Encoder(self._pieces, self._arrays | head)
        return LexicalStage(lexical), EncoderStage(encoder)

    def final(self) -> tuple[LinearModel, weights.Arrays]:
        """Fitted on all rows."""
        return self._fit(range(len(self._head)))

    def _fit(self, folds: Sequence[int]) -> tuple[LinearModel, weights.Arrays]:
        lexical = lexical_training.fit(
            self._vocabulary, [self._lexical[fold] for fold in folds], self._tick
        )
        samples = head_training.concatenated([self._head[fold] for fold in folds])
        head = head_training.fit(samples, self._seed)
        self._tick()
        return lexical, head


def _evidence(lexical: LexicalStage, encoder: EncoderStage, rows: Sequence[Row]) -> Floats:
    found = []
    for row in rows:
        texts = [features.normalise(text) for text in row.texts()]
        own = text_model.evidence((lexical, encoder), texts, row.roles())
        # A row of nothing but invisible characters is no evidence for anything.
        nothing = np.zeros((lexical.kinds + encoder.kinds, len(DOMAINS)), dtype=np.float32)
        found.append(nothing if own is None else own)
    return np.array(found)


class _Counter:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self, steps: int = 1) -> None:
        self._done += steps
        if self._progress is not None:
            self._progress(self._done, self._total)


def _require(rows: Sequence[Row]) -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ConfigError(
            [
                Problem(
                    "training needs scikit-learn",
                    path="scikit-learn",
                    hint="pip install scikit-learn",
                )
            ]
        ) from None
    counts = Counter(domain for row in rows for domain in row.domains)
    few = [f"{domain} has {counts[domain]}" for domain in DOMAINS if counts[domain] < MIN_ROWS]
    if few:
        raise ConfigError(
            [
                Problem(
                    f"every domain needs at least {MIN_ROWS} rows: {', '.join(few)}",
                    path="training data",
                    hint="add rows of these domains",
                )
            ]
        )


def folds(rows: Sequence[Row], labels: Booleans, count: int) -> npt.NDArray[np.int64]:
    """The fold of each row: by whole sources where every domain can still be learnt, else row by row.

    A model scored on its own sources looks better than it will be on new traffic.
    """
    sizes = Counter(row.source for row in rows)
    filled = [0] * count
    fold: dict[str, int] = {}
    for source, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        fold[source] = filled.index(min(filled))
        filled[fold[source]] += size
    by_source = np.array([fold[row.source] for row in rows])
    if all(labels[by_source != at].any(axis=0).all() for at in range(count)):
        return by_source
    # Round robin within each set of domains, so that no fold takes all rows of one.
    seen: Counter[frozenset[str]] = Counter()
    by_row = np.empty(len(rows), dtype=np.int64)
    for index, row in enumerate(rows):
        kind = frozenset(row.domains)
        by_row[index] = seen[kind] % count
        seen[kind] += 1
    return by_row
