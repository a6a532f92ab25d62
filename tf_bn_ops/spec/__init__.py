"""What the ops, their element types and layouts are: the lowest package, which needs NumPy alone.

Bindings, harness, conformance run, benchmark and tests read op names, arguments, attrs, dtypes and
layouts from here.
"""

from tf_bn_ops.spec import ops
from tf_bn_ops.spec.dtypes import DTYPES, DType, dtype_of
from tf_bn_ops.spec.layouts import (
    DATA_FORMATS,
    LAYOUTS,
    DataFormat,
    as_view,
    channel_axis,
    view_shape,
)
from tf_bn_ops.spec.op_spec import (
    ACTIVATIONS,
    ATTRS,
    BY_OP,
    CHANNEL,
    COUNT,
    ELEMENT,
    LIST_LENGTHS,
    MODES,
    OPAQUE,
    PLACEHOLDER,
    REQUIRED,
    SMOOTH_ACTIVATIONS,
    VIEW,
    VIEW_LIST,
    WIDE,
    Activation,
    Arg,
    OpSpec,
)
from tf_bn_ops.spec.ops import OPS, of_formula

__all__ = [
    "ACTIVATIONS",
    "ATTRS",
    "BY_OP",
    "CHANNEL",
    "COUNT",
    "DATA_FORMATS",
    "DTYPES",
    "ELEMENT",
    "LAYOUTS",
    "LIST_LENGTHS",
    "MODES",
    "OPAQUE",
    "OPS",
    "PLACEHOLDER",
    "REQUIRED",
    "SMOOTH_ACTIVATIONS",
    "VIEW",
    "VIEW_LIST",
    "WIDE",
    "Activation",
    "Arg",
    "DType",
    "DataFormat",
    "OpSpec",
    "as_view",
    "channel_axis",
    "dtype_of",
    "of_formula",
    "ops",
    "view_shape",
]
