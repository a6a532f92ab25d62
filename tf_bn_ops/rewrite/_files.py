"""Rewriting SavedModel folders, GraphDef and .meta files, through TensorFlow's file systems."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

# Message -> a new one, and how many nodes were rewritten.
Transform = Callable[[Any], tuple[Any, int]]

_FINGERPRINT = "fingerprint.pb"  # Beside saved_model.pb: a hash of it.


def rewrite(source: str, target: str, transform: Transform) -> int:
    """Copies a SavedModel, GraphDef or MetaGraphDef, rewritten; returns how many nodes were.

    Raises:
      OSError, ValueError: with one sentence for the user.
    """
    from tensorflow.python.lib.io import file_io

    if file_io.file_exists_v2(target) or os.path.islink(target):  # A link to nothing, too.
        _check_exists(source)
        raise FileExistsError(f"{target} exists: name a new place, nothing is overwritten")
    message, model_file = _read_any(source)
    if model_file is not None:
        return _rewrite_saved_model(
            source.rstrip("/"), target.rstrip("/"), message, model_file, transform
        )
    _check_file_name(target, message)
    message, count = transform(message)
    if folder := os.path.dirname(target):
        file_io.recursive_create_dir_v2(folder)
    with _whole(target) as path:
        _write(path, message)
    return count


def _check_file_name(target: str, message: Any) -> None:
    """Refuses a name under which the file would be read as something else."""
    kind, is_meta = type(message).__name__, target.endswith(".meta")
    if not os.path.basename(target):
        raise ValueError(f"{target!r} names no file: give OUT the name of a {kind}'s file")
    if is_meta != (kind == "MetaGraphDef") and not target.endswith(".pbtxt"):
        read_as, end = ("MetaGraphDef", "do not end") if is_meta else ("GraphDef", "end")
        raise ValueError(
            f"{target} would be read as a {read_as}, and IN holds a {kind}: {end} OUT in .meta"
        )


def read(source: str) -> Any:
    """The SavedModel, GraphDef or MetaGraphDef at a path.

    Raises:
      OSError, ValueError: with one sentence for the user.
    """
    return _read_any(source)[0]


def _check_exists(source: str) -> None:
    from tensorflow.python.lib.io import file_io

    if not file_io.file_exists_v2(source):
        raise FileNotFoundError(f"{source} does not exist")


def _read_any(source: str) -> tuple[Any, str | None]:
    """The message at a path; of a SavedModel also the name of its file."""
    from tensorflow.core.framework import graph_pb2
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
    from tensorflow.python.lib.io import file_io

    _check_exists(source)
    if file_io.is_directory_v2(source):
        model_file = _model_file(source)
        return _read(os.path.join(source, model_file), saved_model_pb2.SavedModel), model_file
    kinds = [graph_pb2.GraphDef, meta_graph_pb2.MetaGraphDef]
    if not source.endswith(".pbtxt"):  # Bytes of one may parse as the other; text does not.
        kinds = kinds[1:] if source.endswith(".meta") else kinds[:1]
    return _read(source, *kinds), None


def _model_file(source: str) -> str:
    """The name of the file in a SavedModel that holds its graphs."""
    from tensorflow.python.lib.io import file_io
    from tensorflow.python.saved_model import constants

    for model_file in (constants.SAVED_MODEL_FILENAME_PB, constants.SAVED_MODEL_FILENAME_PBTXT):
        if file_io.file_exists_v2(os.path.join(source, model_file)):
            return str(model_file)
    if file_io.file_exists_v2(os.path.join(source, "saved_model.cpb")):
        raise ValueError(
            f"{source} holds a SavedModel in chunks (saved_model.cpb), which cannot be "
            "rewritten: save it without experimental_image_format"
        )
    raise ValueError(f"{source} is no SavedModel: it has no saved_model.pb or saved_model.pbtxt")


def _place(path: str) -> str:
    """A folder in one spelling, of those that a local one has; it ends with a separator."""
    local = path if "://" in path else os.path.realpath(path)
    return os.path.join(local, "")


def _rewrite_saved_model(
    source: str, target: str, saved_model: Any, model_file: str, transform: Transform
) -> int:
    from tensorflow.python.lib.io import file_io
    from tensorflow.python.saved_model import fingerprinting_utils

    if not target:
        raise ValueError("OUT is empty: name a new folder")
    if _place(target).startswith(_place(source)):
        raise ValueError(f"{target} lies in {source}: name a place outside of it")
    message, count = transform(saved_model)
    skipped = {model_file, _FINGERPRINT}
    with _whole(target) as folder:
        for place, _, files in file_io.walk_v2(source):
            relative = os.path.relpath(place, source)
            copy = folder if relative == "." else os.path.join(folder, relative)
            file_io.recursive_create_dir_v2(copy)
            for file in files:
                if relative != "." or file not in skipped:
                    file_io.copy_v2(os.path.join(place, file), os.path.join(copy, file))
        _write(os.path.join(folder, model_file), message)
        if file_io.file_exists_v2(os.path.join(source, _FINGERPRINT)):
            fingerprinting_utils.write_fingerprint(folder)
    return count


@contextlib.contextmanager
def _whole(target: str) -> Iterator[str]:
    """A path to write to in the place of `target`, which is there once all is written: what fails
    or is interrupted leaves nothing that stands in the way of the next try.

    A folder of other file systems cannot be renamed in one step: it is written where it belongs,
    and what fails removes it.
    """
    from tensorflow.python.lib.io import file_io

    folder, name = os.path.split(target)
    partial = os.path.join(folder, f"partial-{uuid.uuid4().hex}-{name}")
    path = target if "://" in target else partial
    try:
        yield path
        if path != target:
            file_io.rename_v2(path, target)
    except BaseException:
        if file_io.is_directory_v2(path):
            file_io.delete_recursively_v2(path)
        elif file_io.file_exists_v2(path):
            file_io.delete_file_v2(path)
        raise


def _read(path: str, *message_types: Any) -> Any:
    """The message in the file, of the first of the types that fits."""
    from google.protobuf import message as protobuf_message
    from google.protobuf import text_format
    from tensorflow.python.lib.io import file_io

    data = file_io.read_file_to_string(path, binary_mode=True)
    if not data:  # Which would parse, as a graph of no nodes.
        raise ValueError(f"{path} is empty")
    for message_type in message_types:
        message = message_type()
        try:
            if path.endswith(".pbtxt"):
                text_format.Parse(data, message)
            else:
                message.ParseFromString(data)
            return message
        except (protobuf_message.DecodeError, text_format.ParseError, UnicodeDecodeError):
            continue
    kinds = " or ".join(message_type.__name__ for message_type in message_types)
    raise ValueError(f"{path} does not hold a {kinds}")


def _write(path: str, message: Any) -> None:
    from google.protobuf import text_format
    from tensorflow.python.lib.io import file_io

    # Deterministic, so that the same graph gives the same file.
    data = (
        text_format.MessageToString(message)
        if path.endswith(".pbtxt")
        else message.SerializeToString(deterministic=True)
    )
    file_io.write_string_to_file(path, data)
