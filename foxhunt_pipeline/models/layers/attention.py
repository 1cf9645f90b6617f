"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class MultiHeadAttention(nn.Module):
    """Self-attention over the middle axis of ``(batch, token, dim)``.

    With ``head_dim = dim // n_heads`` it is ``torch.nn.MultiheadAttention`` to the letter, the
    rows of ``qkv.weight`` in the order of its ``in_proj_weight``. Every pair of tokens may attend
    to one another: causality is the caller's, who shows only rows that are known.

    Args:
        dim: Width of a token.
        n_heads: Heads that attend independently.
        head_dim: Width of a head.
        dropout: Share of attention weights dropped in training.
    """

    def __init__(self, dim: int, n_heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * n_heads * head_dim)
        self.out = nn.Linear(n_heads * head_dim, dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (  # each (batch, head, token, head_dim)
            self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        )
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        y = y.transpose(1, 2).flatten(2)  # (batch, token, head * head_dim)
        out: Tensor = self.out(y)  # (batch, token, dim)
        return out
