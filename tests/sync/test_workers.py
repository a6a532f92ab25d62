"""Workers of MultiWorkerMirroredStrategy over loopback: right together, an error if one fails."""

from __future__ import annotations

import json

import forked
import pytest
import replica_processes
import split_cases
from test_splits import assert_all_right


def run_splits(workers: int, which: str, folder):
    replica_processes.run(
        "split_program.py", f"{folder}/{{worker}}.npz", str(workers), which, workers=workers
    )
    return [folder / f"{worker}.npz" for worker in range(workers)]


def test_two_workers_are_right_at_a_large_mean(tmp_path):
    assert_all_right(run_splits(2, "quick", tmp_path), 2, split_cases.QUICK)


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, 3])
def test_any_split_over_workers(workers, tmp_path):
    assert_all_right(run_splits(workers, "all", tmp_path), workers, split_cases.ALL)


@pytest.mark.long
@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_worker_that_fails_is_an_error_in_the_time_of_the_collectives(how):
    timeout = 8
    first, _ = replica_processes.processes("failing_program.py", how, str(timeout), workers=2)
    assert first.returncode == 0, first.stderr[-3000:]
    found = json.loads(first.stdout.splitlines()[-1])
    assert not found["outcome"].startswith("returned"), found
    # TensorFlow looks at its clock every now and then, and the machine has other work.
    assert found["seconds"] < 3 * timeout, found


@pytest.mark.long
def test_a_step_under_parameter_servers_has_the_statistics_of_its_own_batch():
    (output,) = replica_processes.run("parameter_server_program.py", *forked.free_addresses(3))
    assert json.loads(output) == [1, 3]
