"""The panel product's code: LLVM's intermediate representation, compiled for this processor.

For few tokens a linear layer takes as long as its weights take to come from memory, if nothing
else gets in the way. What does in general libraries: they copy or reorder, spread over the weights
in strides, or compute while the memory waits. Here every thread reads its share of the weights
once, from front to back, and asks for the next panel while it computes with this one.
Weights that a bfloat16 holds without loss are read as such, which is half the memory, and become
float32 again in registers: the sums are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from decoders import native

PANEL_WIDTH = 16
"""Outputs of one panel: a cache line of float32 for each input."""
_TILE_ROWS = 6
"""Tokens computed at once: 12 of the 16 vector registers that AVX2 has hold their sums."""
_MIN_PREFETCHING_ROWS = 3
"""With fewer, the processor's own prefetching keeps up."""
_VECTOR = f"<{PANEL_WIDTH} x float>"
_HALVES = f"<{PANEL_WIDTH} x i16>"
_WORDS = f"<{PANEL_WIDTH} x i32>"

_Address = int
Product = Callable[[_Address, _Address, _Address, int, int, int, int], None]
"""(x, panels, y, tokens, inputs, padded outputs, threads): y [tokens, outputs] = x @ weight.T."""


@lru_cache(maxsize=2)
def product(half: bool = False) -> Product | None:
    """The product as machine code, ``half``: over bfloat16 panels; None where it cannot be had."""
    return native.compiled(_source(half), "product", _ARGUMENTS)


def _source(half: bool) -> str:
    return "\n".join(
        [
            _HEAD,
            *(_tile(rows, half) for rows in range(1, _TILE_ROWS + 1)),
            _body("i16" if half else "float"),
            native.entry("product", "share", _ARGUMENTS),
        ]
    )


def _tile(rows: int, half: bool) -> str:
    """Some tokens × one panel: reads each weight once and keeps all sums in registers.

    A sum is taken input by input, whatever ``rows`` is: a token has the same bits in any company.
    Slice ``%next`` of the next panel is asked for at the rate at which this one is read.
    """
    numbers = range(rows)
    lines = [
        f"define internal void @tile{rows}(ptr noalias %x, ptr noalias %w, ptr noalias %y, "
        "i64 %inputs, i64 %outputs, ptr %next, i64 %rate) alwaysinline {",
        "entry:",
        *(f"  %o{i} = mul i64 %inputs, {i}" for i in numbers),
        *(f"  %x{i} = getelementptr float, ptr %x, i64 %o{i}" for i in numbers),
        "  br label %loop",
        "loop:",
        "  %j = phi i64 [0, %entry], [%after, %loop]",
        *(
            f"  %sum{i} = phi {_VECTOR} [zeroinitializer, %entry], [%new{i}, %loop]"
            for i in numbers
        ),
        f"  %at = mul i64 %j, {PANEL_WIDTH}",
        *(_LOAD_HALF if half else _LOAD),
    ]
    if rows >= _MIN_PREFETCHING_ROWS:
        lines += [
            "  %scaled = mul i64 %j, %rate",
            "  %line = lshr i64 %scaled, 16",
            f"  %wanted = mul i64 %line, {(2 if half else 4) * PANEL_WIDTH}",
            "  %ahead = getelementptr i8, ptr %next, i64 %wanted",
            "  call void @llvm.prefetch.p0(ptr %ahead, i32 0, i32 2, i32 1)",
        ]
    for i in numbers:
        lines += [
            f"  %xj{i} = getelementptr float, ptr %x{i}, i64 %j",
            f"  %s{i} = load float, ptr %xj{i}, align 4",
            native.spread(f"u{i}", "float", f"%s{i}", PANEL_WIDTH),
            f"  %new{i} = call {_VECTOR} @llvm.fma.v{PANEL_WIDTH}f32("
            f"{_VECTOR} %u{i}, {_VECTOR} %weights, {_VECTOR} %sum{i})",
        ]
    lines += [
        "  %after = add nuw nsw i64 %j, 1",
        "  %more = icmp ult i64 %after, %inputs",
        "  br i1 %more, label %loop, label %done",
        "done:",
    ]
    for i in numbers:
        lines += [
            f"  %p{i} = mul i64 %outputs, {i}",
            f"  %y{i} = getelementptr float, ptr %y, i64 %p{i}",
            f"  store {_VECTOR} %new{i}, ptr %y{i}, align 4",
        ]
    return "\n".join([*lines, "  ret void", "}"])


