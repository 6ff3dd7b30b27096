"""The extension module with the native kernels, if this installation has it."""

from __future__ import annotations

from types import ModuleType

from aquiline.errors import InvalidParameterError, UnsupportedFeatureError

_module: ModuleType | None = None
_reason = ""

try:
    from aquiline.kernels.cpu import _native

    _module = _native
except ImportError as error:
    if "cannot import name" in str(error):
        _reason = (
            "Aquiline was installed without its native kernels, because no C++ compiler could build them; "
            "install a compiler, then Aquiline again"
        )
    else:
        _reason = f"the native kernels of Aquiline cannot be loaded ({error}); install Aquiline again"


def is_available() -> bool:
    """Whether the native kernels can be used."""
    return _module is not None


def why_not() -> str:
    """Why `is_available` is False, on one line; empty where it is True."""
    return _reason


def native() -> ModuleType:
    """The extension module.

    Raises:
        UnsupportedFeatureError: this installation has none.
    """
    if _module is None:
        raise UnsupportedFeatureError(_reason)
    return _module


def level() -> str:
    """The instruction set that new layers use: avx512, avx2 or portable.

    Raises:
        UnsupportedFeatureError: there are no native kernels.
        InvalidParameterError: the environment variable that lowers it holds something else.
    """
    try:
        return str(native().level())
    except ValueError as error:
        raise InvalidParameterError(str(error)) from None
