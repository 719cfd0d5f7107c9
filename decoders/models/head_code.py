"""What attention does with one query head, in LLVM's intermediate representation.

Softmax in three passes over the scores: product and maximum, exponential and sum, mixture. A query
head has a scratch: its maximum, later the sum of its weights, and `LANES` numbers behind that its
scores. Functions: ``begin``, ``score``, ``weigh``, ``mix``, ``finish``.
"""

from __future__ import annotations

import struct

from decoders import native

LANES = 8
"""A head's dimension must be a multiple of it."""
_MIXED_AT_ONCE = 64
"""Dimensions of the output that are kept in registers."""
_V = f"<{LANES} x float>"
_I = f"<{LANES} x i32>"

# exp(r) for |r| ≤ ln 2 / 2, and ln 2 in two parts: Cephes' expf (Moshier).
_POLYNOMIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_LN2 = (0.693359375, -2.12194440e-4)
_LOG2_E = 1.44269504088896341
_LEAST = -87.0


def _number(value: float) -> str:
    """A float32 as LLVM reads it: the bits of the double with the same value."""
    (single,) = struct.unpack("f", struct.pack("f", value))
    return f"0x{struct.unpack('Q', struct.pack('d', single))[0]:016X}"


def _all(value: float) -> str:
    return "<" + ", ".join(f"float {_number(value)}" for _ in range(LANES)) + ">"


def _integers(value: int) -> str:
    return "<" + ", ".join(f"i32 {value}" for _ in range(LANES)) + ">"


_HEAD = f"""
declare {_V} @llvm.fma.v{LANES}f32({_V}, {_V}, {_V})
declare {_V} @llvm.maxnum.v{LANES}f32({_V}, {_V})
declare {_V} @llvm.nearbyint.v{LANES}f32({_V})
declare {_I} @llvm.fptosi.sat.v{LANES}i32.v{LANES}f32({_V})
declare float @llvm.vector.reduce.fadd.v{LANES}f32(float, {_V})
declare float @llvm.maxnum.f32(float, float)
"""


def _fma(name: str, a: str, b: str, c: str) -> str:
    return f"  %{name} = call {_V} @llvm.fma.v{LANES}f32({_V} {a}, {_V} {b}, {_V} {c})"


def _exp() -> str:
    """exp of numbers up to 0, to two units in the last place; what is below `_LEAST` gives 0."""
    lines = [
        f"define internal {_V} @exp({_V} %x) alwaysinline {{",
        f"  %low = fcmp olt {_V} %x, {_all(_LEAST)}",
        f"  %z = fmul {_V} %x, {_all(_LOG2_E)}",
        f"  %n = call {_V} @llvm.nearbyint.v{LANES}f32({_V} %z)",
        f"  %m = fneg {_V} %n",
        _fma("r0", "%m", _all(_LN2[0]), "%x"),
        _fma("r", "%m", _all(_LN2[1]), "%r0"),
        _fma("p0", _all(_POLYNOMIAL[0]), "%r", _all(_POLYNOMIAL[1])),
    ]
    lines += [
        _fma(f"p{i}", f"%p{i - 1}", "%r", _all(_POLYNOMIAL[i + 1]))
        for i in range(1, len(_POLYNOMIAL) - 1)
    ]
    lines += [
        f"  %rr = fmul {_V} %r, %r",
        f"  %one = fadd {_V} %r, {_all(1.0)}",
        _fma("e", f"%p{len(_POLYNOMIAL) - 2}", "%rr", "%one"),
        f"  %i = call {_I} @llvm.fptosi.sat.v{LANES}i32.v{LANES}f32({_V} %n)",
        f"  %biased = add {_I} %i, {_integers(127)}",
        f"  %shifted = shl {_I} %biased, {_integers(23)}",
        f"  %power = bitcast {_I} %shifted to {_V}",
        f"  %y = fmul {_V} %e, %power",
        f"  %result = select <{LANES} x i1> %low, {_V} zeroinitializer, {_V} %y",
        f"  ret {_V} %result",
        "}",
    ]
    return "\n".join(lines)


