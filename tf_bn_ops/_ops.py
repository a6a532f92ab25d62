"""The ops as Python functions, and load()."""

from tf_bn_ops._calls import load as load
from tf_bn_ops.generated.bindings import *  # noqa: F403
from tf_bn_ops.spec import Activation as Activation
