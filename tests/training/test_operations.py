"""What one optimizer step of training does, counted: numbers that only a change of the code changes, unlike times.

A step here is all between the beginnings of two batches in `fit`: reading the batch, forward and backward pass, guards,
clipping, the optimizer, the schedule. Where a change lowers a number, write the new one down; where it raises one, be
sure that it must.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.runs import make
from triform.run.job import rank_main
from triform.tasks.task import Task

TORCH = "2.13"
"""Version of torch that the numbers are of: others take operations apart in other ways."""


@dataclass(frozen=True)
class Cost:
    """Of one step.

    Args:
        operations: of torch that compute or copy something; a view is none, an optimizer's fused step is one.
        copies: of them those that only copy.
        waits: of them those that a GPU would have to be waited for: by the guard, for loss and gradient; and where the
            head looks whether every token has a target, on a CPU alone.
        made: memory of the tensors that they return, KiB.
    """

    operations: int
    copies: int
    waits: int
    made: int


EXPECTED = {
    "encoder": Cost(operations=144, copies=2, waits=2, made=4372),
    "decoder": Cost(operations=241, copies=2, waits=2, made=8321),
    "encoder_decoder": Cost(operations=373, copies=10, waits=2, made=12852),
}
FREE = ("_unsafe_view", "empty_like", "empty", "_record_function_enter_new", "_record_function_exit")
COPIES, WAITS = ("clone", "copy_", "_to_copy", "_foreach_copy_"), ("_local_scalar_dense", "nonzero")


class Counting(TorchDispatchMode):
    """Counts what is done while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name, aliases = func.overloadpacket.__name__, [of.alias_info for of in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        if is_view or name in FREE:
            return found
        self.counts[name] += 1
        if not any(aliases):
            returned = found if isinstance(found, list | tuple) else [found]
            self.made += sum(one.nbytes for one in returned if isinstance(one, Tensor))
        return found

    def cost(self) -> Cost:
        copies, waits = (sum(self.counts[name] for name in names) for names in (COPIES, WAITS))
        return Cost(self.counts.total(), copies, waits, self.made // 1024)


@pytest.mark.skipif(not torch.__version__.startswith(TORCH), reason=f"numbers of torch {TORCH}")
@pytest.mark.parametrize("family", EXPECTED)
def test_a_step_does_no_more_than_it_did(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = "trainer.max_steps=5", "trainer.val_interval=null", "trainer.save_interval=null", "trainer.log_interval=5"
    folder = make(tmp_path, family, *steps, "trainer.accumulate=1", "trainer.test=false")
    counting, costs = Counting(), list[Cost]()
    begin = Task.on_train_batch_start

    def begun(self: Task, *args: Any) -> None:
        costs.append(counting.cost())
        counting.counts, counting.made = Counter(), 0
        begin(self, *args)

    monkeypatch.setattr(Task, "on_train_batch_start", begun)
    with counting:
        assert rank_main(folder, False) == 0
    assert costs[3] == EXPECTED[family]
