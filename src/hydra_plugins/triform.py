"""Hydra takes sweepers and launchers only from this namespace; the work is in `triform.sweeps`."""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class TriformSweeper(Sweeper):
    """Many runs from one command. The settings in `conf/hydra/sweeper/` are read where the sweep begins."""

    def __init__(self, **settings: Any) -> None:
        pass

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config

    def sweep(self, arguments: list[str]) -> Any:
        from triform.sweeps.run import sweep

        assert self.config is not None
        return sweep(self.config, arguments)


class TriformLauncher(Launcher):
    """Names what `TriformSweeper` runs its jobs with; other sweepers, which own no queue, are refused."""

    def __init__(self, **settings: Any) -> None:
        pass

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        raise ValueError(
            "hydra/launcher: triform's launchers take jobs from triform's sweepers alone; choose hydra/sweeper=grid, "
            "list or random, or hydra/launcher=basic as well"
        )
