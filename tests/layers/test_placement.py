import torch
from torch import nn

from triform.layers.placement import Depth, PostNorm, PreNorm


def test_post_and_pre() -> None:
    x, sublayer = torch.randn(2, 7, 24), nn.Linear(24, 24)
    post = PostNorm(d_model=24, norm=nn.LayerNorm, dropout=0.0, depth=Depth(2))
    pre = PreNorm(d_model=24, norm=nn.LayerNorm, dropout=0.0, depth=Depth(2))
    for placement in (post, pre):
        nn.init.normal_(placement.norm.weight)
    torch.testing.assert_close(post(x, sublayer), post.norm(x + sublayer(x)))
    torch.testing.assert_close(pre(x, sublayer), x + sublayer(pre.norm(x)))


def test_dropout_falls_on_the_sublayer_not_on_the_shortcut() -> None:
    x = torch.randn(2, 7, 24)
    out = PreNorm(d_model=24, norm=nn.LayerNorm, dropout=0.5, depth=Depth(2))(x, torch.ones_like)
    assert (out - x).round().unique().tolist() == [0, 2]
