"""Calls TensorFlow's C API, as programs in other languages do, and knows nothing of this library.

usage: python tensorflow_c.py gradients TENSORFLOW FOLDER NUM_OUTPUTS NUM_INPUTS [LIBRARY]
       python tensorflow_c.py serve TENSORFLOW FOLDER INPUT OUTPUT N,H,W,C [LIBRARY]

gradients: FOLDER/graph.pb is a GraphDef with nodes y0, y1, ... and x0, x1, ...; writes it with the
gradients of the sum of the former by the latter to FOLDER/result.pb, and prints their names, "-"
where there is none. serve: loads a SavedModel and runs it once on float32 values from stdin; INPUT
and OUTPUT are tensors of the signature ("name:0"). TENSORFLOW is the folder of its libraries;
LIBRARY is loaded first, by TF_LoadLibrary.
"""

from __future__ import annotations

import array
import ctypes
import pathlib
import sys
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t
from typing import Any


class Pointer(ctypes.c_void_p):
    """An opaque pointer. As a result, ctypes would convert a plain c_void_p to an int."""


class Output(ctypes.Structure):
    """TF_Output."""

    _fields_ = (("operation", Pointer), ("index", c_int))


class Buffer(ctypes.Structure):
    """TF_Buffer."""

    _fields_ = (("data", Pointer), ("length", c_size_t))


_FLOAT = 1  # TF_FLOAT
_library = ctypes.CDLL(f"{sys.argv[2]}/libtensorflow_cc.so.2")


def call(name: str, *arguments: Any, result: Any = Pointer) -> Any:
    function = getattr(_library, name)
    function.restype = result
    return function(*arguments)


_status = call("TF_NewStatus")


def checked(name: str, *arguments: Any, result: Any = None) -> Any:
    """The result of a function that has a status; ends the program where that is an error."""
    returned = call(name, *arguments, result=result)
    if call("TF_GetCode", _status, result=c_int):
        sys.exit(call("TF_Message", _status, result=c_char_p).decode())
    return returned


def find(graph: Pointer, tensor: str) -> Output:
    name, _, index = tensor.partition(":")
    return Output(call("TF_GraphOperationByName", graph, name.encode()), int(index or 0))


def gradients(folder: str, num_outputs: str, num_inputs: str) -> None:
    text = pathlib.Path(folder, "graph.pb").read_bytes()
    graph, options = call("TF_NewGraph"), call("TF_NewImportGraphDefOptions")
    buffer = call("TF_NewBufferFromString", text, c_size_t(len(text)))
    checked("TF_GraphImportGraphDef", graph, buffer, options, _status)
    y, x = (
        (Output * int(count))(*(find(graph, f"{letter}{i}") for i in range(int(count))))
        for letter, count in (("y", num_outputs), ("x", num_inputs))
    )
    found = (Output * len(x))()
    checked("TF_AddGradients", graph, y, len(y), x, len(x), None, _status, found)
    for gradient in found:
        name = gradient.operation and call("TF_OperationName", gradient.operation, result=c_char_p)
        print(f"{name.decode()}:{gradient.index}" if name else "-")
    result = Buffer.from_address(call("TF_NewBuffer").value)
    checked("TF_GraphToGraphDef", graph, byref(result), _status)
    content = ctypes.string_at(result.data, result.length)
    pathlib.Path(folder, "result.pb").write_bytes(content)


def serve(folder: str, input_: str, output: str, shape: str) -> None:
    graph, tags = call("TF_NewGraph"), (c_char_p * 1)(b"serve")
    options = call("TF_NewSessionOptions")
    model = (options, None, folder.encode(), tags, 1, graph, None, _status)
    session = checked("TF_LoadSessionFromSavedModel", *model, result=Pointer)
    dims = [*map(int, shape.split(","))]
    given = sys.stdin.buffer.read()
    sizes = (c_int64 * len(dims))(*dims), len(dims), c_size_t(len(given))
    x = call("TF_AllocateTensor", _FLOAT, *sizes)
    ctypes.memmove(call("TF_TensorData", x), given, len(given))
    fed, fetched = (Output * 1)(find(graph, input_)), (Output * 1)(find(graph, output))
    result = (Pointer * 1)()
    run = (fed, (Pointer * 1)(x), 1, fetched, result, 1, None, 0, None, _status)
    checked("TF_SessionRun", session, None, *run)
    size = call("TF_TensorByteSize", result[0], result=c_size_t)
    print(*array.array("f", ctypes.string_at(call("TF_TensorData", result[0]), size)))


if __name__ == "__main__":
    program, _, *words = sys.argv[1:]
    needed = {"gradients": 3, "serve": 4}[program]
    if words[needed:]:
        checked("TF_LoadLibrary", words[needed].encode(), _status, result=Pointer)
    {"gradients": gradients, "serve": serve}[program](*words[:needed])
