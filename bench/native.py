"""The C loop: compiled once into `bench/results`, called through ctypes.

The structures here mirror those in `loop.c`; the file name of the compiled loop contains a digest
of the source, so a changed source is compiled again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_int, c_long, c_ubyte, c_uint
from pathlib import Path

SOURCE = Path(__file__).with_name("loop.c")
RESULTS = Path(__file__).with_name("results")

MARKER_BYTES_MAX = 32
DRAINED, COPIES, ANSWERS = range(3)  # `enum role`.
ANSWER_BYTES = 256


class NoCompiler(Exception):
    """The machine has no C compiler, or compiling failed."""


class Lane(Structure):
    """`struct lane`."""

    _fields_ = (
        ("sender", c_int),
        ("receivers", c_int),
        ("messages", c_int),
        ("is_answered", c_int),
        ("frame_bytes", c_int),
        ("window", c_int),
        ("refill_at", c_int),
        ("background", c_int),
        ("allowed", c_int),
        ("complete", c_int),
        ("answers", c_int),
        ("left", POINTER(c_int)),
        ("frames", c_char_p),
        ("began", POINTER(c_double)),
        ("took", POINTER(c_double)),
        ("answered", POINTER(c_double)),
        ("sent_bytes", c_long),
        ("deliveries", c_long),
    )


class Receiver(Structure):
    """`struct receiver`."""

    _fields_ = (
        ("fd", c_int),
        ("lane", c_int),
        ("role", c_int),
        ("got", c_int),
        ("marker_bytes", c_int),
        ("ack_bytes", c_int),
        ("marker", c_char_p),
        ("acks", c_char_p),
        ("acked_bytes", c_long),
        ("carried", c_int),
        ("carry", c_char * MARKER_BYTES_MAX),
    )


class Outcome(Structure):
    """`struct outcome`."""

    _fields_ = (
        ("seconds", c_double),
        ("cpu", c_double),
        ("lag", c_double),
        ("answer", c_ubyte * ANSWER_BYTES),
    )


class Visitor(Structure):
    """`struct visitor`."""

    _fields_ = (
        ("step", c_int),
        ("is_connected", c_int),
        ("carried", c_int),
        ("carry", c_char * MARKER_BYTES_MAX),
    )


def compile_loop() -> Path:
    """Return the compiled loop; compile it if necessary."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    library = RESULTS / f"loop-{digest}.so"
    if library.exists():
        return library
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompiler("no C compiler found; install gcc or clang, the generator's loop needs it")
    RESULTS.mkdir(exist_ok=True)
    fresh = library.with_suffix(f".{os.getpid()}")
    command = [compiler, "-O2", "-std=gnu11", "-shared", "-fPIC", str(SOURCE), "-o", str(fresh)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise NoCompiler(f"{compiler} cannot compile {SOURCE.name}:\n{made.stderr}")
    fresh.replace(library)
    return library


def load_loop() -> ctypes.CDLL:
    """Load the loop and declare its two functions."""
    loop = ctypes.CDLL(str(compile_loop()))
    loop.drive.argtypes = (
        POINTER(Lane),
        c_int,
        POINTER(Receiver),
        c_int,
        c_double,
        c_double,
        POINTER(Outcome),
    )
    loop.open_all.argtypes = (
        c_int,
        c_uint,
        c_int,
        c_int,
        c_int,
        c_int,
        POINTER(c_char_p),
        POINTER(c_int),
        POINTER(c_char_p),
        c_double,
        POINTER(Visitor),
        POINTER(c_int),
        POINTER(Outcome),
    )
    return loop
