"""Promised: `make bazel` builds what make builds, of the same lists of sources and flags, without
downloads.

Without optimization, which is no part of that and most of the time: bitwise results of other levels
are in tests/core/test_builds.py. In a file of its own, since it takes as long as any.
"""

from __future__ import annotations

import shutil

import pytest
from build_helpers import copy_tree, make, run

from tf_bn_ops import _loader

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(not all(map(shutil.which, ("make", "bazel"))), reason="needs bazel"),
]


def test_bazel_builds_the_same_libraries_and_programs(repo_root, tmp_path):
    tree = copy_tree(repo_root, tmp_path / "tree", objects=False)
    try:
        result = make(tree, "bazel", "BAZEL_COMMANDS=build", "ARGS=--per_file_copt=.*@-O0")
        assert result.returncode == 0, result.stderr
        built = {path.name for path in _loader.installation().folder.glob("*.so")}
        assert {"libtf_bn_ops.so", _loader.CORE_LIBRARY} <= built
        sources = repo_root.glob("examples/*.cc")
        for name in (*built, *(f"bin/{source.stem}" for source in sources)):
            assert (tree / "bazel-bin" / name).is_file(), name
    finally:
        run(["bazel", "clean", "--expunge"], tree)  # What it keeps in the home folder; its server.
