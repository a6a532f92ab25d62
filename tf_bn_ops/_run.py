"""Runs a program as it is, with batch normalization on this library.

usage: python -m tf_bn_ops run [--only=WORDS] [--report[=FILE.json]] SCRIPT [ARGS...]
       python -m tf_bn_ops run [--only=WORDS] [--report[=FILE.json]] -m MODULE [ARGS...]
       python -m tf_bn_ops run [--only=WORDS] [--report[=FILE.json]] -c CODE [ARGS...]

  --only=WORDS          some of kernels, keras and fuse, separated by commas; all of them without it
  --report[=FILE.json]  print at the end, or write to a file, what ran where

The program is what it is for `python SCRIPT [ARGS...]`: arguments, path, exit status, signals and
tracebacks, and so are the processes that it starts. One line on stderr says what is on.
Exit status: the program's; 2, and one sentence, where something that was asked for is not possible.
"""

# Flags are argparse's without absl.app: it reads flags behind SCRIPT, which are the script's, has
# flags of its own (--verbosity), and ends programs in its own way.

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import pkgutil
import runpy
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from tf_bn_ops import _command, _enable, _environment, _loader, _startup

_CHILDREN = pathlib.Path(__file__).parent / "_children"
_refused: list[str] = []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--only", default="1")
    parser.add_argument("--report", nargs="?", const="1", default="")
    parser.error = _refuse_usage  # type: ignore[method-assign]
    return parser


def _refuse_usage(message: str) -> NoReturn:
    raise _command.UsageError(f"{message}; --help shows the usage")


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of this command, and the program's, which are its own whatever they are."""
    for i, word in enumerate(words):
        if word == "--":
            return words[:i], words[i + 1 :]
        is_value = i > 0 and words[i - 1] == "--only"
        if not is_value and (not word.startswith("--")):
            return words[:i], words[i:]
    return words, []


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit status, unless the program ends it."""
    own, program = _split(argv[1:])
    if "--help" in own or program[:1] == ["-h"]:
        print(__doc__)
        return 0
    try:
        flags = _parser().parse_args(own)
        execute = _program(program)
        asked = _startup.parse(flags.only, "--only")
        if not asked:
            raise _command.UsageError("--only names nothing: leave it out for everything")
        flags.report = _startup.report_target(flags.report)
        if flags.report not in ("", "1"):
            _command.writable(flags.report)
        _check(asked)
    except (ValueError, ImportError, OSError) as error:
        _show(f"{argv[0]}: {error}")
        return 2
    words = ",".join(word for word, is_wanted in asked.items() if is_wanted)
    _reach_children(words, flags.report)
    _startup.follow_command(words, flags.report, show=_show, fail=_fail)
    _run(execute)
    return 2 if _refused else 0


# ---- The switch ----------------------------------------------------------------------------------


def _check(asked: dict[str, bool]) -> None:
    """Refuses what is known to be impossible before the program starts, without an import."""
    here = _loader.installation()
    names = [_loader.OP_LIBRARY, _loader.CORE_LIBRARY]
    names += [_loader.OVERRIDE_LIBRARY] * asked["kernels"]
    names += [_loader.OPTIMIZER_LIBRARY] * asked["fuse"]
    for name in names:
        _loader.check_whole(here.path(name))
    _loader.build_info()
    if importlib.util.find_spec("tensorflow") is None:
        raise _loader.LibraryError(f"there is no TensorFlow here: {here.install_tensorflow()}")
    if here.tensorflow is not None:
        here.check_version(here.tensorflow.version)
        if asked["kernels"]:
            try:
                _enable.check_known(here.tensorflow.version)
            except _enable.Refusal as refusal:
                raise _loader.LibraryError(_without(str(refusal), {"kernels"})) from None


def _show(line: str) -> None:
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


def _fail(sentence: str, refused: set[str]) -> NoReturn:
    """Ends the program: a SystemExit, which no program ignores by a handler of ImportError."""
    _refused.append(sentence)
    _show(f"tf_bn_ops run: {_without(sentence, refused) if refused else sentence}")
    raise SystemExit(2)


def _without(sentence: str, refused: set[str]) -> str:
    rest = ",".join(word for word in _startup.WORDS if word not in refused)
    return f"{sentence}; --only={rest} leaves it out"


def _reach_children(words: str, report: str) -> None:
    """Has the processes that the program starts do the same."""
    os.environ[_startup.VARIABLE] = words
    if report:
        os.environ[_startup.REPORT_VARIABLE] = report
    if not _startup.has_hook():
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if str(_CHILDREN) not in paths:  # As below another `run`.
            paths = [str(_CHILDREN), *(paths if any(paths) else [])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if not _environment.is_trusted():
        reach_untrusting_children(words, report)


def reach_untrusting_children(words: str, report: str) -> None:
    """Tells children of multiprocessing, in what they unpickle first: they have this process's
    flags and ignore the environment as well."""
    from multiprocessing import spawn

    prepared = spawn.get_preparation_data

    def prepared_with_switch(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"tf_bn_ops": _InChild(words, report), **prepared(*args, **kwargs)}

    spawn.get_preparation_data = prepared_with_switch


class _InChild:
    """Nothing, which is unpickled by running sitecustomize.py: no import finds this package yet."""

    def __init__(self, words: str, report: str) -> None:
        self._given = {"asked": words, "report": report}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return runpy.run_path, (str(_CHILDREN / "sitecustomize.py"), self._given)


# ---- The program ---------------------------------------------------------------------------------


def _program(words: list[str]) -> Callable[[], None]:
    """What runs the program, once sys.argv and sys.path are as it finds them."""
    if not words:
        raise _command.UsageError("name a SCRIPT, or -m MODULE; --help shows the usage")
    first, *rest = words
    if (flag := first[:2]) in ("-m", "-c"):
        what, *rest = [*filter(None, [first[2:]]), *rest, ""]
        if not what:
            needed = "the name of a MODULE" if flag == "-m" else "CODE"
            raise _command.UsageError(f"{flag} needs {needed}")
        sys.argv = [flag, *rest[:-1]]
        if flag == "-m":
            return lambda: _as_module(what, True)
        _set_folder("")
        return lambda: _as_script(os.fsencode(what), "<string>")
    if first.startswith("-") and first != "-":
        raise _command.UsageError(f"there is no flag {first}; --help shows the usage")
    sys.argv = words
    if first == "-":
        _set_folder("")
        # No stdin, as with `<&-`, is an empty one.
        return lambda: _as_script(sys.stdin.buffer.read() if sys.stdin else b"", "<stdin>")
    path = os.path.join(os.getcwd(), first)
    if pkgutil.get_importer(path) is not None:  # A folder or archive with __main__.py in it.
        _set_folder(path, always=True)
        return lambda: _as_module("__main__", False)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        raise _command.UsageError(f"cannot open {path}: {error.strerror}") from None
    _set_folder(os.path.dirname(os.path.realpath(path)))
    return lambda: _as_script(source, path)


def _set_folder(folder: str, always: bool = False) -> None:
    """Puts the program's folder where Python has put the current one; -I and -P put none."""
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[0] = folder
    elif always:
        sys.path.insert(0, folder)


