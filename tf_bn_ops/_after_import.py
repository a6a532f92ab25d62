"""Calls a function at the end of another package's import, without importing that package.

The start-up hook imports this in every Python process: nothing here takes long to import.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tf_bn_ops import _environment


def requested(variable: str) -> bool:
    """Whether an environment variable switches something on."""
    return _environment.variable(variable).lower() not in ("", "0", "false")


def call_after_import(package: str, action: Callable[[], object]) -> None:
    """Calls `action` now if the package has been imported, else at the end of its import.

    An import at whose end `action` raises fails; the next one calls `action` again.
    """
    if hasattr(sys.modules.get(package), "__version__"):
        action()
    else:
        sys.meta_path.insert(0, _AfterImport(package, action))


class _AfterImport:
    """A finder that finds nothing itself; adds a call to the end of a package's import.

    It stays in sys.meta_path: an import that has failed may be tried again, and a spec may be asked
    for without an import, as TensorFlow does. Not derived from importlib.abc.MetaPathFinder, whose
    module imports tempfile and random.
    """

    def __init__(self, package: str, action: Callable[[], object]) -> None:
        self._package = package
        self._action = action
        self._asking_others = False

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if fullname != self._package or self._asking_others or fullname in sys.modules:
            return None
        self._asking_others = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking_others = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: Any) -> None:
                execute(module)
                self._action()

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
