"""Makes a draft model for a target of the Llama shape: a few of its layers, taught what it says.

The student keeps the target's embeddings and LM head, frozen. The target writes answers to prompts of
its own (`student_prompts.py`), sampled, because a draft model has to know what the target says and
not what is true. The student then learns the target's whole law at every position of them (forward
KL; Hinton et al., arXiv 1503.02531), and to end in the target's last hidden state, which costs
little and is known to help where the LM head is shared (EAGLE, arXiv 2401.15077).

Whatever the student says, answers stay the target's: a worse one is accepted less often.

    python -m benchmarks.distill_student      # about 15 minutes on two cores with AMX
    draftgate generate "..." --mode speculative --draft-source model --draft-model FOLDER
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from benchmarks.student_prompts import prompts
from decoders.drafts.base import DraftSource
from decoders.drafts.model import ModelDraftSource
from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.loader import LoadedModel, fetch, load
from decoders.models.base import Row
from decoders.modes import Speculative
from decoders.pairing import load_draft
from decoders.params import SamplingParams
from decoders.request import Request

HERE = Path(__file__).parent
SLOTS = 48
MAX_ANSWER = 96
MEASURED_TOKENS = 48
TEMPERATURES = (0.8, 1.0)
FEATURE_WEIGHT = 0.1
LAW_SHARE = 0.5
"""Of the positions, drawn anew each time, at which the whole law is compared: that is most of the work."""
WARM_UP = 0.03
CHECKPOINT_SECONDS = 60.0
CONSOLE = Console()


@dataclass(frozen=True)
class Example:
    """One answer of the target."""

    token_ids: tuple[int, ...]
    num_prompt_tokens: int


@dataclass(frozen=True)
class Batch:
    """Padded rows, and where the student is taught."""

    token_ids: Tensor
    """[rows, length]"""
    taught: Tensor
    """bool [rows, length]: the positions that an answer's tokens follow."""
    features: Tensor
    """[taught positions, hidden]: the target's last hidden states there."""


def main() -> None:
    """Write answers, teach, save, and measure on prompts that were not taught."""
    options = _options()
    out = (options.out or _default_folder(options)).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    if not options.evaluate:
        examples = write_answers(options, out / "answers.jsonl")
        teach(options, examples, out)
    evaluate(options, out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument(
        "--layers", default="0,10,20,29", help="the target's layers that the student begins as"
    )
    parser.add_argument("--tokens", type=int, default=80_000, help="answer tokens to learn from")
    parser.add_argument("--answer-minutes", type=float, default=6.0, help="of answers, at most")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=8.0, help="of teaching, at most")
    parser.add_argument("--rows", type=int, default=8, help="answers in one update")
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    parser.add_argument("--out", type=Path, help="default: in ~/.cache/draftgate/students")
    parser.add_argument("--evaluate", action="store_true", help="only measure what is there")
    parser.add_argument(
        "--prompts", type=Path, default=HERE / "prompts.jsonl", help="to measure on"
    )
    return parser.parse_args()


def _default_folder(options: argparse.Namespace) -> Path:
    name = "smollm2-135m" if options.model == "demo" else Path(options.model).name.lower()
    return Path(f"~/.cache/draftgate/students/{name}-{len(_layers(options))}l")


def _layers(options: argparse.Namespace) -> list[int]:
    return [int(number) for number in options.layers.split(",")]


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=CONSOLE,
    )


# -- answers ---------------------------------------------------------------------------------------


def write_answers(options: argparse.Namespace, path: Path) -> list[Example]:
    """Let the target answer until there are enough tokens; goes on where an earlier run has stopped."""
    examples = _read(path)
    done = sum(len(example.token_ids) - example.num_prompt_tokens for example in examples)
    if done >= options.tokens:
        return examples
    writer = _Writer(load(options.model, dtype="bfloat16", num_slots=SLOTS, max_length=512))
    source = itertools.islice(prompts(), len(examples), None)
    end = time.monotonic() + 60 * options.answer_minutes
    with _progress() as progress, path.open("a") as stream:
        task = progress.add_task("Answers (tokens)", total=options.tokens, completed=done)
        while done < options.tokens and time.monotonic() < end:
            for example in writer.step(source):
                _write(stream, example)
                examples.append(example)
                done += len(example.token_ids) - example.num_prompt_tokens
                progress.update(task, completed=done)
        for example in writer.begun():
            _write(stream, example)
            examples.append(example)
    return examples


