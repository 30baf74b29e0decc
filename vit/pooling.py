"""What the head reads of the last tokens: a token, their mean, or attention with a learned query.

B batch, T tokens = P prefix tokens + N patches, D embed_dim, H heads, K head width, Q heads of the
network (tokens read).

Each piece turns tokens (B, T, D) into those read (B, Q, D), and says by `shares` (B, T), whose rows
sum to 1, how much of each token that is: where an explanation starts.
"""

import torch
from torch import Tensor, nn

from vit.architecture import Architecture
from vit.attention import SelfAttention
from vit.pieces import MLPS, NORMS, Mlp, hidden_dim


class FirstTokens(nn.Module):
    """The first `count` tokens, one for each head of the network: (B, T, D) -> (B, Q, D)."""

    def __init__(self, count: int):
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.count]

    def shares(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T): each of the first tokens counts the same, as the logits' mean."""
        return even(x, slice(0, self.count))


class MeanOfPatches(nn.Module):
    """The mean of the tokens from `start` on: (B, T, D) -> (B, 1, D)."""

    def __init__(self, start: int):
        super().__init__()
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.start :].mean(dim=1, keepdim=True)

    def shares(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T): each patch counts the same."""
        return even(x, slice(self.start, None))


class AttentionPool(nn.Module):
    """A learned query looks at the tokens from `start` on: (B, T, D) -> (B, 1, D).

    Zhai et al. 2022 (arXiv 2106.04560), section 3: multi-head attention pooling, the MAP head, from
    Lee et al. 2019, Set Transformer (arXiv 1810.00825), eq. 11.

    Args:
        architecture: the network's.
        start: the first token looked at; those before are left out.
    """

    def __init__(self, architecture: Architecture, start: int):
        super().__init__()
        a = architecture
        self.start = start
        self.latent = nn.Parameter(torch.zeros(1, 1, a.embed_dim))
        self.q = nn.Linear(a.embed_dim, a.embed_dim)
        self.kv = nn.Linear(a.embed_dim, 2 * a.embed_dim)
        self.set_heads(a.embed_dim, a.num_heads)
        self.proj = nn.Linear(a.embed_dim, a.embed_dim)
        self.norm = NORMS[a.norm_layer](a.embed_dim)
        self.mlp = Mlp(a.embed_dim, hidden_dim(a), act=MLPS[a.mlp][1])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        read = self.proj(self.merge_heads(self.mix(q, k, v)))  # (B, 1, D)
        return read + self.mlp(self.norm(read))

    def project(self, x: Tensor) -> list[Tensor]:
        """Tokens (B, T, D) -> q (B, H, 1, K), k and v (B, H, T - start, K)."""
        q = self.q(self.latent.expand(x.shape[0], -1, -1))  # (B, 1, D)
        return [self.split_heads(part) for part in (q, *self.kv(x[:, self.start :]).chunk(2, -1))]

    def weights(self, x: Tensor) -> Tensor:
        """The attention that `forward(x)` uses: (B, T, D) -> (B, H, 1, T - start), rows sum to 1."""
        q, k, _ = self.project(x)
        return self.softmax_of(q, k)

    def shares(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T): the query's row, the heads' mean; 0 for the tokens left out."""
        row = self.weights(x).mean(dim=1)[:, 0]
        row = row.to(torch.promote_types(row.dtype, torch.float32))
        return nn.functional.pad(row, (self.start, 0))

    set_heads = SelfAttention.set_heads
    split_heads = SelfAttention.split_heads
    merge_heads = SelfAttention.merge_heads
    mix = SelfAttention.mix
    softmax_of = SelfAttention.softmax_of


POOLS = {
    "token": lambda a: FirstTokens(1),
    "distilled": lambda a: FirstTokens(2),
    "avg": lambda a: MeanOfPatches(a.num_prefix_tokens),
    "map": lambda a: AttentionPool(a, a.num_prefix_tokens),
}


def even(x: Tensor, chosen: slice) -> Tensor:
    """(B, T, D) -> (B, T): 1 spread evenly over the chosen tokens, in float32 at least."""
    shares = x.new_zeros(x.shape[:2], dtype=torch.promote_types(x.dtype, torch.float32))
    shares[:, chosen] = 1 / shares[:, chosen].shape[1]
    return shares
