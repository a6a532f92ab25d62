"""Calls TensorFlow's C API, as programs in other languages do, and knows nothing of this library.

usage: python tensorflow_c.py TENSORFLOW FOLDER NUM_OUTPUTS NUM_INPUTS LIBRARY

FOLDER/graph.pb is a GraphDef with nodes y0, y1, ... and x0, x1, ...; writes it with the gradients
of the sum of the former by the latter to FOLDER/result.pb, and prints their names, "-" where there
is none. TENSORFLOW is the folder of its libraries; LIBRARY is loaded first, by TF_LoadLibrary.
"""

from __future__ import annotations

import ctypes
import pathlib
import sys
from typing import Any


class Pointer(ctypes.c_void_p):
    """An opaque pointer. As a result, ctypes would convert a plain c_void_p to an int."""


class Output(ctypes.Structure):
    """TF_Output."""

    _fields_ = (("operation", Pointer), ("index", ctypes.c_int))


class Buffer(ctypes.Structure):
    """TF_Buffer."""

    _fields_ = (("data", Pointer), ("length", ctypes.c_size_t))


def call(name: str, *arguments: Any, result: Any = Pointer) -> Any:
    function = getattr(tensorflow, name)
    function.restype = result
    return function(*arguments)


def checked(name: str, *arguments: Any) -> None:
    """Calls a function that has a status; ends the program where that is an error."""
    call(name, *arguments)
    if call("TF_GetCode", status, result=ctypes.c_int):
        sys.exit(call("TF_Message", status, result=ctypes.c_char_p).decode())


def outputs(letter: str, count: str) -> Any:
    names = (f"{letter}{i}".encode() for i in range(int(count)))
    return (Output * int(count))(
        *(Output(call("TF_GraphOperationByName", graph, name), 0) for name in names)
    )


libraries, folder, num_outputs, num_inputs, library = sys.argv[1:]
tensorflow = ctypes.CDLL(f"{libraries}/libtensorflow_cc.so.2")
status, graph, options = map(call, ("TF_NewStatus", "TF_NewGraph", "TF_NewImportGraphDefOptions"))
checked("TF_LoadLibrary", library.encode(), status)
text = pathlib.Path(folder, "graph.pb").read_bytes()
buffer = call("TF_NewBufferFromString", text, ctypes.c_size_t(len(text)))
checked("TF_GraphImportGraphDef", graph, buffer, options, status)
y, x = outputs("y", num_outputs), outputs("x", num_inputs)
found = (Output * len(x))()
checked("TF_AddGradients", graph, y, len(y), x, len(x), None, status, found)
for gradient in found:
    named = gradient.operation and call(
        "TF_OperationName", gradient.operation, result=ctypes.c_char_p
    )
    print(f"{named.decode()}:{gradient.index}" if named else "-")
result = Buffer.from_address(call("TF_NewBuffer").value)
checked("TF_GraphToGraphDef", graph, ctypes.byref(result), status)
content = ctypes.string_at(result.data, result.length)
pathlib.Path(folder, "result.pb").write_bytes(content)