_LOAD = [
    "  %w_at = getelementptr float, ptr %w, i64 %at",
    f"  %weights = load {_VECTOR}, ptr %w_at, align 16",
]
_LOAD_HALF = [
    "  %w_at = getelementptr i16, ptr %w, i64 %at",
    f"  %halves = load {_HALVES}, ptr %w_at, align 16",
    f"  %words = zext {_HALVES} %halves to {_WORDS}",
    f"  %shifted = shl {_WORDS} %words, <{', '.join(['i32 16'] * PANEL_WIDTH)}>",
    f"  %weights = bitcast {_WORDS} %shifted to {_VECTOR}",
]
_NAMES = ["x", "w", "y", "tokens", "inputs", "outputs"]
_ARGUMENTS = "pppiii"
_HEAD = f"""
declare {_VECTOR} @llvm.fma.v{PANEL_WIDTH}f32({_VECTOR}, {_VECTOR}, {_VECTOR})
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
"""


def _body(weight: str) -> str:
    """One thread's share: panel by panel, and in each all tokens, in tiles of nearly equal size."""
    sizes = range(1, _TILE_ROWS + 1)
    cases = " ".join(f"i64 {rows}, label %rows{rows}" for rows in sizes)
    tiles = "\n".join(
        f"rows{rows}:\n"
        f"  call void @tile{rows}(ptr %x_tile, ptr %w_panel, ptr %y_tile, "
        "i64 %inputs, i64 %outputs, ptr %next, i64 %rate)\n"
        "  br label %tile_end"
        for rows in sizes
    )
    return f"""
define internal void @share(ptr %call) {{
entry:{native.loads(_NAMES, _ARGUMENTS)}
  %count = udiv i64 %outputs, {PANEL_WIDTH}{native.SHARE_OF}
  %rounded = add i64 %tokens, {_TILE_ROWS - 1}
  %tiles = udiv i64 %rounded, {_TILE_ROWS}
  %rate = udiv i64 65536, %tiles
  %panel_size = mul i64 %inputs, {PANEL_WIDTH}
  %any = icmp ult i64 %first, %last
  br i1 %any, label %panel, label %end
panel:
  %p = phi i64 [%first, %entry], [%p_after, %panel_end]
  %w_offset = mul i64 %p, %panel_size
  %w_panel = getelementptr {weight}, ptr %w, i64 %w_offset
  %w_next = getelementptr {weight}, ptr %w_panel, i64 %panel_size
  %y_offset = mul i64 %p, {PANEL_WIDTH}
  %y_panel = getelementptr float, ptr %y, i64 %y_offset
  br label %tile
tile:
  %row = phi i64 [0, %panel], [%row_after, %tile_end]
  %number = phi i64 [0, %panel], [%number_after, %tile_end]
  %number_after = add i64 %number, 1
  %shared = mul i64 %tokens, %number_after
  %row_after = udiv i64 %shared, %tiles
  %rows = sub i64 %row_after, %row
  %x_offset = mul i64 %row, %inputs
  %x_tile = getelementptr float, ptr %x, i64 %x_offset
  %y_row = mul i64 %row, %outputs
  %y_tile = getelementptr float, ptr %y_panel, i64 %y_row
  %slices = mul i64 %inputs, %number
  %slice = udiv i64 %slices, %tiles
  %slice_offset = mul i64 %slice, {PANEL_WIDTH}
  %next = getelementptr {weight}, ptr %w_next, i64 %slice_offset
  switch i64 %rows, label %tile_end [ {cases} ]
{tiles}
tile_end:
  %more_rows = icmp ult i64 %row_after, %tokens
  br i1 %more_rows, label %tile, label %panel_end
panel_end:
  %p_after = add i64 %p, 1
  %more_panels = icmp ult i64 %p_after, %last
  br i1 %more_panels, label %panel, label %end
end:
  ret void
}}"""
