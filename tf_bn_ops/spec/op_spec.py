"""OpSpec: what an op is. Code that works for every op speaks in the roles of its arguments.

A *role* is what an argument means in batch normalization, next to the name that its op gives to it:
`reserve_space_1` of FusedBatchNormGradV3 has the role "mean". Its *kind* says which shape it has.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from tf_bn_ops.spec.activations import ACTIVATIONS
from tf_bn_ops.spec.dtypes import DTYPES

# How an op is called: with the statistics of the batch, or with statistics that are constants.
MODES = ("training", "frozen")

# Stands for the default of an attr that has none.
REQUIRED = object()

# The attr that is the length of a VIEW_LIST among the outputs.
NUM_SIDE_INPUTS = "num_side_inputs"

# The attrs that are lengths of lists of inputs: derived from them, and no arguments.
LIST_LENGTHS = frozenset({NUM_SIDE_INPUTS, "num_y"})

# Kinds of arguments.
VIEW = "view"  # The shape of x, which is seen as [outer, channels, inner].
VIEW_LIST = "view_list"  # A list of tensors of the shape of x, with at most one element.
CHANNEL = "channel"  # [channels]
WIDE = "wide"  # [channels] of float64, whatever the type of other per-channel tensors.
COUNT = "count"  # A scalar of float64.
OPAQUE = "opaque"  # Any shape; what it holds is between two ops, or is not read.
PLACEHOLDER = "placeholder"  # An output of shape [0].
ROW = "row"  # [replicas] of float64.
ROWS = "rows"  # [replicas, channels] of float64.

# Stands for the element type in OpSpec.statistics_dtypes.
ELEMENT = "T"


@dataclasses.dataclass(frozen=True)
class Arg:
    """An input or output: its name in the op, its role in the family, its kind (VIEW, ...), its
    documentation, and its type in the OpDef where that does not follow from the kind."""

    name: str
    role: str
    kind: str
    doc: str = ""
    op_def_type: str = ""


def args(text: str) -> tuple[Arg, ...]:
    """Arguments, each "name kind: documentation" with further lines indented; "name=role" where it
    has another role than its name, its type in the OpDef behind the kind."""
    found = []
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(text).strip()):
        head, _, doc = entry.partition(": ")
        name, kind, *op_def_type = head.split()
        name, _, role = name.partition("=")
        found.append(Arg(name, role or name, kind, " ".join(doc.split()), *op_def_type))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Attr:
    """An attr: its type in the OpDef (BY_OP: the values that OpSpec names), in Python and in C++,
    and its documentation."""

    op_def_type: str
    python_type: str
    cpp_type: str
    doc: str


BY_OP = ""
_LENGTH = ("int >= 0", "int", "int")
# All attrs but the types T and U, in the order of the OpDefs.
ATTRS: Mapping[str, Attr] = {
    "epsilon": Attr("float", "float", "float", "Added to the variance; a number, not a tensor."),
    "epsilon_rest": Attr(
        "list(float)",
        "list[float]",
        "std::vector<float>",
        "Added to epsilon, in double: what float cannot hold of it.",
    ),
    "exponential_avg_factor": Attr(
        "float",
        "float",
        "float",
        "In training, the weight f of this batch in the running statistics.",
    ),
    "num_y": Attr(*_LENGTH, "How many y there are, 0 or 1."),
    NUM_SIDE_INPUTS: Attr(*_LENGTH, "How many side inputs the forward op has, 0 or 1."),
    "activation_mode": Attr(BY_OP, "ActivationMode", "std::string", "The activation."),
    "leakyrelu_alpha": Attr("float", "float", "float", "Of LeakyRelu, the slope below 0."),
    "data_format": Attr(
        BY_OP,
        "DataFormat",
        "std::string",
        "Whether channels are the last dimension (NHWC, NDHWC) or dimension 1 (NCHW, NCDHW).",
    ),
    "is_training": Attr(
        "bool",
        "bool",
        "bool",
        "Whether mean and variance are functions of x (training) or constants (frozen).",
    ),
    "bessel_correction": Attr(
        "bool",
        "bool",
        "bool",
        "Whether batch_variance in training has the factor M/max(M - 1, 1), as in TensorFlow's"
        " ops, or not, as in Keras.",
    ),
    "axis": Attr(
        "int", "int", "int", "The dimension of the channels of x; from the end if negative."
    ),
}


@dataclasses.dataclass(frozen=True, eq=False)
class OpSpec:
    """One op.

    Attributes:
      name: the Python name; `tf_bn_ops.raw_ops` and `tf.raw_ops` have it.
      registered_name: the name in TensorFlow's op registry.
      builtin: the op of TensorFlow that it equals, or None.
      formula: the name of the formula model that knows its right answer, error bound and inputs
        (tf_bn_ops/conformance/models/formula_models.py).
      inputs, outputs: in the order of the OpDef.
      attrs: attr name -> default, without types; REQUIRED where there is none.
      epsilon_dtype: the type that epsilon has in the kernel.
      dtypes: allowed values of the element type T.
      statistics_dtypes: allowed types of scale, mean, variance and their gradients; ELEMENT: T.
      layouts: those that it takes; values of the attr data_format where it has one. An op may take
        more ranks.
      activations: values of the attr activation_mode where it has one.
      min_channels: number of channels below which it raises an error.
      xla_calls_kernel: on a CPU, XLA calls this library's kernel; otherwise it composes the op of
        operations of its own, and results may differ bitwise.
      summary: the first sentence of its documentation.
      description: the rest of it, but what it says of arguments and attrs.
      derived_attrs: attrs of the OpDef that are no arguments.
      extra_statistics_dtypes: those that the OpDef allows and no kernel takes.
      shape_function: the C++ function that infers shapes, TensorFlow's or one of
        cc/tf/ops/shape_functions.h; empty: shapes follow from the kinds of the arguments.
    """

    name: str
    registered_name: str
    builtin: str | None
    formula: str
    inputs: tuple[Arg, ...]
    outputs: tuple[Arg, ...]
    attrs: Mapping[str, Any]
    epsilon_dtype: str
    dtypes: tuple[str, ...]
    statistics_dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    min_channels: int = 0
    xla_calls_kernel: bool = True
    summary: str = ""
    description: str = ""
    derived_attrs: tuple[str, ...] = ()
    extra_statistics_dtypes: tuple[str, ...] = ()
    shape_function: str = ""
    activations: tuple[str, ...] = tuple(ACTIVATIONS)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its name: REQUIRED has an identity, and the table is in every process."""
        from tf_bn_ops.spec import ops

        return ops.named, (self.name,)

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Values that its attrs of the type BY_OP may have."""
        choices = {"data_format": self.layouts, "activation_mode": self.activations}
        return {name: values for name, values in choices.items() if name in self.attrs}

    def type_of(self, arg: Arg, dtype: str, statistics_dtype: str) -> str:
        """The type of an argument in a call with an element type and one of its statistics types;
        the type of an OPAQUE one means nothing."""
        if arg.kind in (WIDE, COUNT, ROW, ROWS):
            return "float64"
        return dtype if arg.kind in (VIEW, VIEW_LIST) else statistics_dtype

    @property
    def modes(self) -> tuple[str, ...]:
        """The MODES that it has; without a choice it is always training."""
        return MODES if "is_training" in self.attrs else MODES[:1]

    def statistics_choices(self, dtype: str) -> tuple[str, ...]:
        """The statistics types that go with the element type `dtype`: none is narrower."""
        names = [dtype if name == ELEMENT else name for name in self.statistics_dtypes]
        narrowest = DTYPES[dtype].unit_roundoff
        kept = [name for name in names if DTYPES[name].unit_roundoff <= narrowest]
        return tuple(dict.fromkeys(kept))

    def outputs_with(self, attrs: Mapping[str, Any]) -> tuple[Arg, ...]:
        """The outputs of a call with these attrs; a list counts where it has an element."""
        has_elements = {**self.attrs, **attrs}.get(NUM_SIDE_INPUTS, 0)
        return tuple(a for a in self.outputs if a.kind != VIEW_LIST or has_elements)
