"""Hydra takes sweepers only from this namespace; the work is in `triform.sweeps`."""

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class GridSweeper(Sweeper):
    """Every combination of the values on the command line, one run after the other."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config

    def sweep(self, arguments: list[str]) -> Any:
        from triform.sweeps.grid import sweep

        assert self.config is not None
        return sweep(self.config, arguments)
