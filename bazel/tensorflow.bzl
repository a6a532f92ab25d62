"""Repository rule: the installed TensorFlow as Bazel targets, and the project's flags.

Asks the Python that TF_PYTHON names (else python3) through tools/tf_env.py, as the Makefile does,
and reads the same lists of flags and of ISA builds.

Targets: @local_tensorflow//:tensorflow (headers and libtensorflow_framework),
@local_tensorflow//:tensorflow_cc (also tensorflow::Scope and its ops), @local_tensorflow//:xla (also
what XLA kernels include, where the wheel has it) and @local_tensorflow//:eigen (the wheel's Eigen alone). Constants: @local_tensorflow//:config.bzl.
"""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")
load(":config.bzl", "XLA_INCLUDES")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "tensorflow",
    srcs = ["libtensorflow_framework.so.2"],
    hdrs = glob(["include/**"]),
    includes = ["include"],
)

cc_library(
    name = "tensorflow_cc",
    srcs = ["libtensorflow_cc.so.2"],
    deps = [":tensorflow"],
)

cc_library(
    name = "xla",
    includes = ["include/" + folder for folder in XLA_INCLUDES],
    deps = [":tensorflow_cc"],
)

cc_library(
    name = "eigen",
    hdrs = glob(["eigen/**"]),
    includes = ["eigen"],
)
"""

def _run(repository_ctx, command, what):
    result = repository_ctx.execute(command)
    if result.return_code != 0:
        fail("%s failed: %s" % (what, (result.stderr or result.stdout).strip()))
    return result.stdout

def _tensorflow_configure_impl(repository_ctx):
    name = repository_ctx.os.environ.get("TF_PYTHON", "python3")
    python = name if "/" in name else repository_ctx.which(name)
    if not python:
        fail("no %s found: set TF_PYTHON to the path of a Python that has TensorFlow" % name)

    script = str(repository_ctx.path(Label("//:tools/tf_env.py")))
    list_flags = str(repository_ctx.path(Label("//:tools/list_flags.sh")))
    lists = {
        "CXXFLAGS": ("flags", Label("//:mk/cxxflags.txt")),
        "HARDENING": ("flags", Label("//:mk/hardening.txt")),
        "LDFLAGS": ("flags", Label("//:mk/ldflags.txt")),
        "ISA_BUILDS": ("isa", Label("//:cc/cpu/isa/isa_builds.txt")),
    }

    what = "asking TF_PYTHON=%s for its TensorFlow" % python
    folder = _run(repository_ctx, [python, script, "folder"], what).strip()
    _run(repository_ctx, [python, script, "bazel", "tf.bzl"], what)
    config = [repository_ctx.read("tf.bzl"), "TF_PYTHON = %s\n" % repr(str(python))]
    for constant in sorted(lists):
        kind, label = lists[constant]
        output = _run(repository_ctx, [list_flags, kind, str(repository_ctx.path(label))], list_flags)
        words = [word for line in output.split("\n") for word in line.split(" ") if word]
        if kind == "isa":
            words = [(word.split("|")[0], word.split("|")[1], word.split("|")[2:]) for word in words]
        config.append("%s = %s\n" % (constant, repr(words)))
    version = repository_ctx.read(Label("//:tf_bn_ops/_version.py")).split("__version__ = \"")[1]
    config.append("VERSION = %s\n" % repr(version.split("\"")[0]))
    repository_ctx.file("config.bzl", "".join(config))

    repository_ctx.symlink(folder + "/include", "include")
    for library in ["libtensorflow_framework.so.2", "libtensorflow_cc.so.2"]:
        repository_ctx.symlink(folder + "/" + library, library)
    for part in ["Eigen", "unsupported"]:
        repository_ctx.symlink(folder + "/include/" + part, "eigen/" + part)
    repository_ctx.file("BUILD", _BUILD)

tensorflow_configure = repository_rule(
    implementation = _tensorflow_configure_impl,
    configure = True,
    environ = ["TF_PYTHON", "PATH"],
    local = True,
)
