"""Several trainings at once: the same weights as one after the other, and what becomes of failures and interrupts."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_presets import CPU, assert_same_weights, presets, weights_of

from bdgd.apps import several
from bdgd.apps.several import Job, make_jobs, train_several
from bdgd.apps.training import train_preset
from bdgd.checks import InputError
from bdgd.training import turns


def test_at_once_gives_the_same_weights_as_one_after_the_other(tmp_path: Path) -> None:
    jobs = make_jobs(presets()[:1], [0, 1], tmp_path) + make_jobs(presets()[1:], None, tmp_path)
    threads = set[int]()
    outcomes = train_several(jobs, CPU, at_once=3, report=lambda job, record: threads.add(threading.get_ident()))
    assert [outcome.job for outcome in outcomes] == jobs and all(outcome.error is None for outcome in outcomes)
    assert len(threads) == 3 and threading.get_ident() not in threads
    for outcome in outcomes:
        alone = tmp_path / "alone" / outcome.job.name
        model = train_preset(outcome.job.preset, alone, CPU)
        assert_same_weights(outcome.job.folder, alone)
        assert outcome.quality == model.provenance["stages"][-1]["validation_psnr"]
    seeds = [weights_of(job.folder) for job in jobs[:2]]
    assert any(not torch.equal(seeds[0][name], seeds[1][name]) for name in seeds[0])  # another seed is another training


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_captured_trainings_end_as_they_do_alone(tmp_path: Path) -> None:
    """Close, not equal: a GPU's libraries may choose other algorithms when less memory is free."""
    gpu = torch.device("cuda")
    jobs = make_jobs(presets(), [0, 1, 2], tmp_path)
    outcomes = train_several(jobs, gpu, at_once=3)
    assert [outcome.reason for outcome in outcomes] == [""] * len(jobs)
    for job in jobs:
        train_preset(job.preset, tmp_path / "alone" / job.name, gpu)
        alone = weights_of(tmp_path / "alone" / job.name)
        for name, tensor in weights_of(job.folder).items():
            torch.testing.assert_close(tensor, alone[name], rtol=0, atol=1e-3, equal_nan=True)
    assert turns._stepping == 0 and not turns._captured and not turns._turn.locked()


def test_steps_are_taken_at_the_same_time(tmp_path: Path) -> None:
    """Each of two trainings waits inside a stage until the other is there too."""
    meet = threading.Barrier(2, timeout=180)
    met: list[str] = []

    def report(job: Job, record: dict[str, Any]) -> None:
        if "loss" in record and record["stage"] == "block-01" and record["epoch"] == 1:
            meet.wait()
            met.append(job.name)

    jobs = make_jobs(presets()[:1], [0, 1], tmp_path)
    assert [outcome.error for outcome in train_several(jobs, CPU, at_once=2, report=report)] == [None, None]
    assert sorted(met) == ["tiny-seed0", "tiny-seed1"]


def test_a_failing_training_does_not_stop_the_others(tmp_path: Path) -> None:
    jobs = make_jobs(presets()[:1], [0, 1, 2], tmp_path)
    jobs[1].folder.write_text("in the way")
    ended: list[str] = []
    outcomes = train_several(jobs, CPU, at_once=2, finished=lambda outcome: ended.append(outcome.job.name))
    assert [outcome.error is None for outcome in outcomes] == [True, False, True] and sorted(ended) == sorted(job.name for job in jobs)
    assert isinstance(outcomes[1].error, InputError) and "it is a file" in outcomes[1].told()
    assert "validation" in outcomes[0].told()


def test_an_interrupt_stops_all_and_resume_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_train = threading.Barrier(2, timeout=180)

    def interrupted(workers: Any) -> None:
        both_train.wait()
        raise KeyboardInterrupt

    def report(job: Job, record: dict[str, Any]) -> None:
        if job.preset.seed == 0 and record.get("step") == 6:
            both_train.wait()
            time.sleep(0.2)  # the stop is set by then

    jobs = make_jobs(presets()[:1], [0, 1, 2], tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(several, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_several(jobs, CPU, at_once=2, report=report)
    assert not (jobs[0].folder / "model.safetensors").exists() and not jobs[2].folder.exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("training")]
    assert [outcome.error for outcome in train_several(jobs[:1], CPU, at_once=1, resume=True)] == [None]
    train_preset(jobs[0].preset, tmp_path / "alone", CPU)
    assert_same_weights(jobs[0].folder, tmp_path / "alone")
