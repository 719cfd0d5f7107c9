"""Finds the tokens that noise can let win, in one pass over the scores, in LLVM's representation."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from decoders import native

WEYL = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
"""SplitMix64's constants."""
LEADING_ONES = 12
_LANES = 8
_V = f"<{_LANES} x float>"
_L = f"<{_LANES} x i64>"
_B = f"<{_LANES} x i1>"
_NAMES = "scores keys tokens counts rows vocab near far"
_ARGUMENTS = "ppppiiff"

Find = Callable[..., None]
"""(scores, keys, tokens, counts, rows, vocab, near, far, threads).

``scores`` is float32 [rows, vocab], ``keys`` int64 [rows]; ``tokens`` int32 [rows, vocab] and
``counts`` int64 [rows] take what is found. That is of each row, by their ids, the tokens whose score
is no less than the highest - ``near``, those no less than the highest - ``far`` for which the
generator has `LEADING_ONES`, and those whose score is no number; a few others may be among them.
"""


@lru_cache(maxsize=1)
def find() -> Find | None:
    """The code; None where it cannot be had."""
    source = "\n".join([_HEAD, _ROW, _SHARE, native.entry("find", "share", _ARGUMENTS)])
    return native.compiled(source, "find", _ARGUMENTS)


def _all(value: int, kind: str = "i64") -> str:
    signed = value - (1 << 64) if value >> 63 else value
    return "<" + ", ".join(f"{kind} {signed}" for _ in range(_LANES)) + ">"


_MINUS_INFINITY = "0xFFF0000000000000"
_LANE_COUNTERS = "<" + ", ".join(f"i64 {(i + 1) * WEYL % (1 << 64)}" for i in range(_LANES)) + ">"
_STEP = _all(_LANES * WEYL % (1 << 64))

_HEAD = f"""
declare {_V} @llvm.maxnum.v{_LANES}f32({_V}, {_V})
declare float @llvm.vector.reduce.fmax.v{_LANES}f32({_V})
declare i8 @llvm.cttz.i8(i8, i1)
"""

# The maximum leaves out what stands behind the last whole vector, and all of that contends: a lower
# maximum only lets more tokens in.
_ROW = f"""
define internal i64 @row(ptr noalias %s, i64 %vocab, i64 %key, ptr noalias %tokens, float %near,
    float %far) {{
entry:
  %whole = and i64 %vocab, {-_LANES}
  %any = icmp ne i64 %whole, 0
  br i1 %any, label %look, label %rest
look:
  %j = phi i64 [0, %entry], [%j_after, %look]
  %best = phi {_V} [<{
    ", ".join(f"float {_MINUS_INFINITY}" for _ in range(_LANES))
}>, %entry], [%most, %look]
  %j_at = getelementptr float, ptr %s, i64 %j
  %seen = load {_V}, ptr %j_at, align 4
  %most = call {_V} @llvm.maxnum.v{_LANES}f32({_V} %best, {_V} %seen)
  %j_after = add nuw nsw i64 %j, {_LANES}
  %j_more = icmp ult i64 %j_after, %whole
  br i1 %j_more, label %look, label %looked
looked:
  %top = call float @llvm.vector.reduce.fmax.v{_LANES}f32({_V} %most)
  %near_one = fsub float %top, %near
  %far_one = fsub float %top, %far
{native.spread("near_all", "float", "%near_one", _LANES)}
{native.spread("far_all", "float", "%far_one", _LANES)}
{native.spread("key_all", "i64", "%key", _LANES)}
  %begin = add {_L} %key_all, {_LANE_COUNTERS}
  br label %block
block:
  %b = phi i64 [0, %looked], [%b_after, %next]
  %state = phi {_L} [%begin, %looked], [%state_after, %next]
  %found = phi i64 [0, %looked], [%found_after, %next]
  %b_at = getelementptr float, ptr %s, i64 %b
  %score = load {_V}, ptr %b_at, align 4
  %is_near = fcmp uge {_V} %score, %near_all
  %is_far = fcmp oge {_V} %score, %far_all
  %x0 = lshr {_L} %state, {_all(30)}
  %x1 = xor {_L} %state, %x0
  %x2 = mul {_L} %x1, {_all(MIX_1)}
  %x3 = lshr {_L} %x2, {_all(27)}
  %x4 = xor {_L} %x2, %x3
  %x5 = mul {_L} %x4, {_all(MIX_2)}
  %x6 = ashr {_L} %x5, {_all(64 - LEADING_ONES)}
  %is_lucky = icmp eq {_L} %x6, {_all(-1)}
  %reaches = and {_B} %is_lucky, %is_far
  %contends = or {_B} %is_near, %reaches
  %bits = bitcast {_B} %contends to i8
  %state_after = add {_L} %state, {_STEP}
  %none = icmp eq i8 %bits, 0
  br i1 %none, label %next, label %put
put:
  %left = phi i8 [%bits, %block], [%left_after, %put]
  %at = phi i64 [%found, %block], [%at_after, %put]
  %lane8 = call i8 @llvm.cttz.i8(i8 %left, i1 true)
  %lane = zext i8 %lane8 to i64
  %id = add i64 %b, %lane
  %id32 = trunc i64 %id to i32
  %t_at = getelementptr i32, ptr %tokens, i64 %at
  store i32 %id32, ptr %t_at, align 4
  %at_after = add i64 %at, 1
  %less = sub i8 %left, 1
  %left_after = and i8 %left, %less
  %done = icmp eq i8 %left_after, 0
  br i1 %done, label %next, label %put
next:
  %found_after = phi i64 [%found, %block], [%at_after, %put]
  %b_after = add nuw nsw i64 %b, {_LANES}
  %b_more = icmp ult i64 %b_after, %whole
  br i1 %b_more, label %block, label %rest
rest:
  %r = phi i64 [%whole, %entry], [%whole, %next], [%r_after, %one]
  %count = phi i64 [0, %entry], [%found_after, %next], [%count_after, %one]
  %r_more = icmp ult i64 %r, %vocab
  br i1 %r_more, label %one, label %end
one:
  %r32 = trunc i64 %r to i32
  %r_at = getelementptr i32, ptr %tokens, i64 %count
  store i32 %r32, ptr %r_at, align 4
  %r_after = add i64 %r, 1
  %count_after = add i64 %count, 1
  br label %rest
end:
  ret i64 %count
}}"""

_SHARE = f"""
define internal void @share(ptr %call) {{
entry:{native.loads(_NAMES.split(), _ARGUMENTS)}
  %count = add i64 %rows, 0{native.SHARE_OF}
  %any = icmp ult i64 %first, %last
  br i1 %any, label %one, label %end
one:
  %u = phi i64 [%first, %entry], [%u_after, %one]
  %offset = mul i64 %u, %vocab
  %s = getelementptr float, ptr %scores, i64 %offset
  %t = getelementptr i32, ptr %tokens, i64 %offset
  %key_at = getelementptr i64, ptr %keys, i64 %u
  %key = load i64, ptr %key_at
  %n = call i64 @row(ptr %s, i64 %vocab, i64 %key, ptr %t, float %near, float %far)
  %n_at = getelementptr i64, ptr %counts, i64 %u
  store i64 %n, ptr %n_at
  %u_after = add i64 %u, 1
  %more = icmp ult i64 %u_after, %last
  br i1 %more, label %one, label %end
end:
  ret void
}}"""
