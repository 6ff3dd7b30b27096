"""Native kernels for CPUs. They are built with the package where there is a C++ compiler, and missing otherwise."""

from aquiline.kernels.cpu.extension import is_available, level, why_not
from aquiline.kernels.cpu.packed import PackedLinear, Packing, Threads

__all__ = ["PackedLinear", "Packing", "Threads", "is_available", "level", "why_not"]
