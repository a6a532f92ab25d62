"""The two shapes that the C++ code is built in: the objects of a folder, and a shared library."""

load("@local_tensorflow//:config.bzl", "CXXFLAGS", "HARDENING", "LDFLAGS", "TF_CXXFLAGS")
load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library")

KERNEL_COPTS = TF_CXXFLAGS + CXXFLAGS
COPTS = KERNEL_COPTS + HARDENING

def headers():
    """All of the project, wherever they stand: what may include what is seen by the folders' names."""
    return native.glob(["cc/**/*.h"])

def objects(name, srcs, exclude = [], copts = [], common = COPTS, deps = [], alwayslink = False):
    """A static library of the sources that match `srcs`.

    Args:
      name: of the target.
      srcs: patterns of sources; tests are left out.
      exclude: patterns of what else is left out.
      copts: flags besides `common`.
      common: those of mk/cxxflags.txt and mk/hardening.txt; KERNEL_COPTS: of the former alone.
      deps: other objects, and the libraries whose headers are included.
      alwayslink: whether they register themselves, so that nothing refers to them.
    """
    cc_library(
        name = name,
        srcs = native.glob(srcs, exclude = ["cc/**/*_test.cc"] + exclude) + headers(),
        copts = common + copts,
        linkstatic = True,
        deps = deps,
        alwayslink = alwayslink,
    )

def shared_library(name, of, linkopts = []):
    """The library `name` of the objects `of`, with the exports of mk/exports.map."""
    cc_binary(
        name = name,
        additional_linker_inputs = ["mk/exports.map"],
        linkopts = LDFLAGS + linkopts,
        linkshared = True,
        deps = [of],
    )
