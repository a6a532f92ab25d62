"""In loops, branches, functions and derivatives: the result of one replica with the whole batch, or
one sentence before anything waits."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import replica_processes

LOOP = "synchronized batch normalization in a loop of a graph"
EAGERLY = "that the replicas of one process call eagerly would wait forever"
TWO = "synchronized batch normalization in a tf.function that another one calls"
BRANCH = "synchronized batch normalization below tf.cond has first-order gradients"


def sentence(name: str) -> str | None:
    """What replicas of one process are told, if anything."""
    if name == "fit, unroll=False":
        return LOOP
    if name == "fit, unroll=True":
        return None
    place, derivative, mode = name.split(", ")
    if mode == "eager":
        in_function = place in ("nested function", "vectorized_map")
        return EAGERLY if in_function or derivative.startswith("jacobian") else None
    if place in ("while_loop", "scan", "map_fn") or derivative == "jacobian by loop":
        return LOOP
    if place == "vectorized_map" and derivative != "forward":
        return BRANCH
    if place == "two functions" and derivative in ("persistent", "second"):
        return TWO
    if "cond" in place and derivative in ("second", "forward mode"):
        return BRANCH
    return None


def run(replicas: int, *names: str, workers: int = 0) -> list[dict[str, Any]]:
    lines = replica_processes.run(
        "control_flow_program.py", str(replicas), *names, workers=workers, timeout=580
    )
    return [json.loads(line) for line in lines]


def assert_right(names: list[str]) -> None:
    (want,), (got,) = run(1, *names), run(2, *names)
    assert want.keys() == got.keys() and want
    for name, value in got.items():
        expected = sentence(name)
        if expected is not None:
            assert expected in value, (name, value)
            continue
        assert not isinstance(value, str), (name, value)
        # Some hundred roundings in float32.
        tolerance = 1e-5 * np.max(np.abs(want[name]))
        np.testing.assert_allclose(value, want[name], rtol=0, atol=tolerance, err_msg=name)


def test_gradients_below_cond_and_a_sentence_for_loops():
    assert_right(["(while_loop|cond), gradient, function", "Python loop, forward mode, function"])


@pytest.mark.long
@pytest.mark.parametrize(
    "places",
    [
        "fit.*|(while_loop|scan|map_fn), (forward|gradient), function",
        "(cond|cond in cond), (gradient|second|forward mode|jacobian), function",
        "switch_case, (forward|gradient|jacobian), function",
        "nested function, (forward|gradient|persistent|second), function",
        "nested function, (forward mode|forward over backward|jacobian), function",
        "two functions, (forward|gradient|persistent|second), function",
        "Python loop, (persistent|second|forward over backward|jacobian.*), function",
        "vectorized_map, (forward|gradient), function",
        "(Python loop|cond|nested function), (persistent|second|forward mode|jacobian), eager",
    ],
)
def test_every_place(places):
    assert_right([places])


@pytest.mark.long
def test_workers_that_share_no_process_meet_in_loops():
    names = ["(while_loop|cond|nested function), (forward|gradient), function"]
    (want,) = run(1, *names)
    results = run(2, *names, workers=2)
    for name, value in want.items():
        total = sum(np.array(result[name]) for result in results)
        np.testing.assert_allclose(total, value, rtol=0, atol=1e-5 * np.max(np.abs(value)))