def _as_script(source: bytes, path: str) -> None:
    code: Any = pkgutil.read_code(io.BytesIO(source))  # Of a .pyc file.
    loader: Any = importlib.machinery.BuiltinImporter
    variables: dict[str, Any] = {} if path == "<string>" else {"__file__": path, "__cached__": None}
    if not path.startswith("<"):
        kind = "SourcelessFileLoader" if code else "SourceFileLoader"
        loader = getattr(importlib.machinery, kind)("__main__", path)
    main = _new_main(__loader__=loader, **variables)
    exec(code or compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _as_module(name: str, alter_argv: bool) -> None:
    _new_main()
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _new_main(**given: Any) -> types.ModuleType:
    """A new __main__ with these variables, as far as this command's has them in this Python."""
    given |= {"__builtins__": sys.modules["builtins"], "__annotations__": {}}
    main = types.ModuleType("__main__")
    main.__dict__.update((n, v) for n, v in given.items() if n in vars(sys.modules["__main__"]))
    sys.modules["__main__"] = main
    return main


def _run(execute: Callable[[], None]) -> None:
    """Calls it; Python shows an exception without the frames that are not the program's."""
    try:
        execute()
    except SystemExit:
        raise
    except BaseException as error:
        inner = error.__traceback__
        while inner is not None and inner.tb_frame.f_globals is globals():
            inner = inner.tb_next
        show = sys.excepthook

        def show_inner(kind: Any, value: Any, traceback: Any) -> None:
            sys.excepthook = show
            show(kind, value.with_traceback(inner), inner)

        sys.excepthook = show_inner
        raise
