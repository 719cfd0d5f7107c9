"""The raw rows of a measurement, and the file that keeps them with where they were measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STANDARD = "standard"
GENERATE = "generate"
LOOKUP = "generate + prompt lookup"
ASSISTED = "generate + assistant model"
SPECULATIVE = "speculative (suffix)"
HYBRID = "hybrid (suffix)"
MODEL = "speculative (model)"

FORMAT = 1


@dataclass(frozen=True)
class Run:
    """One answer of one arm. Times in seconds of wall clock."""

    prompt: str
    """The prompt's id; of a conversation with the turn's number behind it."""
    group: str
    temperature: float
    arm: str
    round: int
    tokens: int
    seconds: float
    """From the prompt's token ids to the last token."""
    prefill_seconds: float
    """To the first token."""
    steps: int
    """Forward passes of the target model that gave a token."""
    proposed: int
    """Draft tokens; 0 where the arm does not count them."""
    accepted: int
    equal: bool | None
    """Whether the tokens are those of our standard mode; None where they cannot be, by another noise."""
    loop: bool
    disturbed: bool = False
    """Whether the reference that was timed before and after says that other work slowed this one."""

    @property
    def tokens_per_second(self) -> float:
        """Over the whole answer, the prefill included."""
        return self.tokens / self.seconds

    @property
    def decode_tokens_per_second(self) -> float:
        """Over the tokens after the first."""
        return (self.tokens - 1) / max(self.seconds - self.prefill_seconds, 1e-9)


@dataclass(frozen=True)
class Throughput:
    """All requests of a mixture, ``concurrency`` at a time."""

    rows: str
    """``standard``, or the arm that all rows are decoded with."""
    concurrency: int
    round: int
    requests: int
    tokens: int
    seconds: float
    equal: int
    """Requests whose tokens are those of standard mode, with the first number at once."""
    disturbed: bool = False
    temperature: float = 0.0
    steps: int = 0
    """Rows of forward passes of the target model that gave a token, over all requests."""
    proposed: int = 0
    """Draft tokens."""
    accepted: int = 0


@dataclass(frozen=True)
class Measurement:
    """Everything that one run of the benchmark found."""

    environment: Mapping[str, Any]
    options: Mapping[str, Any]
    runs: Sequence[Run]
    throughput: Sequence[Throughput] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Prompt → why it was not measured."""


def save(measurement: Measurement, path: Path) -> None:
    """Write JSON, one row a line, so that a change of one row is a change of one line."""
    head = {
        "format": FORMAT,
        "environment": measurement.environment,
        "options": measurement.options,
        "left_out": measurement.left_out,
    }
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, rows in (("runs", measurement.runs), ("throughput", measurement.throughput)):
        lines = ",\n".join(f"  {json.dumps(asdict(row))}" for row in rows)
        parts.append(f" {json.dumps(key)}: [\n{lines}\n ]" if lines else f" {json.dumps(key)}: []")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def read(path: Path) -> Measurement:
    """What `save` wrote. Raises ValueError for anything else."""
    data: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{path} is no measurement in format {FORMAT}; measure again: make bench")
    return Measurement(
        environment=data["environment"],
        options=data["options"],
        runs=[Run(**row) for row in data["runs"]],
        throughput=[Throughput(**row) for row in data["throughput"]],
        left_out=data["left_out"],
    )
