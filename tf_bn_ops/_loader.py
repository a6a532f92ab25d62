"""What is installed, whether it fits together, and how the ops are loaded.

`installation()` is one value that says what there is: folders, libraries, how they were built,
which TensorFlow. Nothing here imports TensorFlow before `load()` is called, but for a package for
several TensorFlows where no metadata tells which one is installed. Every failure is a
`LibraryError` of one sentence: the versions involved and what to do.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib.util
import json
import pathlib
import platform
import re
import struct
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tf_bn_ops import _environment
from tf_bn_ops._version import __version__

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
_MAKE = "'make PYTHON=/path/to/this/python' in the source tree"
_UPGRADE = "'pip install --upgrade tf-bn-ops'"
REBUILD = (
    f"rebuild it with {_MAKE}, or reinstall it with 'pip install --force-reinstall --no-deps .'"
)
_BUILD = "build it with 'make' in the source tree, or install the package with 'pip install .'"
_PACKAGE = pathlib.Path(__file__).resolve().parent
# The libraries for one minor version of TensorFlow, in a package that was built for several.
_OF_MINOR = re.compile(r"lib_tf(\d+\.\d+)")
_METADATA = re.compile(r"([^-]+)-([^-]+)\.dist-info")
# How TensorFlow's distributions are called in most places.
_USUAL_NAME = re.compile("tensorflow|tf_", re.IGNORECASE)
_OWNS_TENSORFLOW = re.compile(r"^tensorflow/__init__\.py,", re.MULTILINE)
# Where an ELF file says what machine it is for, and the names of those that we build for.
_E_MACHINE = 0x12
_MACHINES = {b"\x3e\x00": "x86_64", b"\xb7\x00": "aarch64"}
_xla_kernels_loaded = False
# The versions of Keras whose layers are replaced: from the first that has
# BatchNormalization._moments, below the next major one.
_KERAS = ("3.0.2", "4.0.0")


class LibraryError(ImportError):
    """The library is missing, or does not fit this environment."""


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", minor(version))]


def check_keras(keras: ModuleType) -> None:
    """Refuses a Keras whose layers this library cannot replace."""
    version = str(getattr(keras, "__version__", "of no version"))
    oldest, below = ([int(part) for part in bound.split(".")] for bound in _KERAS)
    if not oldest <= [int(part) for part in re.findall(r"\d+", version)[:3]] < below:
        raise LibraryError(
            f"the layers of Keras {version} cannot be replaced, only those of Keras {_KERAS[0]} "
            f"and later, below {_KERAS[1]}: install one with pip install "
            f"'keras>={_KERAS[0]},<{_KERAS[1]}'"
        )


# ---- This installation ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TensorFlow:
    """The TensorFlow of this Python.

    Attributes:
      version: as it says itself, or its metadata does.
      folder: of its package.
      owner: the distribution that it was installed by, such as tensorflow-cpu; "" if there is none.
    """

    version: str
    folder: pathlib.Path
    owner: str


@dataclasses.dataclass(frozen=True)
class Installation:
    """What this Python has of the library and of TensorFlow.

    Attributes:
      version: of the Python files.
      package: their folder.
      chosen: what TF_BN_OPS_LIBRARY names, "" without it.
      minors: the versions of TensorFlow that the package has libraries for, oldest first; empty if
        it was built for one, whose libraries are in lib/.
      folder: of the libraries: those for this TensorFlow, or where TF_BN_OPS_LIBRARY points.
      op_library: the one that holds the ops; like all files here, it may be missing.
      tensorflow: None where there is none, or nothing tells its version.
      build: what the libraries were built from (build_info.json): versions, compiler, flags, ISA
        builds; `xla` says whether there are kernels for jit_compile=True, `cuda` is None or a dict
        of the CUDA version, the architectures (archs) and the one whose PTX later devices compile
        (ptx). Empty if that cannot be read.
      build_error: why not, and what to do.
    """

    version: str
    package: pathlib.Path
    chosen: str
    minors: tuple[str, ...]
    folder: pathlib.Path
    op_library: pathlib.Path
    tensorflow: TensorFlow | None
    build: dict[str, Any]
    build_error: str

    def path(self, name: str) -> str:
        """The path of a library, the core library in a package for several TensorFlows.

        Raises:
          LibraryError: there is no such file.
        """
        path = self.op_library if name == OP_LIBRARY else self.folder / name
        shared = self.package / "lib" / name
        if not path.is_file() and self.folder.parent == self.package and shared.is_file():
            return str(shared)
        if self.chosen and not path.is_file():
            existing(self.op_library)  # What the variable names, if that is missing too.
        return existing(path, self.op_library)

    def check_version(self, version: str) -> None:
        """Refuses libraries that were built for another minor version than this TensorFlow's."""
        built_for = str(self.build["tensorflow_version"])
        sources = self._sources_build_with(version)
        if self.minors and not self.chosen and minor(version) not in self.minors:
            also = {
                "yes": f", or build the package for yours with {_MAKE}",
                "newer": f", or a newer tf_bn_ops, if there is one ({_UPGRADE})",
                "older": "",
            }[sources]
            raise LibraryError(
                f"this package has libraries for TensorFlow {', '.join(self.minors)}, but this is "
                f"TensorFlow {version}: install one of these{also}"
            )
        if minor(version) != minor(built_for):
            own = f"install TensorFlow {minor(built_for)}"
            remedy = {
                "yes": f"{REBUILD}, or {own}",
                "newer": f"{own}, or build a newer tf_bn_ops, if there is one; this one builds for "
                "yours, untried, with 'TF_BN_OPS_UNTRIED=1 make PYTHON=/path/to/this/python'",
                "older": f"{own}: tf_bn_ops does not build with one as old as yours",
            }[sources]
            raise LibraryError(
                f"{self.op_library} was built for TensorFlow {built_for}, but this is TensorFlow "
                f"{version}: {remedy}"
            )

    def _sources_build_with(self, version: str) -> str:
        """ "older" or "newer" if the sources of this build refuse such a TensorFlow, else "yes"."""
        oldest, newest = self.build.get("builds_with", [version, version])
        if _number(version) < _number(oldest):
            return "older"
        return "newer" if _number(version) > _number(newest) else "yes"

    def check_cxx11_abi(self, version: str, flag: int) -> None:
        """Refuses libraries whose std::string is another than this TensorFlow's."""
        built_with = self.build.get("cxx11_abi")
        if built_with is not None and int(built_with) != int(flag):
            raise LibraryError(
                f"{self.op_library} was built with _GLIBCXX_USE_CXX11_ABI={built_with}, but "
                f"TensorFlow {version} uses {int(flag)}: {REBUILD}"
            )

    def install_tensorflow(self) -> str:
        """What to do where the TensorFlow that the libraries were built for is missing or broken;
        empty where nothing says which one that is."""
        if not self.build:
            return "install the version that the libraries are built for with pip"
        name = self.build.get("tensorflow_distribution", "tensorflow-cpu")
        version = minor(str(self.build["tensorflow_version"]))
        return f"install or repair it with 'pip install --force-reinstall {name}=={version}.*'"


