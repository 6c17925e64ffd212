"""Long short-term memory."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

State = tuple[Float[Tensor, "batch n_units"], Float[Tensor, "batch n_units"]]
"""Output and cell of each row."""


def fill_gates(name: str, value: Tensor, generator: torch.Generator) -> None:
    """How the parameters of an LSTM begin, by torch's names for them; each holds one block for each of four gates.

    What reads the input: Xavier uniform. What reads the state: orthogonal (Saxe et al. 2014; Bahdanau et al. 2015,
    appendix B.1). Biases: 0, but the forget gate's 1 (Jozefowicz et al. 2015): it is the second of torch's gates, and
    of its two biases, which are added, the input's has it.
    """
    if value.ndim == 1:
        value.zero_()
        if name.startswith("bias_ih"):
            value.chunk(4)[1].fill_(1.0)
        return
    for gate in value.chunk(4):
        if name.startswith("weight_hh"):
            nn.init.orthogonal_(gate, generator=generator)
        else:
            nn.init.xavier_uniform_(gate, generator=generator)


class LSTM(nn.LSTM):
    """`nn.LSTM` of one layer and one direction (Hochreiter and Schmidhuber 1997; Gers et al. 2000), rows first."""

    def __init__(self, n_inputs: int, n_units: int) -> None:
        super().__init__(n_inputs, n_units, batch_first=True)

    def initialise_parameter(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """See `fill_gates`."""
        fill_gates(name, value, generator)

    def read(
        self, x: Float[Tensor, "batch seq_len n_inputs"], state: State
    ) -> tuple[Float[Tensor, "batch seq_len n_units"], State]:
        """The outputs after a state, and the state after them."""
        h, c = (part[None].contiguous() for part in state)
        out, (h, c) = self(x, (h, c))
        return out, (h[0], c[0])


class LSTMCell(nn.LSTMCell):
    """`nn.LSTMCell`: one token of `LSTM`, where its input is known only when the token before has been read."""

    def initialise_parameter(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """See `fill_gates`."""
        fill_gates(name, value, generator)