def _write(stream: TextIO, example: Example) -> None:
    stream.write(json.dumps([example.num_prompt_tokens, example.token_ids]) + "\n")
    stream.flush()


class _Writer:
    """Samples answers in every slot of a model at once.

    The engine would do, but its promise of the same tokens for the same seed costs noise a token.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._model, self._tokenizer = loaded.model, loaded.tokenizer
        self._random = torch.Generator().manual_seed(0)
        self._rows: dict[int, tuple[int, list[int]]] = {}
        self._unread: dict[int, int] = {}

    @torch.inference_mode()
    def step(self, source: Iterator[str]) -> list[Example]:
        """One token more for every slot; the answers that it ends."""
        for slot in set(range(self._model.num_slots)) - self._rows.keys():
            chat = [{"role": "user", "content": next(source)}]
            token_ids = self._tokenizer.encode_chat(chat)
            self._rows[slot], self._unread[slot] = (len(token_ids), token_ids), len(token_ids)
        slots = sorted(self._rows)
        rows = []
        for slot in slots:
            _, token_ids = self._rows[slot]
            start = len(token_ids) - self._unread[slot]
            rows.append(Row(slot, start, tuple(token_ids[start:]), 1))
            self._unread[slot] = 1
        logits = self._model.forward(rows)
        heat = torch.tensor([TEMPERATURES[slot % len(TEMPERATURES)] for slot in slots])
        probs = (logits / heat.unsqueeze(1)).softmax(dim=-1)
        drawn = probs.multinomial(1, generator=self._random).squeeze(1).tolist()
        return [
            example
            for slot, token_id in zip(slots, drawn, strict=True)
            if (example := self._append(slot, token_id))
        ]

    def begun(self) -> list[Example]:
        """What there is of the answers that are not at their end."""
        return [
            Example(tuple(token_ids), num_prompt_tokens)
            for num_prompt_tokens, token_ids in self._rows.values()
            if len(token_ids) > num_prompt_tokens
        ]

    def _append(self, slot: int, token_id: int) -> Example | None:
        num_prompt_tokens, token_ids = self._rows[slot]
        token_ids.append(token_id)
        ended = token_id in self._tokenizer.eos_ids
        if not ended and len(token_ids) - num_prompt_tokens < MAX_ANSWER:
            return None
        del self._rows[slot]
        return Example(tuple(token_ids), num_prompt_tokens)


def _read(path: Path) -> list[Example]:
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("]]")]
    return [Example(tuple(token_ids), count) for count, token_ids in rows]


# -- teaching --------------------------------------------------------------------------------------


def teach(options: argparse.Namespace, examples: Sequence[Example], out: Path) -> None:
    """Train for the given epochs or minutes, whichever ends first, and save to ``out``."""
    source = fetch(options.model)
    target = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
    student = _student(target, _layers(options))
    batches = _batches(target, examples, options.rows)
    head = target.get_output_embeddings().weight.detach()
    parameters = [p for p in student.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=options.learning_rate, weight_decay=0.01)
    total, start, saved = options.epochs * len(batches), time.monotonic(), time.monotonic()
    recent: list[float] = []
    order = random.Random(0)
    with _progress() as progress:
        task = progress.add_task("Teaching (updates)", total=total)
        for step in range(total):
            if step % len(batches) == 0:
                order.shuffle(batches)
            done = max(step / total, (time.monotonic() - start) / (60 * options.minutes))
            if done >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * _schedule(done)
            loss = _loss(student, head, batches[step % len(batches)])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            recent = [*recent[-49:], loss.item()]
            mean = sum(recent) / len(recent)
            progress.update(
                task, completed=step + 1, description=f"Teaching (updates), loss {mean:.3f}"
            )
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                _save(student, source, out)
                saved = time.monotonic()
    CONSOLE.print(f"{step + 1} updates in {time.monotonic() - start:.0f} s, loss {mean:.3f}")
    _save(student, source, out)


def _schedule(done: float) -> float:
    """A short warm-up, then half a cosine down to a twentieth."""
    if done < WARM_UP:
        return (done + 1e-3) / (WARM_UP + 1e-3)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


def _student(target: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """Copies of some layers in float32 between the target's own embeddings and head, both frozen."""
    student = copy.deepcopy(target)
    body = student.model
    body.layers = torch.nn.ModuleList(body.layers[number] for number in layers)
    for number, layer in enumerate(body.layers):
        layer.self_attn.layer_idx = number
    student.config.num_hidden_layers = len(layers)
    body.layers.float()
    body.norm.float()
    student.get_input_embeddings().weight.requires_grad_(False)
    student.get_output_embeddings().weight.requires_grad_(False)
    return student.train()


