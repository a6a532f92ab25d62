"""A pytest plugin that keeps every n-th test, n from TFBN_TEST_EVERY: pytest -p sample."""

from __future__ import annotations

import os
from typing import Any


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    every = int(os.environ["TFBN_TEST_EVERY"])
    config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % every])
    items[:] = items[::every]
