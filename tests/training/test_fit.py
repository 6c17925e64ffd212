from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from triform.training.fit import HOOKS, leave_out_empty_hooks


class Ends(Callback):
    """Counts the batches that have ended."""

    def __init__(self) -> None:
        self.ended = 0

    def on_train_batch_end(self, *args: Any) -> None:
        self.ended += 1


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.layer(batch).sum()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec")
def test_hooks_that_do_nothing_are_left_out_of_a_step_and_the_others_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for hook in HOOKS:
        monkeypatch.setattr(Callback, hook, lambda self, *args, name=hook: called.append(name))
    ends = Ends()
    leave_out_empty_hooks(ends)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=4,
        callbacks=[ends],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(5, 3), batch_size=None))
    assert ends.ended == 4
    assert called == []


def test_a_hook_of_the_instance_stays() -> None:
    callback, noted = Callback(), []
    callback.on_after_backward = lambda *args: noted.append(args)  # type: ignore[method-assign]
    leave_out_empty_hooks(callback)
    callback.on_after_backward(1, 2)  # type: ignore[arg-type]
    assert noted == [(1, 2)]
    assert callback.on_train_batch_end is None
