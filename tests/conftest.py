"""What the tests share: a seeded generator, the devices, and measured data where there is some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from calibrated import small_calibration
from hypothesis import settings
from processes import same_numbers_everywhere
from toys import no_update_undone

from bdgd.models import Calibration

same_numbers_everywhere()

#: the one list of devices; every test that takes `device` runs once on each
DEVICES = ["cpu", *([pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else [])]

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

settings.register_profile("bdgd", deadline=None, derandomize=True)  # the same examples every time; a slow machine is no failure
settings.load_profile("bdgd")


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    """What a test draws without a generator does not depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture
def generator() -> torch.Generator:
    """A CPU generator seeded with 0, fresh for every test."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device of this machine in turn: the CPU, and CUDA where there is one."""
    return torch.device(request.param)


@pytest.fixture
def all_updates_count() -> Iterator[None]:
    """Untrained blocks run as they are, without the guard that would undo most of their updates."""
    with no_update_undone():
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of measured scans beside the repository; skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("measured data not found: this test needs the folder ../shared/data beside the repository")
    return SHARED_DATA


@pytest.fixture(scope="session")
def calibration() -> Calibration:
    """The small model's calibration, for `calibrated.DRAWS` draws."""
    return small_calibration()
