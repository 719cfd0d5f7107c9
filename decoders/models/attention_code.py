"""Attention of decoding tokens over the slot cache, in LLVM's intermediate representation.

The query heads of a row that share a key/value head go together, some positions at a time, so that
a draft of many tokens reads a long context once and not once for each token. Each for itself sees
keys and values in the order of their positions: its bits do not depend on the other tokens of the
pass, nor on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from decoders import native
from decoders.models.head_code import LANES, functions

_BLOCK = 64
"""Positions that all query heads go through before the next ones: their keys stay in the first cache."""
ROW_FIELDS = 4

Attend = Callable[..., None]
"""(queries, keys, values, out, rows, scratch, tokens, heads, heads per key/value head, numbers from
slot to slot, from position to position, from thread to thread and from query head to query head in
the scratch, scaling, threads).

``rows`` is int64 [rows, `ROW_FIELDS`]: a row's first token, its number of tokens, its slot, and how
many positions its first token sees; each of its tokens sees one more than the one before.
``queries`` and ``out`` [tokens, heads, head_dim] are contiguous. A thread needs `scratch_length` for
each query head that it may meet of one row and key/value head.
"""

_NAMES = "q k v o rows scratch tokens heads shared slot_step step thread_step query_step scaling"
_ARGUMENTS = "ppppppiiiiiiif"


@lru_cache(maxsize=8)
def attend(head_dim: int) -> Attend | None:
    """The code for heads of this size; None where it cannot be had."""
    if head_dim % LANES:
        return None
    return native.compiled(_source(head_dim), "attend", _ARGUMENTS)


def scratch_length(length: int) -> int:
    """Numbers of scratch for a query head that sees ``length`` positions."""
    return length + 3 * LANES


def _source(head_dim: int) -> str:
    entry = native.entry("attend", "share", _ARGUMENTS)
    return "\n".join([functions(head_dim), _bundle(head_dim), _share(head_dim), entry])


def _bundle(head_dim: int) -> str:
    """Query heads ``%rest`` to ``%rest + %count`` of those of a row that share a key/value head.

    ``%q`` and ``%o`` are those of the row's first token and of the key/value head's first query head.
    """
    return f"""
