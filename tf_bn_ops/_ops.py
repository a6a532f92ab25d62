"""The ops as Python functions, and load()."""

from tf_bn_ops.generated.bindings import *  # noqa: F403