def installation() -> Installation:
    """What this Python has; made once, and once more when TensorFlow has been imported."""
    return _installation(_environment.variable(LIBRARY_VARIABLE), _imported_version())


@functools.cache
def _installation(chosen: str, imported_version: str) -> Installation:
    several = {}
    for path in _PACKAGE.glob("lib_tf*"):
        if found := _OF_MINOR.fullmatch(path.name):
            several[found[1]] = path
    minors = tuple(sorted(several, key=_number))
    tensorflow = _find_tensorflow(imported_version)
    if chosen:
        op_library = _chosen_library(chosen)
    elif not minors or (_PACKAGE / "lib" / OP_LIBRARY).is_file():
        op_library = _PACKAGE / "lib" / OP_LIBRARY
    else:
        version = tensorflow.version if tensorflow else _version_by_import()
        # Where none fits, the newest says so: check_version.
        op_library = several.get(minor(version), several[minors[-1]]) / OP_LIBRARY
    build, build_error = _read_build(op_library)
    return Installation(
        __version__, _PACKAGE, chosen, minors, op_library.parent, op_library, tensorflow, build,
        build_error,
    )  # fmt: skip


def _chosen_library(chosen: str) -> pathlib.Path:
    """The op library that LIBRARY_VARIABLE names, or the one in the folder that it names."""
    try:
        path = pathlib.Path(chosen).expanduser().absolute()
        return path / OP_LIBRARY if path.is_dir() else path
    except (OSError, RuntimeError) as error:  # Too long, or of an unknown user.
        raise LibraryError(
            f"{LIBRARY_VARIABLE} must be the path of a {OP_LIBRARY} or of the folder that holds "
            f"one, not {chosen[:80]!r} ({one_line(error)})"
        ) from error


