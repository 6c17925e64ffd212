"""From images to vectors."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triform.layers.embedding import Embedding


class PatchEmbedding(Embedding):
    """A projection of each square of an image, row by row, after a learned vector that stands for all of it.

    Dosovitskiy et al. 2021 (https://arxiv.org/abs/2010.11929), section 3.1: ViT's [CLS] and patches. A convolution
    whose stride is its width, written as the projection that it is.

    Args:
        image_size: height and width, pixels.
        patch_size: of a square, pixels; divides `image_size`.
        channels: numbers of a pixel, such as 3 of a coloured one; at least 1.

    Raises:
        ValueError: a size or `channels` < 1, or `patch_size` does not divide `image_size`.
    """

    reads = "images"

    def __init__(self, d_model: int, *, image_size: int, patch_size: int, channels: int) -> None:
        super().__init__()
        for name, value in {"image_size": image_size, "patch_size": patch_size, "channels": channels}.items():
            if value < 1:
                raise ValueError(
                    f"PatchEmbedding: {name}={value} is less than 1; set model.embedding.{name} to at least 1"
                )
        if image_size % patch_size:
            raise ValueError(
                f"PatchEmbedding: image_size={image_size} is not a multiple of patch_size={patch_size}; set "
                f"model.embedding.patch_size to a divisor of model.embedding.image_size"
            )
        self.d_model, self.image_size, self.patch_size, self.channels = d_model, image_size, patch_size, channels
        self.seq_len = 1 + (image_size // patch_size) ** 2
        self.cls = nn.Parameter(torch.zeros(d_model))
        self.patch_proj = nn.Linear(channels * patch_size**2, d_model)

    def forward(
        self, inputs: Float[Tensor, "batch channels height width"], token_type_ids: Tensor | None = None
    ) -> Float[Tensor, "batch seq_len d_model"]:
        """The first vector is that of the image, then patches from left to right and from top to bottom.

        Raises:
            ValueError: other channels or sizes, or `token_type_ids`.
        """
        if token_type_ids is not None:
            raise ValueError("PatchEmbedding: token_type_ids are given, but an image has no tokens; leave them out")
        expected = (self.channels, self.image_size, self.image_size)
        if inputs.shape[1:] != expected:
            raise ValueError(
                f"PatchEmbedding: images are {tuple(inputs.shape[1:])} of (channels, height, width), not {expected}; "
                f"scale them, or set model.embedding.channels and image_size"
            )
        size = self.patch_size
        squares = inputs.unfold(2, size, size).unfold(3, size, size)  # batch channels rows columns size size
        x = self.patch_proj(squares.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))
        return torch.cat((self.cls.expand(len(x), 1, -1), x), dim=1)

    def blank(self, seq_len: int) -> Float[Tensor, "1 channels height width"]:
        return torch.zeros(1, self.channels, self.image_size, self.image_size, device=self.cls.device)

    def flops(self, seq_len: int) -> int:
        assert self.seq_len is not None
        return 2 * self.patch_proj.weight.numel() * (self.seq_len - 1)

    def initialise_parameter(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """The vector of the image begins at 0, as in the authors' code."""
        value.zero_()
