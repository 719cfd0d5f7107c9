"""What a model's files may be: numbers and text, and nothing that runs when it is read."""

from __future__ import annotations

from pathlib import Path

from decoders.models.base import ModelError

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def refuse_code(folder: Path) -> None:
    """Raise ModelError for a folder whose weights are there as pickles alone."""
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for kind in _PICKLES for path in folder.glob(kind))
        if pickles:
            raise ModelError(
                f"{folder} has its weights in {pickles[0]}, a pickle, which can run code when it is "
                "read; convert them where you trust them: AutoModelForCausalLM.from_pretrained(…)"
                ".save_pretrained(…) writes safetensors"
            )
