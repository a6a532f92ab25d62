"""Finds the built libraries, checks that they fit this TensorFlow, and loads the ops.

Nothing here imports TensorFlow before `load()` is called. Every failure is a `LibraryError` of one
sentence: the versions involved and what to do.
"""

from __future__ import annotations

import functools
import json
import pathlib
import platform
import struct
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tf_bn_ops import _environment, _installed

LIBRARY_VARIABLE = "TF_BN_OPS_LIBRARY"
OP_LIBRARY = "libtf_bn_ops.so"
CORE_LIBRARY = "libtf_bn_ops_core.so"
OVERRIDE_LIBRARY = "libtf_bn_ops_override.so"
OPTIMIZER_LIBRARY = "libtf_bn_ops_optimizer.so"
CLIENT_LIBRARY = "libtf_bn_ops_client.so"
# What every build has beside the op library.
COMPANIONS = (CORE_LIBRARY, OVERRIDE_LIBRARY, OPTIMIZER_LIBRARY, CLIENT_LIBRARY)
XLA_LIBRARY = "libtf_bn_ops_xla.so"
BUILD_INFO = "build_info.json"

# Ends the sentence of most errors.
REBUILD = (
    "rebuild it with 'make PYTHON=/path/to/this/python' in the source tree, or reinstall it with "
    "'pip install --force-reinstall --no-deps .'"
)
_PACKAGE = pathlib.Path(__file__).resolve().parent
# Where an ELF file says what machine it is for, and the names of those that we build for.
_E_MACHINE = 0x12
_MACHINES = {b"\x3e\x00": "x86_64", b"\xb7\x00": "aarch64"}
_load_lock = threading.Lock()
_xla_kernels_loaded = False


class LibraryError(ImportError):
    """The library is missing, or does not fit this environment."""


def folders_by_minor() -> dict[str, pathlib.Path]:
    """Minor version of TensorFlow -> folder of its libraries, oldest first, in a package that was
    built for several; empty in one that was built for one, which has them in lib/."""
    found = {path.name.removeprefix("lib_tf"): path for path in _PACKAGE.glob("lib_tf*.*")}
    return dict(sorted(found.items(), key=lambda item: _number(item[0])))


def library_folder() -> pathlib.Path:
    """The folder of the libraries: the package's own for this TensorFlow, or the one that
    TF_BN_OPS_LIBRARY names."""
    chosen = _environment.variable(LIBRARY_VARIABLE)
    if chosen:
        path = pathlib.Path(chosen).expanduser().absolute()
        return path if path.is_dir() else path.parent
    several = folders_by_minor()
    if not several or (_PACKAGE / "lib" / OP_LIBRARY).is_file():
        return _PACKAGE / "lib"
    minor = ".".join(_minor(_installed.tensorflow_version() or ""))
    # Where none fits, the newest says so: check_version.
    return several.get(minor, next(reversed(several.values())))


def existing(path: pathlib.Path) -> str:
    """`path` as text, if there is such a file; otherwise a LibraryError that says what to do."""
    if path.is_file():
        return str(path)
    if _environment.variable(LIBRARY_VARIABLE):
        raise LibraryError(
            f"{path} does not exist: set {LIBRARY_VARIABLE} to a {OP_LIBRARY} or the folder that "
            "holds one, or unset it to use the package's own"
        )
    raise LibraryError(
        f"{path} does not exist: build it with 'make' in the source tree, or install the package "
        "with 'pip install .'"
    )


def library_path() -> str:
    """Path of the op library, for a bare `tf.load_op_library`.

    Returns:
      The absolute path of libtf_bn_ops.so: the package's own, or the one that the environment
      variable TF_BN_OPS_LIBRARY names (a file, or a folder that holds it).

    Raises:
      LibraryError: (an ImportError) if there is no such file.
    """
    chosen = _environment.variable(LIBRARY_VARIABLE)
    if chosen:
        path = pathlib.Path(chosen).expanduser().absolute()
        return existing(path / OP_LIBRARY if path.is_dir() else path)
    return existing(library_folder() / OP_LIBRARY)


def core_library_path() -> str:
    """Path of the library without TensorFlow (the plain C ABI), for `ctypes`.

    Raises:
      LibraryError: (an ImportError) if there is no such file.
    """
    return companion_path(CORE_LIBRARY)


def companion_path(name: str) -> str:
    """Path of a library of COMPANIONS; a package for several TensorFlows has the core once.

    Raises:
      LibraryError: (an ImportError) if there is no such file.
    """
    shared = _PACKAGE / "lib" / name
    # Nobody asks which TensorFlow there is, which may take an import, for what fits all of them.
    if shared.is_file() and not _environment.variable(LIBRARY_VARIABLE):
        return str(shared)
    path = library_folder() / name
    if path.parent.parent == _PACKAGE and not path.is_file() and shared.is_file():
        return str(shared)
    return existing(path)


