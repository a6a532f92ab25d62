"""Tells the build about the TensorFlow of the Python that runs this file.

    python tools/tf_env.py key BUILD_DIR   -> prints a key of this environment, without importing
                                              TensorFlow (it runs at the start of every make), and
                                              keeps BUILD_DIR/KEY/environment.txt up to date
    python tools/tf_env.py config FILE     -> asks tf.sysconfig and writes FILE, a make fragment
    python tools/tf_env.py bazel FILE      -> the same facts as constants of a .bzl file
    python tools/tf_env.py folder          -> prints the folder of the tensorflow package
    python tools/tf_env.py dist            -> prints "NAME VERSION" of the installed TensorFlow;
                                              exit status 3 if there is none

Every problem is one sentence that says what to do; for `key` it goes to stdout after "error: ",
since that is what make's $(shell) hands on. Uses the standard library alone, and no syntax newer
than Python 3.6, so that an old Python still gets the sentence.
"""

import hashlib
import importlib.util
import json
import os
import platform
import re
import runpy
import shlex
import sys
import typing

OLDEST_PYTHON = (3, 10)
VERSIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tf_bn_ops/_version.py")
TENSORFLOWS = sorted(
    tuple(map(int, name.split("."))) for name in runpy.run_path(VERSIONS)["TENSORFLOWS"]
)
# Set to 1, it lets a build begin with one that is newer than all that were tried.
UNTRIED_VARIABLE = "TF_BN_OPS_UNTRIED"


class Problem(Exception):
    """One sentence for the user."""

    status = 1


class NoTensorFlow(Problem):
    """Told from the others by the exit status: there is none, rather than a wrong one."""

    status = 3


def supported_versions() -> str:
    return "%d.%d to %d.%d" % (TENSORFLOWS[0] + TENSORFLOWS[-1])


def check_python() -> None:
    if sys.version_info < OLDEST_PYTHON:
        raise Problem(
            "Python %s (%s) is too old: tf_bn_ops needs Python %d.%d or later; name one with "
            "make PYTHON=/path/to/python"
            % ((sys.version.split()[0], sys.executable) + OLDEST_PYTHON)
        )


def check_machine() -> None:
    wanted, machine = os.environ.get("ARCH", ""), platform.machine()
    if wanted and wanted != machine:
        raise Problem(
            "%s is a Python of %s, but ARCH is %s: leave out PYTHON, or ARCH"
            % (sys.executable, machine, wanted)
        )


def check_version(version: str) -> None:
    match = re.match(r"(\d+)\.(\d+)", version)
    minor = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    if TENSORFLOWS[0] <= minor <= TENSORFLOWS[-1]:
        return
    newer = minor > TENSORFLOWS[-1]
    if newer and os.environ.get(UNTRIED_VARIABLE) == "1":
        return
    also = ", or try yours with %s=1" % UNTRIED_VARIABLE if newer else ""
    raise Problem(
        "TensorFlow %s of %s is not supported: tf_bn_ops builds with TensorFlow %s; install "
        "one of these there, or run plain 'make', which gets a fitting one into .venv%s"
        % (version, sys.executable, supported_versions(), also)
    )


def tensorflow_folder() -> str:
    """The folder of the tensorflow package, found without importing it."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.origin:
        raise NoTensorFlow(
            "no TensorFlow in %s: install TensorFlow %s there, or run plain 'make', which gets "
            "one into .venv" % (sys.executable, supported_versions())
        )
    return os.path.dirname(os.path.abspath(spec.origin))


def distribution(folder: str) -> typing.Optional[typing.Tuple[str, str, str]]:
    """(name, version, metadata folder) of the distribution that owns `folder`, or None.

    Read from the folders beside it: importlib.metadata would have to read every RECORD of the
    environment, and this runs at the start of each make.
    """
    parent = os.path.dirname(folder)
    for entry in sorted(os.listdir(parent)):
        match = re.match(r"((?:tensorflow|tf)[^-]*)-([^-]+)\.dist-info$", entry, re.IGNORECASE)
        if match is None:
            continue
        record = os.path.join(parent, entry, "RECORD")
        try:
            with open(record, encoding="utf-8") as file:
                owns = "tensorflow/__init__.py," in file.read()
        except OSError:
            owns = False
        if owns:
            return match.group(1).replace("_", "-"), match.group(2), os.path.join(parent, entry)
    return None


def environment() -> typing.Tuple[str, str]:
    """(key, text that changes whenever the flags could) of this Python's TensorFlow."""
    check_python()
    check_machine()
    folder = tensorflow_folder()
    found = distribution(folder)
    name, version = found[:2] if found else ("tensorflow", "unknown")
    if found:
        check_version(version)
    python = "cp%d%d" % sys.version_info[:2]
    library = os.path.join(folder, "libtensorflow_framework.so.2")
    stamp = "%d" % os.stat(library).st_mtime if os.path.exists(library) else "none"
    identity = "\n".join([python, name, version, folder, stamp, ""])
    digest = hashlib.sha256(os.path.realpath(folder).encode()).hexdigest()[:6]
    return "%s-tf%s-%s" % (python, version, digest), identity