_EXP = _exp()


def functions(head_dim: int) -> str:
    """All of them, for heads of this size."""
    return "\n".join(
        [_HEAD, _EXP, _begin(head_dim), _score(head_dim), _WEIGH, _mix(head_dim), _finish(head_dim)]
    )


def _begin(head_dim: int) -> str:
    stores = "\n".join(
        f"  %o{d} = getelementptr float, ptr %o, i64 {d}\n"
        f"  store {_V} zeroinitializer, ptr %o{d}, align 4"
        for d in range(0, head_dim, LANES)
    )
    return f"""
define internal void @begin(ptr %scratch, ptr %o) {{
  store float {_number(float("-inf"))}, ptr %scratch, align 4
{stores}
  ret void
}}"""


def _score(head_dim: int) -> str:
    """Scores from one position up to another, and the maximum so far."""
    chunks = range(head_dim // LANES)
    load_q = "\n".join(
        f"  %qp{c} = getelementptr float, ptr %q, i64 {c * LANES}\n"
        f"  %q{c} = load {_V}, ptr %qp{c}, align 4"
        for c in chunks
    )
    product = "\n".join(
        f"  %kp{c} = getelementptr float, ptr %k_at, i64 {c * LANES}\n"
        f"  %k{c} = load {_V}, ptr %kp{c}, align 4\n"
        + (
            f"  %d{c} = fmul {_V} %q{c}, %k{c}"
            if c < 2
            else _fma(f"d{c}", f"%q{c}", f"%k{c}", f"%d{c - 2}")
        )
        for c in chunks
    )
    total = "%d0" if head_dim == LANES else "%both"
    both = (
        "" if head_dim == LANES else f"  %both = fadd {_V} %d{len(chunks) - 2}, %d{len(chunks) - 1}"
    )
    return f"""
define internal void @score(ptr noalias %q, ptr noalias %k, ptr noalias %scratch, i64 %from, i64 %to,
    i64 %step, float %scaling) {{
entry:
{load_q}
  %s = getelementptr float, ptr %scratch, i64 {LANES}
  %before = load float, ptr %scratch, align 4
  br label %score
score:
  %j = phi i64 [%from, %entry], [%j_after, %score]
  %best = phi float [%before, %entry], [%most, %score]
  %k_offset = mul i64 %j, %step
  %k_at = getelementptr float, ptr %k, i64 %k_offset
{product}
{both}
  %dot = call reassoc float @llvm.vector.reduce.fadd.v{LANES}f32(float 0x8000000000000000, {_V} {total})
  %scored = fmul float %dot, %scaling
  %s_at = getelementptr float, ptr %s, i64 %j
  store float %scored, ptr %s_at, align 4
  %most = call float @llvm.maxnum.f32(float %best, float %scored)
  %j_after = add nuw nsw i64 %j, 1
  %more = icmp ult i64 %j_after, %to
  br i1 %more, label %score, label %end
end:
  store float %most, ptr %scratch, align 4
  ret void
}}"""


def _weigh() -> str:
    """Exponentials in the place of the scores, and their sum in the place of the maximum."""
    tail = "\n".join(
        f"  %tail{i} = getelementptr float, ptr %s, i64 %length\n"
        f"  %tp{i} = getelementptr float, ptr %tail{i}, i64 {i}\n"
        f"  store float {_number(float('-inf'))}, ptr %tp{i}, align 4"
        for i in range(LANES)
    )
    return f"""
define internal void @weigh(ptr noalias %scratch, i64 %length) {{
entry:
  %s = getelementptr float, ptr %scratch, i64 {LANES}
{tail}
  %most = load float, ptr %scratch, align 4
{native.spread("most_all", "float", "%most", LANES)}
  br label %weigh
weigh:
  %w = phi i64 [0, %entry], [%w_after, %weigh]
  %sum = phi {_V} [zeroinitializer, %entry], [%sum_after, %weigh]
  %w_at = getelementptr float, ptr %s, i64 %w
  %raw = load {_V}, ptr %w_at, align 4
  %below = fsub {_V} %raw, %most_all
  %weight = call {_V} @exp({_V} %below)
  store {_V} %weight, ptr %w_at, align 4
  %sum_after = fadd {_V} %sum, %weight
  %w_after = add nuw nsw i64 %w, {LANES}
  %more = icmp ult i64 %w_after, %length
  br i1 %more, label %weigh, label %end
end:
  %mass = call reassoc float @llvm.vector.reduce.fadd.v{LANES}f32(float 0x8000000000000000, {_V} %sum_after)
  store float %mass, ptr %scratch, align 4
  ret void
}}"""


_WEIGH = _weigh()


def _mix(head_dim: int) -> str:
    """Adds the weighted values from one position up to another to ``%o``."""
    blocks, before = [], "entry"
    for start in range(0, head_dim, _MIXED_AT_ONCE):
        dims = range(start, min(start + _MIXED_AT_ONCE, head_dim), LANES)
        loads = "\n".join(
            f"  %op{d} = getelementptr float, ptr %o, i64 {d}\n"
            f"  %o{d} = load {_V}, ptr %op{d}, align 4"
            for d in dims
        )
        sums = "\n".join(
            f"  %m{d} = phi {_V} [%o{d}, %{before}], [%n{d}, %mix{start}]" for d in dims
        )
        steps = "\n".join(
            f"  %vp{d} = getelementptr float, ptr %v_at{start}, i64 {d}\n"
            f"  %v{d} = load {_V}, ptr %vp{d}, align 4\n"
            + _fma(f"n{d}", f"%pa{start}", f"%v{d}", f"%m{d}")
            for d in dims
        )
        stores = "\n".join(f"  store {_V} %n{d}, ptr %op{d}, align 4" for d in dims)
        blocks.append(f"""{loads}
  br label %mix{start}
mix{start}:
  %i{start} = phi i64 [%from, %{before}], [%i_after{start}, %mix{start}]
{sums}
  %p_at{start} = getelementptr float, ptr %s, i64 %i{start}
  %p{start} = load float, ptr %p_at{start}, align 4
{native.spread(f"pa{start}", "float", f"%p{start}", LANES)}
  %v_offset{start} = mul i64 %i{start}, %step
  %v_at{start} = getelementptr float, ptr %v, i64 %v_offset{start}
{steps}
  %i_after{start} = add nuw nsw i64 %i{start}, 1
  %more{start} = icmp ult i64 %i_after{start}, %to
  br i1 %more{start}, label %mix{start}, label %mixed{start}
mixed{start}:
{stores}""")
        before = f"mixed{start}"
    body = "\n".join(blocks)
    return f"""
define internal void @mix(ptr noalias %scratch, ptr noalias %v, ptr noalias %o, i64 %from, i64 %to,
    i64 %step) {{
entry:
  %s = getelementptr float, ptr %scratch, i64 {LANES}
{body}
  ret void
}}"""


def _finish(head_dim: int) -> str:
    divisions = "\n".join(
        f"  %p{d} = getelementptr float, ptr %o, i64 {d}\n"
        f"  %o{d} = load {_V}, ptr %p{d}, align 4\n"
        f"  %y{d} = fdiv {_V} %o{d}, %mass_all\n"
        f"  store {_V} %y{d}, ptr %p{d}, align 4"
        for d in range(0, head_dim, LANES)
    )
    return f"""
define internal void @finish(ptr %scratch, ptr %o) {{
  %mass = load float, ptr %scratch, align 4
{native.spread("mass_all", "float", "%mass", LANES)}
{divisions}
  ret void
}}"""
