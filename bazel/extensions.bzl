"""For Bazel 7 and later (MODULE.bazel): the repository that WORKSPACE sets up for older ones."""

load(":tensorflow.bzl", "tensorflow_configure")

def _tensorflow_impl(_module_ctx):
    tensorflow_configure(name = "local_tensorflow")

tensorflow = module_extension(implementation = _tensorflow_impl)