def _imported_version() -> str:
    return str(getattr(sys.modules.get("tensorflow"), "__version__", ""))


def _find_tensorflow(imported_version: str) -> TensorFlow | None:
    """Looks for the distribution that owns the package (tensorflow, tensorflow-cpu, a vendor's), or
    the module that has been imported; without importing it."""
    try:
        spec = importlib.util.find_spec("tensorflow")
    except ValueError:  # A stand-in without a spec.
        return None
    if spec is None or not spec.origin:
        return None
    folder = pathlib.Path(spec.origin).parent
    usual_first = lambda path: (not _USUAL_NAME.search(path.name), path.name)  # noqa: E731
    for metadata in sorted(folder.parent.glob("*.dist-info"), key=usual_first):
        found = _METADATA.fullmatch(metadata.name)
        try:
            if found and _OWNS_TENSORFLOW.search(
                (metadata / "RECORD").read_text("utf-8", "replace")
            ):
                name = found[1].replace("_", "-")
                return TensorFlow(imported_version or found[2], folder, name)
        except OSError:
            continue
    return TensorFlow(imported_version, folder, "") if imported_version else None


def _version_by_import() -> str:
    """The version of a TensorFlow that no installer has put there."""
    try:
        import tensorflow as tf
    except ImportError:
        return ""
    return str(getattr(tf, "__version__", ""))


def _read_build(op_library: pathlib.Path) -> tuple[dict[str, Any], str]:
    path = op_library.parent / BUILD_INFO
    try:
        existing(op_library)
        info = json.loads(pathlib.Path(existing(path, op_library)).read_text(encoding="utf-8"))
        if not isinstance(info, dict) or "tensorflow_version" not in info:
            raise ValueError("it names no tensorflow_version")
        oldest, newest = info.get("builds_with", ["", ""])
        if not (isinstance(oldest, str) and isinstance(newest, str)):
            raise TypeError("builds_with must be two versions")
        if not isinstance(info.get("cxx11_abi"), (int, type(None))):
            raise TypeError("cxx11_abi must be a number")
        return info, ""
    except LibraryError as error:
        return {}, str(error)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        return {}, f"{path} cannot be read ({error}): {REBUILD}"


def existing(path: pathlib.Path, beside: pathlib.Path | None = None) -> str:
    """`path` as text, if there is such a file; otherwise a LibraryError that says what to do.
    `beside`: the op library that needs it, if that has another name than usual."""
    if path.is_file():
        return str(path)
    beside = beside or path.with_name(OP_LIBRARY)
    if beside.is_file():
        raise LibraryError(
            f"{path} does not exist, and {beside.name}, which lies there, needs it: copy it there, "
            f"too, from where {beside.name} was copied from"
        )
    if _environment.variable(LIBRARY_VARIABLE):
        raise LibraryError(
            f"{path} does not exist: set {LIBRARY_VARIABLE} to a {OP_LIBRARY} or the folder that "
            "holds one, or unset it to use the package's own"
        )
    raise LibraryError(f"{path} does not exist: {_BUILD}")


def build_info() -> dict[str, Any]:
    """What the libraries were built from: `Installation.build`.

    Raises:
      LibraryError: (an ImportError) if build_info.json is missing or cannot be read.
    """
    found = installation()
    if not found.build:
        raise LibraryError(found.build_error)
    return found.build