def get_include() -> str:
    """The folder of the C++ headers, for a compiler's -I, as `tf.sysconfig.get_include()`.

    Raises:
      LibraryError: (an ImportError) if the headers are not there.
    """
    folder = _PACKAGE / "include"
    if not (folder / "tf_bn_ops" / "ops.h").is_file():
        raise LibraryError(
            f"{folder} holds no tf_bn_ops/ops.h: build it with 'make' in the source tree, or "
            "install the package with 'pip install .'"
        )
    return str(folder)


def get_lib() -> str:
    """The folder of the libraries, for a linker's -L, as `tf.sysconfig.get_lib()`.

    It holds libtf_bn_ops_client.so, which C++ programs link (-ltf_bn_ops_client), and
    libtf_bn_ops.so, which the client library loads.

    Raises:
      LibraryError: (an ImportError) if the client library is not there.
    """
    return str(pathlib.Path(existing(library_folder() / CLIENT_LIBRARY)).parent)


def build_info() -> dict[str, Any]:
    """What the libraries were built from: versions, compiler, flags, ISA builds.

    `xla` says whether there are kernels for jit_compile=True, `cuda` is None or a dict of the CUDA
    version, the architectures (archs) and the one whose PTX later devices compile (ptx).

    Raises:
      LibraryError: (an ImportError) if build_info.json is missing or cannot be read.
    """
    path = existing(library_folder() / BUILD_INFO)
    try:
        info = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        if not isinstance(info, dict) or "tensorflow_version" not in info:
            raise ValueError("it names no tensorflow_version")
    except (OSError, ValueError) as error:
        raise LibraryError(f"{path} cannot be read ({error}): {REBUILD}") from error
    return info


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _number(version: str) -> list[int]:
    return [int(part) for part in _minor(version)]


def install_tensorflow() -> str:
    """What to do where the TensorFlow that the libraries were built for is missing or broken."""
    info = build_info()
    name = info.get("tensorflow_distribution", "tensorflow-cpu")
    minor = ".".join(_minor(str(info["tensorflow_version"])))
    return f"install or repair it with 'pip install --force-reinstall {name}=={minor}.*'"


def _import_tensorflow(built_for: str) -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise LibraryError(
            f"tf_bn_ops was built for TensorFlow {built_for}, and TensorFlow cannot be imported "
            f"here ({_one_line(error)}): {install_tensorflow()}"
        ) from error
    return tf