define internal void @bundle(ptr %q, ptr %k, ptr %v, ptr %o, ptr %scratch, i64 %rest, i64 %count,
    i64 %shared, i64 %token_step, i64 %length, i64 %step, i64 %query_step, float %scaling) {{
entry:
  %end_rest = add i64 %rest, %count
  %last_rest = sub i64 %end_rest, 1
  %last_token = udiv i64 %last_rest, %shared
  %longest = add i64 %length, %last_token
{_each("begin", "entry", head_dim, "call void @begin(ptr %begin_s, ptr %begin_o)")}
{
        _blocks(
            "score",
            "begin_all",
            head_dim,
            "call void @score(ptr %score_q, ptr %k, ptr %score_s, i64 %score_from, i64 %score_to,"
            " i64 %step, float %scaling)",
        )
    }
{_each("weigh", "score_over", head_dim, "call void @weigh(ptr %weigh_s, i64 %weigh_length)")}
{
        _blocks(
            "mix",
            "weigh_all",
            head_dim,
            "call void @mix(ptr %mix_s, ptr %v, ptr %mix_o, i64 %mix_from, i64 %mix_to, i64 %step)",
        )
    }
{_each("finish", "mix_over", head_dim, "call void @finish(ptr %finish_s, ptr %finish_o)")}
  ret void
}}"""


def _each(name: str, before: str, head_dim: int, call: str) -> str:
    """``call`` for each query head; ends in the block ``{name}_all``."""
    return f"""  br label %{name}
{name}:
  %{name}_i = phi i64 [0, %{before}], [%{name}_next, %{name}_done]
  %{name}_at = add i64 %rest, %{name}_i
  %{name}_token = udiv i64 %{name}_at, %shared
  %{name}_head = urem i64 %{name}_at, %shared
  %{name}_length = add i64 %length, %{name}_token
  %{name}_row = mul i64 %{name}_token, %token_step
  %{name}_column = mul i64 %{name}_head, {head_dim}
  %{name}_place = add i64 %{name}_row, %{name}_column
  %{name}_q = getelementptr float, ptr %q, i64 %{name}_place
  %{name}_o = getelementptr float, ptr %o, i64 %{name}_place
  %{name}_offset = mul i64 %{name}_i, %query_step
  %{name}_s = getelementptr float, ptr %scratch, i64 %{name}_offset
  {call}
  br label %{name}_done
{name}_done:
  %{name}_next = add i64 %{name}_i, 1
  %{name}_more = icmp ult i64 %{name}_next, %count
  br i1 %{name}_more, label %{name}, label %{name}_all
{name}_all:"""


def _blocks(name: str, before: str, head_dim: int, call: str) -> str:
    """``call`` for each query head and `_BLOCK` positions that it sees; ends in ``{name}_over``."""
    guarded = f"""%{name}_to = call i64 @llvm.umin.i64(i64 %{name}_length, i64 %{name}_behind)
  %{name}_any = icmp ult i64 %{name}_from, %{name}_to
  br i1 %{name}_any, label %{name}_run, label %{name}_done
{name}_run:
  {call}"""
    return f"""  br label %{name}_block
{name}_block:
  %{name}_from = phi i64 [0, %{before}], [%{name}_behind, %{name}_all]
  %{name}_behind = add i64 %{name}_from, {_BLOCK}
{_each(name, f"{name}_block", head_dim, guarded)}
  %{name}_further = icmp ult i64 %{name}_behind, %longest
  br i1 %{name}_further, label %{name}_block, label %{name}_over
{name}_over:"""


def _share(head_dim: int) -> str:
    """One thread's share of all query heads of all tokens, in bundles."""
    fields = "".join(
        f"""
  %at_{name} = getelementptr i64, ptr %row, i64 {i}
  %{name} = load i64, ptr %at_{name}"""
        for i, name in enumerate(("first_token", "num_tokens", "slot", "length"))
    )
    return f"""
declare i64 @llvm.umin.i64(i64, i64)
define internal void @share(ptr %call) {{
entry:{native.loads(_NAMES.split(), _ARGUMENTS)}
  %count = mul i64 %tokens, %heads{native.SHARE_OF}
  %s_offset = mul i64 %thread, %thread_step
  %s = getelementptr float, ptr %scratch, i64 %s_offset
  %token_step = mul i64 %heads, {head_dim}
  %any = icmp ult i64 %first, %last
  br i1 %any, label %look, label %end
look:
  %u = phi i64 [%first, %entry], [%u, %next], [%u_after, %bundle]
  %r = phi i64 [0, %entry], [%r_after, %next], [%r, %bundle]
  %row_offset = mul i64 %r, {ROW_FIELDS}
  %row = getelementptr i64, ptr %rows, i64 %row_offset{fields}
  %row_first = mul i64 %first_token, %heads
  %row_count = mul i64 %num_tokens, %heads
  %row_last = add i64 %row_first, %row_count
  %here = icmp ult i64 %u, %row_last
  br i1 %here, label %bundle, label %next
next:
  %r_after = add i64 %r, 1
  br label %look
bundle:
  %span = mul i64 %num_tokens, %shared
  %in_row = sub i64 %u, %row_first
  %kv_head = udiv i64 %in_row, %span
  %rest = urem i64 %in_row, %span
  %left = sub i64 %span, %rest
  %wanted = sub i64 %last, %u
  %size = call i64 @llvm.umin.i64(i64 %left, i64 %wanted)
  %slot_offset = mul i64 %slot, %slot_step
  %kv_offset = mul i64 %kv_head, {head_dim}
  %offset = add i64 %slot_offset, %kv_offset
  %k_one = getelementptr float, ptr %k, i64 %offset
  %v_one = getelementptr float, ptr %v, i64 %offset
  %q_row = mul i64 %first_token, %token_step
  %q_column = mul i64 %kv_offset, %shared
  %q_offset = add i64 %q_row, %q_column
  %q_one = getelementptr float, ptr %q, i64 %q_offset
  %o_one = getelementptr float, ptr %o, i64 %q_offset
  call void @bundle(ptr %q_one, ptr %k_one, ptr %v_one, ptr %o_one, ptr %s, i64 %rest, i64 %size,
    i64 %shared, i64 %token_step, i64 %length, i64 %step, i64 %query_step, float %scaling)
  %u_after = add i64 %u, %size
  %more = icmp ult i64 %u_after, %last
  br i1 %more, label %look, label %end
end:
  ret void
}}"""
