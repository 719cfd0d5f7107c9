"""Refuses parameters that would change the answer but are not served.

To ignore one would be to answer another question than was asked. It knows the names that OpenAI,
Anthropic, vLLM, SGLang, llama.cpp, transformers and Ollama give them; what nobody gives a meaning passes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gateway.errors import UnsupportedParameter, cut

NEUTRAL: Mapping[str, Sequence[Any]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "ban_eos_token": (False,),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "ebnf": (),
    "echo": (False,),
    "enable_thinking": (),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "format": ("",),
    "function_call": ("none",),
    "functions": ([],),
    "grammar": ("",),
    "include_stop_str_in_output": (False,),
    "instructions": ("",),
    "json_schema": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "max_length": (),
    "max_new_tokens": (),
    "max_output_tokens": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_mode": (0,),
    "mirostat_tau": (5,),
    "modalities": (["text"],),
    "moderation": (),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "num_predict": (),
    "n_predict": (),
    "penalty_alpha": (0,),
    "prediction": (),
    "previous_response_id": (),
    "prompt_logprobs": (),
    "reasoning": (),
    "reasoning_effort": ("none",),
    "regex": (),
    "repeat_penalty": (1,),
    "skip_special_tokens": (True,),
    "smoothing_factor": (0,),
    "stop_sequences": ([],),
    "structural_tag": (),
    "suffix": ("",),
    "system": ("", []),
    "tfs_z": (1,),
    "thinking": (False, {"type": "disabled"}),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_a": (0,),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "xtc_probability": (0,),
}
"""Parameter → the values that ask for nothing, or for what is done anyway. Null always does."""

NOTHING: Mapping[str, Sequence[Any]] = {}
FAMILIES = ("guided_", "mirostat_")
"""Every name that begins so is one of them, whatever a server's next version adds."""


def refuse_unsupported(
    fields: Mapping[str, Any],
    *,
    served: Collection[str] = (),
    own: Mapping[str, Sequence[Any]] = NOTHING,
) -> None:
    """Raise UnsupportedParameter for the first field that would have to be ignored.

    ``served`` are the fields of the endpoint itself: one of them may know what the other does not.
    ``own`` is like `NEUTRAL`, for this endpoint alone and before anything else.
    """
    for name, value in fields.items():
        if name in served and name not in own:
            continue
        neutral = own.get(name, NEUTRAL.get(name, () if name.startswith(FAMILIES) else None))
        if neutral is None or value is None:
            continue
        if not any(_same(value, harmless) for harmless in neutral):
            raise UnsupportedParameter(
                f"The parameter {cut(name)!r} is not supported with this value; leave it out.",
                param=cut(name),
            )


def _same(value: Any, harmless: Any) -> bool:
    # In Python true is 1, and in JSON 1.0 is 1.
    return isinstance(value, bool) is isinstance(harmless, bool) and bool(value == harmless)