def check_whole(path: str) -> None:
    """Refuses a file of another machine, which the dynamic loader calls by many names, and one that
    ends too early, over which it would kill the process."""
    data = pathlib.Path(path).read_bytes()
    if data[:5] != b"\x7fELF\x02":
        raise LibraryError(f"{path} is no 64-bit shared library: {REBUILD}")
    built_for = _MACHINES.get(data[_E_MACHINE : _E_MACHINE + 2])
    if built_for not in (None, platform.machine()):
        raise LibraryError(
            f"{path} was built for {built_for}, but this machine is {platform.machine()}: {REBUILD}"
        )
    try:
        # e_phoff, e_shoff; e_phentsize, e_phnum, e_shentsize, e_shnum; the table of sections is
        # the last thing in the file.
        segments, sections = struct.unpack_from("<QQ", data, 0x20)
        size, count, section_size, section_count = struct.unpack_from("<HHHH", data, 0x36)
        end = sections + section_size * section_count
        for header in range(segments, segments + size * count, size):
            offset, length = struct.unpack_from("<8xQ16xQ", data, header)
            end = max(end, offset + length)
    except struct.error:
        end = len(data) + 1
    if end > len(data):
        raise LibraryError(f"{path} is cut off after {len(data)} bytes: {REBUILD}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def override_library_path() -> str:
    """Path of the library that replaces TensorFlow's own kernels in the process that loads it.

    Raises:
      LibraryError: (an ImportError) if there is no such file.
    """
    return companion_path(OVERRIDE_LIBRARY)


def optimizer_library_path() -> str:
    """Path of the library that fuses graphs.

    Raises:
      LibraryError: (an ImportError) if there is no such file.
    """
    return companion_path(OPTIMIZER_LIBRARY)


def _sources_build_with(version: str) -> str:
    """ "older" or "newer" if the sources of this build refuse such a TensorFlow, else "yes"."""
    oldest, newest = build_info().get("builds_with", [version, version])
    if _number(version) < _number(oldest):
        return "older"
    return "newer" if _number(version) > _number(newest) else "yes"


def _other_remedy(version: str) -> str:
    """What helps beside a TensorFlow that a package of several has."""
    make = "'make PYTHON=/path/to/this/python' in the source tree"
    return {
        "yes": f", or build the package for yours with {make}",
        "newer": ", or a newer tf_bn_ops, if there is one ('pip install --upgrade tf-bn-ops')",
        "older": "",
    }[_sources_build_with(version)]


def _remedy(version: str, built_for: str) -> str:
    """What helps where a package has libraries for one other TensorFlow alone."""
    own = f"install TensorFlow {'.'.join(_minor(built_for))}"
    return {
        "yes": f"{REBUILD}, or {own}",
        "newer": f"{own}, or build a newer tf_bn_ops, if there is one; this one builds for yours, "
        "untried, with 'TF_BN_OPS_UNTRIED=1 make PYTHON=/path/to/this/python'",
        "older": f"{own}: tf_bn_ops does not build with one as old as yours",
    }[_sources_build_with(version)]


def check_version(path: str, version: str) -> None:
    """Refuses a library that was built for another minor version than this TensorFlow's."""
    built_for = str(build_info()["tensorflow_version"])
    several = list(folders_by_minor())
    if several and library_folder().parent == _PACKAGE and ".".join(_minor(version)) not in several:
        raise LibraryError(
            f"this package has libraries for TensorFlow {', '.join(several)}, but this is "
            f"TensorFlow {version}: install one of these{_other_remedy(version)}"
        )
    if _minor(version) != _minor(built_for):
        raise LibraryError(
            f"{path} was built for TensorFlow {built_for}, but this is TensorFlow {version}: "
            f"{_remedy(version, built_for)}"
        )


def check_cxx11_abi(path: str, version: str, flag: int) -> None:
    """Refuses a library whose std::string is another than that of this TensorFlow."""
    built_with = build_info().get("cxx11_abi")
    if built_with is not None and int(built_with) != int(flag):
        raise LibraryError(
            f"{path} was built with _GLIBCXX_USE_CXX11_ABI={built_with}, but TensorFlow {version} "
            f"uses {int(flag)}: {REBUILD}"
        )


def _check_fits(path: str) -> Any:
    """Returns the module tensorflow, or refuses a library that was built for another one."""
    tf = _import_tensorflow(str(build_info()["tensorflow_version"]))
    check_version(path, tf.__version__)
    check_cxx11_abi(path, tf.__version__, tf.sysconfig.CXX11_ABI_FLAG)
    check_whole(path)
    check_whole(companion_path(CORE_LIBRARY))  # Which it links.
    return tf


def _load_with(load_library: Callable[[str], Any], path: str, tf: Any) -> Any:
    try:
        return load_library(path)
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        raise LibraryError(
            f"{path} (built for TensorFlow {build_info()['tensorflow_version']}) cannot be loaded "
            f"by TensorFlow {tf.__version__}: {_one_line(error)}: {REBUILD}"
        ) from error


@functools.cache
def _load(path: str) -> ModuleType:
    tf = _check_fits(path)
    module: ModuleType = _load_with(tf.load_op_library, path, tf)
    _load_xla_kernels(library_folder() / XLA_LIBRARY, tf)
    return module


def _load_xla_kernels(path: pathlib.Path, tf: Any) -> None:
    """Loads the kernels for jit_compile=True where they were built: milliseconds.

    They are not needed for anything else, so a failure is a warning.
    """
    global _xla_kernels_loaded
    if not path.is_file():
        return
    try:
        check_whole(str(path))
        _load_with(tf.load_library, str(path), tf)
        _xla_kernels_loaded = True
    except LibraryError as error:
        warnings.warn(f"jit_compile=True will not find the ops: {error}", stacklevel=2)


def has_xla_kernels() -> bool:
    """Whether the ops, once loaded, can be compiled by XLA."""
    return _xla_kernels_loaded


def load_kernels(path: str) -> None:
    """Loads a library that holds kernels only, after the checks that `load` makes.

    Raises:
      LibraryError: (an ImportError) as from `load`.
    """
    tf = _check_fits(path)
    _load_with(tf.load_library, path, tf)


def load() -> ModuleType:
    """Loads the op library into TensorFlow, once per process.

    Returns:
      The module of generated wrappers, as `tf.load_op_library` gives it.

    Raises:
      LibraryError: (an ImportError) if the library is missing, was built for another minor
        version of TensorFlow or another C++ ABI, or cannot be loaded.
    """
    with _load_lock:
        return _load(library_path())