def write_if_changed(path: str, text: str) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    except OSError:
        pass
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


# Where headers of XLA's that TensorFlow ships look for other projects' headers.
XLA_INCLUDES = ("external/highwayhash", "external/farmhash_archive/src")
# The wheels have what an XLA kernel that calls C++ needs since TensorFlow 2.20.
XLA_HEADERS = ("tensorflow/compiler/tf2xla/xla_op_kernel.h", "xla/ffi/api/ffi.h")


def xla_includes(folder: str, include: str) -> typing.List[str]:
    """Include folders that XLA kernels need beside TensorFlow's; [] where it cannot hold any."""
    needed = [os.path.join(include, name) for name in XLA_INCLUDES + XLA_HEADERS]
    needed.append(os.path.join(folder, "libtensorflow_cc.so.2"))
    if not all(map(os.path.exists, needed)):
        return []
    return [os.path.join(include, name) for name in XLA_INCLUDES]


def facts() -> typing.Dict[str, typing.Any]:
    """What tf.sysconfig says, split into what each kind of source needs."""
    check_python()
    folder = tensorflow_folder()
    # TensorFlow logs to the file descriptor while it loads, whatever its log level.
    real_stderr = os.dup(2)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    try:
        import tensorflow as tf

        version = tf.__version__
        compile_flags = tf.sysconfig.get_compile_flags()
        link_flags = tf.sysconfig.get_link_flags()
    except Exception as error:
        raise Problem(
            "TensorFlow in %s cannot be imported (%s: %s): repair it (try '%s -c \"import "
            "tensorflow\"'), or run plain 'make', which gets one into .venv"
            % (sys.executable, type(error).__name__, str(error).split("\n")[0], sys.executable)
        )
    finally:
        os.dup2(real_stderr, 2)
    check_version(version)
    found = distribution(folder)
    include = [flag[2:] for flag in compile_flags if flag.startswith("-I")]
    return {
        "version": version,
        "distribution": found[0] if found else "tensorflow",
        "folder": folder,
        "include": include,
        "xla_include": xla_includes(folder, include[0]),
        "cxxflags": [flag for flag in compile_flags if not flag.startswith("-I")],
        "ldflags": link_flags,
        "python": sys.executable,
    }


def write_config(path: str) -> None:
    """The make fragment; values are quoted for the shell, and `$` for make."""

    def quote(flags: typing.Iterable[str]) -> str:
        return " ".join(shlex.quote(flag) for flag in flags).replace("$", "$$")

    about = facts()
    lines = [
        "# Written by tools/tf_env.py from tf.sysconfig of %s." % about["python"],
        "TF_VERSION := %s" % about["version"],
        "TF_DISTRIBUTION := %s" % about["distribution"],
        # -isystem: warnings of TensorFlow's headers are not ours to fix.
        "TF_INCLUDES := %s"
        % quote(flag for path in about["include"] for flag in ("-isystem", path)),
        "XLA_INCLUDES := %s"
        % quote(flag for path in about["xla_include"] for flag in ("-isystem", path)),
        "TF_CXXFLAGS := %s" % quote(about["cxxflags"]),
        # Its headers name themselves in messages: the same bytes wherever TensorFlow lies.
        "TF_PREFIX_MAP := %s"
        % quote("-fmacro-prefix-map=%s=tensorflow/include" % path for path in about["include"]),
        "TF_LDFLAGS := %s" % quote(about["ldflags"]),
        "",
    ]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))


def write_bazel(path: str) -> None:
    """Constants for bazel/tensorflow.bzl; JSON's strings and lists are Starlark's too."""
    about = facts()
    lines = ["# Written by tools/tf_env.py from tf.sysconfig of %s." % about["python"]]
    for name in ("version", "distribution", "cxxflags"):
        lines.append("TF_%s = %s" % (name.upper(), json.dumps(about[name])))
    xla = [os.path.relpath(path, about["include"][0]) for path in about["xla_include"]]
    lines.append("XLA_INCLUDES = %s" % json.dumps(xla))
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def main(arguments: typing.List[str]) -> int:
    command = arguments[0] if arguments else ""
    if {"key": 2, "config": 2, "bazel": 2, "folder": 1, "dist": 1}.get(command) != len(arguments):
        usage = "tf_env.py key BUILD_DIR | config FILE | bazel FILE | folder | dist"
        print("error: usage: " + usage, file=sys.stderr)
        return 2
    try:
        if command == "key":
            key, identity = environment()
            write_if_changed(os.path.join(arguments[1], key, "environment.txt"), identity)
            print(key)
        elif command == "config":
            write_config(arguments[1])
        elif command == "bazel":
            write_bazel(arguments[1])
        elif command == "folder":
            print(tensorflow_folder())
        else:
            folder = tensorflow_folder()
            found = distribution(folder)
            if found is None:
                raise Problem("TensorFlow in %s was not installed as a package" % folder)
            check_version(found[1])
            print(found[0], found[1])
    except Problem as problem:
        if command == "key":
            print("error: %s" % problem)
        else:
            print("error: %s." % problem, file=sys.stderr)
        return problem.status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
