"""The command `bn_grad_block`: starts the C++ program of this name.

Python's part is to tell the dynamic loader where this environment's TensorFlow is. The program is
cc/tools/bn_grad_block.cc.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

from tf_bn_ops import _loader


def _program() -> pathlib.Path:
    """In bin/, or beside the libraries of the TensorFlow that is here."""
    beside = _loader.library_folder() / "bn_grad_block"
    return (
        beside
        if beside.is_file()
        else pathlib.Path(__file__).resolve().parent / "bin" / beside.name
    )


def main() -> int:
    """Replaces this process by the program; returns 1 if it cannot."""
    program = _program()
    tensorflow = importlib.util.find_spec("tensorflow")
    if not program.is_file():
        problem = (
            f"{program} does not exist: build it with 'make' in the source tree, or install the "
            "package with 'pip install .'"
        )
    elif tensorflow is None or tensorflow.origin is None:
        problem = f"no TensorFlow in {sys.executable}: install one there"
    else:
        folders = [os.path.dirname(tensorflow.origin), os.environ.get("LD_LIBRARY_PATH", "")]
        path = ":".join(filter(None, folders))
        environment = {**os.environ, "LD_LIBRARY_PATH": path}
        os.execve(program, [str(program), *sys.argv[1:]], environment)
    print(f"error: {problem}.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