def _batches(target: PreTrainedModel, examples: Sequence[Example], num_rows: int) -> list[Batch]:
    """Answers of like lengths together, with what the target thought at each position of them."""
    ordered = sorted(examples, key=lambda example: len(example.token_ids))
    groups = [ordered[i : i + num_rows] for i in range(0, len(ordered), num_rows)]
    with _progress() as progress, torch.no_grad():
        return [
            _batch(target, group)
            for group in progress.track(groups, description="Reading (batches)")
        ]


def _batch(target: PreTrainedModel, examples: Sequence[Example]) -> Batch:
    length = max(len(example.token_ids) for example in examples)
    token_ids = torch.zeros(len(examples), length, dtype=torch.int64)
    taught = torch.zeros(len(examples), length, dtype=torch.bool)
    for row, example in enumerate(examples):
        token_ids[row, : len(example.token_ids)] = torch.tensor(example.token_ids)
        taught[row, example.num_prompt_tokens - 1 : len(example.token_ids) - 1] = True
    # Padding stands at the end, where causal attention lets nothing look at it.
    hidden = target.model(input_ids=token_ids, use_cache=False).last_hidden_state
    return Batch(token_ids, taught, hidden[taught])


def _loss(student: PreTrainedModel, head: Tensor, batch: Batch) -> Tensor:
    """KL(target's law, student's) a position, and the distance of the last hidden states."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = student.model(input_ids=batch.token_ids, use_cache=False).last_hidden_state
        hidden = hidden[batch.taught].to(torch.bfloat16)
        chosen = torch.rand(len(hidden)) < LAW_SHARE
        logits = F.linear(hidden[chosen], head)
    with torch.no_grad():
        expected = F.linear(batch.features[chosen], head).float().softmax(dim=-1)
    # Cross entropy with the target's law: its gradient is that of the KL divergence.
    loss = F.cross_entropy(logits.float(), expected)
    distance = F.smooth_l1_loss(hidden.float(), batch.features.float())
    return loss + FEATURE_WEIGHT * distance


def _save(student: PreTrainedModel, source: str, out: Path) -> None:
    whole = copy.deepcopy(student).to(torch.bfloat16)
    whole.config.dtype = torch.bfloat16
    whole.save_pretrained(out)
    AutoTokenizer.from_pretrained(source).save_pretrained(out)


# -- measuring -------------------------------------------------------------------------------------


def evaluate(options: argparse.Namespace, out: Path) -> None:
    """Tokens per target pass with the student, the target cut to as many layers, and suffix drafts."""
    loaded = load(options.model, dtype="bfloat16", num_slots=16, max_length=1024)
    num_layers = len(_layers(options))
    texts = [json.loads(line)["text"] for line in options.prompts.read_text().splitlines()]
    asked = [loaded.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]
    student = load_draft(str(out), loaded, dtype="bfloat16")
    cut = load_draft(options.model, loaded, dtype="bfloat16", num_layers=num_layers)
    table = Table("drafts", "K", "temperature", "accepted", "tokens per target pass")
    for temperature in (0.0, 0.8):
        for count in (2, 4):
            sources: dict[str, DraftSource] = {
                "student": ModelDraftSource(student.model),
                f"first {num_layers} layers": ModelDraftSource(cut.model),
                "suffix": SuffixDraftSource(),
            }
            for name, source in sources.items():
                engine = Engine(loaded.model, loaded.tokenizer)
                requests = [
                    Request(
                        ids,
                        SamplingParams(temperature=temperature, seed=7, max_tokens=MEASURED_TOKENS),
                        Speculative(source, count),
                    )
                    for ids in asked
                ]
                tickets = engine.submit(requests)
                while engine.step():
                    pass
                stats = [ticket.stats for ticket in tickets]
                proposed = sum(s.num_draft_tokens for s in stats)
                accepted = sum(s.num_accepted_tokens for s in stats) / max(proposed, 1)
                passes = sum(s.num_steps for s in stats)
                length = sum(s.num_output_tokens for s in stats) / passes
                table.add_row(
                    name, str(count), f"{temperature}", f"{accepted:.2f}", f"{length:.2f}"
                )
    CONSOLE.print(table)


if __name__ == "__main__":
    main()
