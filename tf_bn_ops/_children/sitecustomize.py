"""The start of a child of `python -m tf_bn_ops run`: imports the package that the parent has.

Python imports it in every child that inherits PYTHONPATH; where Python ignores that (-I), the
parent's multiprocessing has its children run it, with `asked` and `report`.
"""

import importlib
import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
_package = os.path.dirname(_folder)

if "tf_bn_ops" not in sys.modules and sys.version_info >= (3, 10):  # Older ones are no child's.
    import importlib.util

    # Of the parent's copy, whether it is on the path or not.
    _init = os.path.join(_package, "__init__.py")
    _spec = importlib.util.spec_from_file_location("tf_bn_ops", _init)
    if _spec is not None and _spec.loader is not None:
        sys.modules["tf_bn_ops"] = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules["tf_bn_ops"])

if __name__ != "sitecustomize":
    from tf_bn_ops import _run, _startup

    _given = globals()["asked"], globals()["report"]
    _startup.follow_command(*_given)
    _run.reach_untrusting_children(*_given)
else:
    # The one of this system or of the user, which stands behind this one on the path.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _folder]
    _this = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = _this
