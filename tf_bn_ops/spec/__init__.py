"""What the ops, their element types and layouts are: the lowest package, which needs NumPy alone.

Bindings, harness, conformance run, benchmark and tests read op names, arguments, attrs, dtypes and
layouts from here.
"""

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
    CHANNEL,
    ELEMENT,
    MODES,
    OPAQUE,
    PLACEHOLDER,
    REQUIRED,
    VIEW,
    VIEW_LIST,
    Arg,
    OpSpec,
)
from tf_bn_ops.spec.ops import (
    BATCH_NORM,
    BATCH_NORM_ADD,
    BATCH_NORM_GRAD,
    BATCH_NORM_GRAD_GRAD,
    OPS,
    of_formula,
)

__all__ = [
    "BATCH_NORM",
    "BATCH_NORM_ADD",
    "BATCH_NORM_GRAD",
    "BATCH_NORM_GRAD_GRAD",
    "CHANNEL",
    "DATA_FORMATS",
    "DTYPES",
    "ELEMENT",
    "LAYOUTS",
    "MODES",
    "OPAQUE",
    "OPS",
    "PLACEHOLDER",
    "REQUIRED",
    "VIEW",
    "VIEW_LIST",
    "Arg",
    "DType",
    "DataFormat",
    "OpSpec",
    "as_view",
    "channel_axis",
    "dtype_of",
    "of_formula",
    "view_shape",
]
