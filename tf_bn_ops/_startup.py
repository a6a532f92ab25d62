"""What happens at the start of Python and at the imports of TensorFlow and Keras: TF_BN_OPS.

The start-up hook (tf_bn_ops.pth) imports this in every process that has one of the variables:
nothing here takes long to import. No lock is held across an import or an action at its end, which
may import, load and call anything of this package: all that they do may be done twice.
"""

from __future__ import annotations

import _thread
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

from tf_bn_ops._environment import variable

VARIABLE = "TF_BN_OPS"
REPORT_VARIABLE = "TF_BN_OPS_REPORT"
# What pip installs into site-packages.
HOOK = "tf_bn_ops.pth"
# What TF_BN_OPS may list, by the names of the arguments of `enable`.
WORDS = ("kernels", "keras", "fuse")

# Packages whose import has ended. TensorFlow and Keras import each other: the outer import has to
# end too, and TensorFlow ignores an ImportError of Keras.
_imported: set[str] = set()
# What is not possible here, and has been said.
_refused: set[str] = set()


# ---- What is asked for ---------------------------------------------------------------------------


def parse(value: str, name: str = VARIABLE) -> dict[str, bool]:
    """The arguments of `enable` that a value asks for; empty where it asks for nothing. Case,
    blanks, line ends and stray commas do not matter.

    Raises:
      ValueError: with a sentence, which begins with `name`, for a word that it does not know.
    """
    words = {*value.lower().replace(",", " ").split()}
    if words <= {"0", "false"}:
        return {}
    if words <= {"1", "true"}:
        words = {*WORDS}
    if unknown := sorted(words - {*WORDS}):
        raise ValueError(
            f"{name}={' '.join(value.split())} has the word {unknown[0]!r}: set it to 1 for "
            f"everything, to 0 for nothing, or to a list of {', '.join(WORDS[:-1])} and "
            f"{WORDS[-1]}, separated by commas"
        )
    return {word: word in words for word in WORDS}


def requested() -> dict[str, bool]:
    """The arguments of `enable` that TF_BN_OPS asks for; empty where it asks for nothing.

    Raises:
      ValueError: with a sentence, for a word that it does not know.
    """
    return parse(variable(VARIABLE))


# ---- The switch ----------------------------------------------------------------------------------


def follow_environment() -> None:
    """Enables what TF_BN_OPS lists as soon as the package that it concerns has been imported, and
    starts the report that TF_BN_OPS_REPORT asks for."""
    _start_report(variable(REPORT_VARIABLE))
    if variable(VARIABLE):
        follow(requested)


def follow_command(
    words: str,
    report: str = "",
    show: Callable[[str], object] | None = None,
    fail: Callable[[str, set[str]], NoReturn] | None = None,
) -> None:
    """Does what the two variables would with these values, in an environment that may not be
    trusted, since a command line asks for it; `show` and `fail` as in `follow`."""
    _start_report(report)
    follow(lambda: parse(words), show, fail)


@functools.cache
def _start_report(target: str) -> None:
    if target:
        importlib.import_module("tf_bn_ops._report").start(target)


def report_target(value: str) -> str:
    """Where a value of TF_BN_OPS_REPORT has the report go: "1" for stderr, else a file, whatever
    the working folder will be; "" for nowhere. Case and blanks around a word do not matter."""
    word = value.strip().lower()
    if word in ("", "0", "false"):
        return ""
    return "1" if word in ("1", "true") else os.path.abspath(value)


def has_hook() -> bool:
    """Whether this Python, and so its children, run the start-up file of an installed package."""
    site = sys.modules.get("site")
    if site is None:  # -S
        return False
    folders = [*site.getsitepackages(), *filter(None, [site.ENABLE_USER_SITE and site.USER_SITE])]
    return any(os.path.isfile(f"{folder}/{HOOK}") for folder in folders)


def follow(
    asked: Callable[[], dict[str, bool]],
    show: Callable[[str], object] | None = None,
    fail: Callable[[str, set[str]], NoReturn] | None = None,
) -> None:
    """Enables what `asked` returns as soon as the package that it concerns has been imported.

    Args:
      asked: called at the end of each import; a ValueError of it makes the import fail.
      show: called with a line that says what is on.
      fail: called with a sentence where something that was asked for is not possible, and the
        words that are refused, none where a library does not fit; without it the logger warns of
        a refusal, and the import fails with a LibraryError.
    """
    call_after_imports(
        {
            package: functools.partial(_enable_after, package, asked, show, fail)
            for package in ("tensorflow", "keras", "tf_keras")
        }
    )


