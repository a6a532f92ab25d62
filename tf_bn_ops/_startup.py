"""What happens at the start of Python and at the imports of TensorFlow and Keras: TF_BN_OPS.

The start-up hook (tf_bn_ops.pth) imports this in every process that has the variable: nothing here
takes long to import. A process that must not trust its environment does not see the variables of
this library: they name libraries to load and switch code on, so whoever sets them runs code in it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

VARIABLE = "TF_BN_OPS"
# What it may list, by the names of the arguments of `enable`.
WORDS = ("kernels", "keras", "fuse")

# Of the auxiliary vector (getauxval): the kernel set it where the program that it started had more
# rights than its caller, also by file capabilities, of which no id tells.
_AT_SECURE = 23

# Packages whose import has ended. TensorFlow and Keras import each other: the outer import has to
# end too, and TensorFlow ignores an ImportError of Keras.
_imported: set[str] = set()


# ---- Variables -----------------------------------------------------------------------------------


def is_trusted() -> bool:
    """False in Python's isolated runs (-I, -E), and in processes with the rights of another user
    (setuid, setgid, capabilities), in which the dynamic loader ignores LD_LIBRARY_PATH for the
    same reason."""
    if sys.flags.ignore_environment:
        return False
    if (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid()):
        return False
    return not _auxiliary(_AT_SECURE)


def _auxiliary(kind: int) -> int:
    """What the kernel told the program about itself; 0 where the C library cannot say."""
    getauxval = getattr(ctypes.CDLL(None), "getauxval", None)
    if getauxval is None:
        return 0
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return int(getauxval(kind))


def variable(name: str) -> str:
    """The value of a variable, "" where it is not set or not to be trusted."""
    value = os.environ.get(name, "")
    return value if value and is_trusted() else ""


def requested() -> dict[str, bool]:
    """The arguments of `enable` that TF_BN_OPS asks for; empty where it asks for nothing.

    Raises:
      ValueError: with a sentence, for a word that it does not know.
    """
    value = variable(VARIABLE)
    words = [word for word in value.lower().replace(",", " ").split() if word]
    if words in ([], ["0"], ["false"]):
        return {}
    if words in (["1"], ["true"]):
        words = list(WORDS)
    if unknown := [word for word in words if word not in WORDS]:
        raise ValueError(
            f"{VARIABLE}={value} has the word {unknown[0]!r}: set it to 1 for everything, to 0 for "
            f"nothing, or to a list of {', '.join(WORDS[:-1])} and {WORDS[-1]}, separated by commas"
        )
    return {word: word in words for word in WORDS}


# ---- The switch ----------------------------------------------------------------------------------


def follow_environment() -> None:
    """Enables what TF_BN_OPS lists as soon as the package that it concerns has been imported."""
    if variable(VARIABLE).lower() not in ("", "0", "false"):
        for package in ("tensorflow", "keras", "tf_keras"):
            call_after_import(package, functools.partial(_enable_after, package))
    if target := variable("TF_BN_OPS_REPORT"):
        from tf_bn_ops import _report  # It imports json.

        _report.start(target)


def _enable_after(package: str) -> None:
    """What is left to do at the end of the import of `package`."""
    from tf_bn_ops import _enable, _loader  # Not above: every process with the variable is here.

    try:
        wanted = requested()
    except ValueError as error:
        raise _loader.LibraryError(str(error)) from None
    if package == "tf_keras":
        if wanted["keras"] and not wanted["kernels"]:
            _enable.log_refusal(
                f"{VARIABLE}=keras does nothing for tf_keras, whose layers call TensorFlow's fused "
                f"ops: {VARIABLE}=kernels puts these on this library's kernels"
            )
        return
    _imported.add(package)
    is_tensorflow = package == "tensorflow"
    is_keras_ready = "keras" in _imported and (
        "tensorflow" in _imported or "tensorflow" not in sys.modules
    )
    try:
        _enable.enable(
            kernels=wanted["kernels"] and is_tensorflow,
            keras=wanted["keras"] and is_keras_ready,
            fuse=wanted["fuse"] and is_tensorflow,
        )
    except BaseException:
        # Python takes back the package whose import ends here. The other one would stay, and the
        # modules of Keras' API, which `from keras.layers import ...` finds without it.
        for name in list(sys.modules):
            if name == "tensorflow" or (
                name.split(".")[0] == "keras" and name.split(".")[1:2] != ["src"]
            ):
                del sys.modules[name]
        raise


# ---- The end of an import ------------------------------------------------------------------------


def call_after_import(package: str, action: Callable[[], object]) -> None:
    """Calls `action` now if the package has been imported, else at the end of its import.

    An import at whose end `action` raises fails; the next one calls `action` again.
    """
    if hasattr(sys.modules.get(package), "__version__"):
        action()
    else:
        sys.meta_path.insert(0, _AfterImport(package, action))


class _AfterImport:
    """A finder that finds nothing itself; adds a call to the end of a package's import.

    It stays in sys.meta_path: an import that has failed may be tried again, and a spec may be asked
    for without an import, as TensorFlow does. Not derived from importlib.abc.MetaPathFinder, whose
    module imports tempfile and random.
    """

    def __init__(self, package: str, action: Callable[[], object]) -> None:
        self._package = package
        self._action = action
        self._asking_others = False

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if fullname != self._package or self._asking_others or fullname in sys.modules:
            return None
        self._asking_others = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking_others = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: Any) -> None:
                execute(module)
                self._action()

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
