"""Machine code for the processor at hand, compiled by LLVM while a model loads."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from typing import Any

_OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
HEAD = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""
"""What code may call: threads of the OpenMP pool that torch computes with. With a second pool the
two would take the processors from each other."""

_alive: list[object] = []
"""Compilers, which own the code that they made."""


def compiled(source: str, name: str, arguments: str) -> Callable[..., None] | None:
    """Function ``name`` of a module of LLVM's intermediate representation; None where it cannot be had.

    ``arguments`` has a letter for each of its own: p for a pointer, i for an i64, f for a float.
    The number of threads follows, an i32.
    """
    if platform.system() != "Linux":
        return None
    openmp = ctypes.CDLL(None)
    if not all(hasattr(openmp, symbol) for symbol in _OPENMP):
        return None
    try:
        address = _address(source, name, openmp)
    except (ImportError, OSError, RuntimeError):
        return None
    types: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}
    kind = ctypes.CFUNCTYPE(None, *(types[letter] for letter in arguments), ctypes.c_int32)
    return kind(address)


def _address(source: str, name: str, openmp: ctypes.CDLL) -> int:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for symbol in _OPENMP:
        llvm.add_symbol(symbol, ctypes.cast(getattr(openmp, symbol), ctypes.c_void_p).value)
    module = llvm.parse_assembly(HEAD + source)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    compiler = llvm.create_mcjit_compiler(module, machine)
    compiler.finalize_object()
    _alive.append(compiler)
    address: int = compiler.get_function_address(name)
    return address


def entry(name: str, share: str, arguments: str) -> str:
    """The function that runs ``share`` on every thread, with its arguments in one `call_type`."""
    numbered = list(enumerate(arguments))
    parameters = ", ".join(f"{_KINDS[letter]} %a{i}" for i, letter in numbered)
    stores = "".join(
        f"""
  %at{i} = getelementptr {call_type(arguments)}, ptr %call, i32 0, i32 {i}
  store {_KINDS[letter]} %a{i}, ptr %at{i}"""
        for i, letter in numbered
    )
    return f"""
define void @{name}({parameters}, i32 %threads) {{
  %call = alloca {call_type(arguments)}{stores}
  call void @GOMP_parallel(ptr @{share}, ptr %call, i32 %threads, i32 0)
  ret void
}}"""


def loads(names: list[str], arguments: str) -> str:
    """Code that brings the arguments of `entry` back under their names, out of ``%call``."""
    return "".join(
        f"""
  %{name}_at = getelementptr {call_type(arguments)}, ptr %call, i32 0, i32 {i}
  %{name} = load {_KINDS[letter]}, ptr %{name}_at"""
        for i, (name, letter) in enumerate(zip(names, arguments, strict=True))
    )


def spread(name: str, kind: str, scalar: str, lanes: int) -> str:
    """Code that puts ``scalar`` into every lane of the vector ``%name``."""
    vector = f"<{lanes} x {kind}>"
    return (
        f"  %{name}_in = insertelement {vector} poison, {kind} {scalar}, i32 0\n"
        f"  %{name} = shufflevector {vector} %{name}_in, {vector} poison, "
        f"<{lanes} x i32> zeroinitializer"
    )


def call_type(arguments: str) -> str:
    """The structure that holds the arguments."""
    return "{ " + ", ".join(_KINDS[letter] for letter in arguments) + " }"


SHARE_OF = """
  %thread32 = call i32 @omp_get_thread_num()
  %threads32 = call i32 @omp_get_num_threads()
  %thread = zext i32 %thread32 to i64
  %threads = zext i32 %threads32 to i64
  %before = mul i64 %count, %thread
  %first = udiv i64 %before, %threads
  %thread_after = add i64 %thread, 1
  %behind = mul i64 %count, %thread_after
  %last = udiv i64 %behind, %threads"""
"""Code that gives a thread its part, ``%first`` to ``%last``, of ``%count`` pieces of work."""

_KINDS = {"p": "ptr", "i": "i64", "f": "float"}
