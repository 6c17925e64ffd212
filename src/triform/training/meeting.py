"""What ranks tell each other before they have a process group."""

import json
import os
from datetime import timedelta

from torch.distributed import Store, rendezvous


class Meeting:
    """Ranks that tell each other texts, through the key-value store in which their process group will meet later.

    Args:
        ranks: how many there are, on all machines.
        timeout: how long they wait for each other.
    """

    def __init__(self, ranks: int, timeout: timedelta) -> None:
        self.ranks, self.rank, self.timeout = ranks, 0, timeout
        self._round = 0
        self._store: Store | None = None
        if ranks > 1:  # kept as long as this: with that of the first rank its server goes
            self._store, self.rank, _ = next(rendezvous("env://", timeout=timeout))

    def told(self, own: str) -> list[str]:
        """What each rank says, by rank; all of them must call it, equally often."""
        if self._store is None:
            return [own]
        self._round += 1
        # A rank that is started again finds the same store under torchrun.
        place = f"triform/meeting/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{self._round}"
        self._store.set(f"{place}/{self.rank}", own)
        if self.rank == 0:
            keys = [f"{place}/{other}" for other in range(self.ranks)]
            self._store.wait(keys, self.timeout)
            self._store.set(place, json.dumps([self._store.get(key).decode() for key in keys]))
        self._store.wait([place], self.timeout)
        found: list[str] = json.loads(self._store.get(place))
        return found


ALONE = Meeting(1, timedelta(0))
"""There is nobody else."""