def library_path() -> str:
    """Path of the op library, for a bare `tf.load_op_library`; `load` does more, see there.

    Where TensorFlow has been imported, the gradients of the ops, which are Python functions, are
    registered, as `load` does.

    Returns:
      The absolute path of libtf_bn_ops.so: the package's own, or the one that the environment
      variable TF_BN_OPS_LIBRARY names (a file, or a folder that holds it).

    Raises:
      LibraryError: (an ImportError) if there is no such file.
    """
    path = installation().path(OP_LIBRARY)
    if hasattr(sys.modules.get("tensorflow"), "RegisterGradient"):
        from tf_bn_ops import _gradients

        _gradients.register()
    return path


def core_library_path() -> str:
    """Path of the library without TensorFlow (the plain C ABI), for `ctypes`.

    Raises:
      LibraryError: (an ImportError) if there is no such file.
    """
    shared = _PACKAGE / "lib" / CORE_LIBRARY
    # Nobody asks which TensorFlow there is, which may take an import, for what fits all of them.
    if shared.is_file() and not _environment.variable(LIBRARY_VARIABLE):
        return str(shared)
    return installation().path(CORE_LIBRARY)


def get_include() -> str:
    """The folder of the C++ headers, for a compiler's -I, as `tf.sysconfig.get_include()`.

    Raises:
      LibraryError: (an ImportError) if the headers are not there.
    """
    folder = _PACKAGE / "include"
    if not (folder / "tf_bn_ops" / "ops.h").is_file():
        raise LibraryError(f"{folder} holds no tf_bn_ops/ops.h: {_BUILD}")
    return str(folder)


def get_lib() -> str:
    """The folder of the libraries, for a linker's -L, as `tf.sysconfig.get_lib()`.

    It holds libtf_bn_ops_client.so, which C++ programs link (-ltf_bn_ops_client), and
    libtf_bn_ops.so, which the client library loads.

    Raises:
      LibraryError: (an ImportError) if the client library is not there.
    """
    return str(pathlib.Path(installation().path(CLIENT_LIBRARY)).parent)


def cxx_flags() -> list[str]:
    """What g++ needs behind the sources of a program that includes tf_bn_ops/ops.h.

    Flags of TensorFlow and of this library, to compile and to link:

        g++ norm.cc -o norm $(python -c "import tf_bn_ops; print(*tf_bn_ops.cxx_flags())")

    TensorFlow's headers are system headers, about which g++ does not warn by the thousand.

    Raises:
      LibraryError: (an ImportError) if headers or libraries are not there.
    """
    import tensorflow as tf

    def linked(folder: str, *libraries: str) -> list[str]:
        return [f"-L{folder}", f"-Wl,-rpath,{folder}", *(f"-l{library}" for library in libraries)]

    names = [flag.removeprefix("-l") for flag in tf.sysconfig.get_link_flags() if flag[:2] == "-l"]
    return [
        *(flag for flag in tf.sysconfig.get_compile_flags() if flag[:2] != "-I"),
        *("-isystem", tf.sysconfig.get_include(), f"-I{get_include()}"),
        *linked(get_lib(), "tf_bn_ops_client"),
        # tensorflow::Scope and its ops are in the second one.
        *linked(tf.sysconfig.get_lib(), *names, ":libtensorflow_cc.so.2"),
    ]


# ---- Loading -------------------------------------------------------------------------------------


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


def _check_fits(path: str) -> Any:
    """Returns the module tensorflow, or refuses a library that was built for another one."""
    built_for = build_info()["tensorflow_version"]
    try:
        import tensorflow as tf
    except ImportError as error:
        raise LibraryError(
            f"tf_bn_ops was built for TensorFlow {built_for}, and TensorFlow cannot be imported "
            f"here ({one_line(error)}): {installation().install_tensorflow()}"
        ) from error
    found = installation()
    found.check_version(tf.__version__)
    found.check_cxx11_abi(tf.__version__, tf.sysconfig.CXX11_ABI_FLAG)
    check_whole(path)
    check_whole(core_library_path())  # Which it links.
    return tf


