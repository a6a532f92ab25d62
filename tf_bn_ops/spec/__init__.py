"""What the ops, their element types and layouts are: the lowest package, which needs NumPy alone.

Bindings, harness, conformance run, benchmark and tests read op names, arguments, attrs, dtypes and
layouts from here.
"""

from tf_bn_ops.spec import ops as ops
from tf_bn_ops.spec.activations import ACTIVATION_MODES as ACTIVATION_MODES
from tf_bn_ops.spec.activations import ACTIVATIONS as ACTIVATIONS
from tf_bn_ops.spec.activations import CLAMPS as CLAMPS
from tf_bn_ops.spec.activations import LEAKYRELU_ALPHA as LEAKYRELU_ALPHA
from tf_bn_ops.spec.activations import SMOOTH_ACTIVATIONS as SMOOTH_ACTIVATIONS
from tf_bn_ops.spec.activations import activation_of as activation_of
from tf_bn_ops.spec.dtypes import DTYPES as DTYPES
from tf_bn_ops.spec.dtypes import DType as DType
from tf_bn_ops.spec.dtypes import dtype_of as dtype_of
from tf_bn_ops.spec.layouts import DATA_FORMATS as DATA_FORMATS
from tf_bn_ops.spec.layouts import LAYOUTS as LAYOUTS
from tf_bn_ops.spec.layouts import DataFormat as DataFormat
from tf_bn_ops.spec.layouts import as_view as as_view
from tf_bn_ops.spec.layouts import channel_axis as channel_axis
from tf_bn_ops.spec.layouts import view_shape as view_shape
from tf_bn_ops.spec.op_spec import ATTRS as ATTRS
from tf_bn_ops.spec.op_spec import BY_OP as BY_OP
from tf_bn_ops.spec.op_spec import CHANNEL as CHANNEL
from tf_bn_ops.spec.op_spec import COUNT as COUNT
from tf_bn_ops.spec.op_spec import ELEMENT as ELEMENT
from tf_bn_ops.spec.op_spec import LIST_LENGTHS as LIST_LENGTHS
from tf_bn_ops.spec.op_spec import MODES as MODES
from tf_bn_ops.spec.op_spec import OPAQUE as OPAQUE
from tf_bn_ops.spec.op_spec import PLACEHOLDER as PLACEHOLDER
from tf_bn_ops.spec.op_spec import REQUIRED as REQUIRED
from tf_bn_ops.spec.op_spec import VIEW as VIEW
from tf_bn_ops.spec.op_spec import VIEW_LIST as VIEW_LIST
from tf_bn_ops.spec.op_spec import WIDE as WIDE
from tf_bn_ops.spec.op_spec import Arg as Arg
from tf_bn_ops.spec.op_spec import OpSpec as OpSpec
from tf_bn_ops.spec.ops import OPS as OPS
from tf_bn_ops.spec.ops import of_formula as of_formula