def _enable_after(
    package: str,
    asked: Callable[[], dict[str, bool]],
    show: Callable[[str], object] | None,
    fail: Callable[[str, set[str]], NoReturn] | None,
) -> None:
    """What is left to do at the end of the import of `package`."""
    # Not above: every process with the variable is here.
    from tf_bn_ops import _enable, _loader, _report

    try:
        wanted = {word for word, is_wanted in asked().items() if is_wanted}
    except ValueError as error:
        raise _loader.LibraryError(str(error)) from None
    if not wanted:
        if _report.is_started():  # This action has replaced the report's own.
            _report.record()
        return
    if package == "tf_keras":
        if "keras" in wanted and "kernels" not in wanted:
            sentence = (
                f"{VARIABLE}=keras does nothing for tf_keras, whose layers call TensorFlow's fused "
                f"ops: {VARIABLE}=kernels puts these on this library's kernels"
            )
            if fail is not None:
                fail(sentence, {"keras"})
            _enable.log_refusal(sentence)
        return
    _imported.add(package)
    ready = {"kernels", "fuse"} if "tensorflow" in _imported else set()
    if "keras" in _imported and ("tensorflow" in _imported or "tensorflow" not in sys.modules):
        ready.add("keras")
    now = (wanted & ready) - _refused
    try:
        enabled = _enable.put_in_place(**{word: word in now for word in WORDS})
    except _loader.LibraryError as error:
        _imported.discard(package)
        if fail is not None:
            fail(str(error), set())
        raise
    refused = {word for word in now if not getattr(enabled, word)}
    _refused.update(refused)
    if fail is not None and refused:
        fail("; ".join(enabled.refusals), refused)
    # Where Keras imports TensorFlow, one line at the end says all.
    is_last = "keras" not in wanted or "keras" in _imported or "keras" not in sys.modules
    line = _enable.say(enabled, is_last)
    if line and show is not None:
        show(line)


# ---- The end of an import ------------------------------------------------------------------------


def call_after_imports(actions: dict[str, Callable[[], object]]) -> None:
    """Calls the action of a package now if it has been imported, else at the end of its import.

    An import at whose end the action raises fails; the next one calls it again. The action replaces
    an earlier one for the package.
    """
    _AfterImport.actions.update(actions)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
    for package in (name for name in actions if name in sys.modules):
        if _is_initializing(package):
            importlib.import_module(package)  # Waits for another thread, which imports it.
        if hasattr(sys.modules.get(package), "__version__"):
            actions[package]()


def _is_initializing(name: str) -> bool:
    """Whether the module is being imported, by this thread or another one."""
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False)


class _AfterImport:
    """A finder that finds nothing itself; adds a call to the end of a package's import.

    It stays in sys.meta_path: an import that has failed may be tried again, and a spec may be asked
    for without an import, as TensorFlow does. Not derived from importlib.abc.MetaPathFinder, whose
    module imports tempfile and random.
    """

    actions: ClassVar[dict[str, Callable[[], object]]] = {}

    def __init__(self) -> None:
        self._asking_others: set[int] = set()  # Threads: another one may import it meanwhile.

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        thread = _thread.get_ident()
        if fullname not in self.actions or thread in self._asking_others or fullname in sys.modules:
            return None
        self._asking_others.add(thread)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking_others.discard(thread)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: Any) -> None:
                before = {*sys.modules}
                execute(module)
                if module.__name__ != fullname:  # Of a loader that several modules share.
                    return
                try:
                    self.actions[fullname]()
                except BaseException:
                    _take_back({*sys.modules} - before)
                    raise

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def _take_back(names: set[str]) -> None:
    """Removes what came with an import that fails, so that the next one fails too: Python takes
    back the package whose import ends. The other one would stay, and the modules of Keras' API,
    which `from keras.layers import ...` finds without it. Not what another thread imports."""
    for name in names:
        package, *inner = name.split(".")
        if name != "tensorflow" and _is_initializing(name):
            continue
        if name == "tensorflow" or (package == "keras" and inner[:1] != ["src"]):
            sys.modules.pop(name, None)
            _imported.discard(name)