def _load_with(load_library: Callable[[str], Any], path: str, tf: Any) -> Any:
    try:
        return load_library(path)
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        raise LibraryError(
            f"{path} (built for TensorFlow {build_info()['tensorflow_version']}) cannot be loaded "
            f"by TensorFlow {tf.__version__}: {one_line(error)}: {REBUILD}"
        ) from error


@functools.cache
def _wrappers(path: str) -> ModuleType:
    tf = _check_fits(path)
    module: ModuleType = _load_with(tf.load_op_library, path, tf)
    if not hasattr(module, "tf_bn_ops_fused_batch_norm_grad"):
        module = _wrappers_of_another_copy(path)
    _load_xla_kernels(installation().folder / XLA_LIBRARY, tf)
    return module


def _wrappers_of_another_copy(path: str) -> ModuleType:
    """The wrappers where another copy of the library, or the same by another path, has registered
    the ops before: TensorFlow lists them for that one alone."""
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.framework import _pywrap_python_op_gen, op_def_registry

    from tf_bn_ops.spec import OPS

    ops = [op_def_registry.get(f"TfBnOps>{name}") for name in [*OPS, "BatchNormGatherStats"]]
    if None in ops:
        raise LibraryError(
            f"another version of {OP_LIBRARY} than {path} has registered its ops in this process: "
            "load one of them alone"
        )
    wrappers = _pywrap_python_op_gen.GetPythonWrappers(
        op_def_pb2.OpList(op=ops).SerializeToString()
    )
    module = ModuleType("tf_bn_ops_wrappers")
    exec(wrappers, module.__dict__)
    module._IS_TENSORFLOW_PLUGIN = True  # type: ignore[attr-defined]  # For AutoGraph.
    return module


def _load_xla_kernels(path: pathlib.Path, tf: Any) -> None:
    """Loads the kernels for jit_compile=True where they were built: milliseconds.

    They are not needed for anything else, so a failure is a warning.
    """
    from tensorflow.python.framework import kernels

    global _xla_kernels_loaded
    if not path.is_file():
        return
    registered = kernels.get_registered_kernels_for_op("TfBnOps>FusedBatchNormGrad").kernel
    try:
        if not any(kernel.device_type == "XLA_CPU_JIT" for kernel in registered):
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


def wrappers() -> ModuleType:
    """Loads the op library, and nothing more, once for each path that TF_BN_OPS_LIBRARY names.

    No lock is held: at the end of TensorFlow's import TF_BN_OPS may call this again, and another
    thread at any time. TensorFlow loads a path once.

    Raises:
      LibraryError: (an ImportError) as from `load`.
    """
    return _wrappers(installation().path(OP_LIBRARY))


@functools.cache
def load() -> ModuleType:
    """Loads the op library and registers the gradients of its ops, once per process.

    The functions of this package do it on their first call. Call it yourself before importing a
    graph or SavedModel that holds the ops.

    Returns:
      The module of generated wrappers, as `tf.load_op_library` returns it.

    Raises:
      LibraryError: (an ImportError) if the library is missing, was built for another minor
        version of TensorFlow or another C++ ABI, or cannot be loaded.
    """
    module = wrappers()
    from tf_bn_ops import _gradients  # It imports TensorFlow.

    _gradients.register()
    return module


@functools.cache
def optimizer() -> ctypes.CDLL:
    """The C ABI of libtf_bn_ops_optimizer.so, cc/tf/optimizer/optimizer_c.h, loaded after the ops:
    the graph optimizer that fuses batch normalization with what follows it. Loading it registers it
    under the name TfBnOpsFusion and changes nothing.

    Raises:
      LibraryError: (an ImportError) it, or the op library, is missing or does not fit.
    """
    load()
    path = installation().path(OPTIMIZER_LIBRARY)
    load_kernels(path)
    result = ctypes.CDLL(path)
    try:
        result.tfbn_fuse_graph.argtypes = [
            ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p,
            ctypes.c_void_p,
        ]  # fmt: skip
        result.tfbn_free.argtypes = [ctypes.c_void_p]
        result.tfbn_free.restype = None
        result.tfbn_enable_graph_fusion.argtypes = [ctypes.c_int]
    except AttributeError as error:
        raise LibraryError(f"{path} is another library than its name says ({error})") from error
    return result
