"""What ablation.py trains: handwritten digits, and the next character of a text that every Debian has."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from train_digits import digits, network

LICENCES = Path("/usr/share/common-licenses")
"""Of the package base-files, without which there is no Debian. Some 300 kB of English."""
HELD_OUT = "Apache-2.0"
"""The licence that is not trained on: no other has its text."""
CONTEXT = 64


@dataclass(frozen=True)
class Task:
    """A model to train, and data for it."""

    model: nn.Module
    rate: float
    """Of learning, at the beginning."""
    examples: int
    take: Callable[[Tensor], tuple[Tensor, Tensor]]
    """Inputs and what to predict, of the examples with these numbers."""
    held_out: tuple[Tensor, Tensor]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(x).flatten(0, -2), y.flatten())

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Mean loss, and share of right predictions, of what is held out."""
        loss, right = torch.zeros(()), torch.zeros(())
        for x, y in zip(*(part.split(256) for part in self.held_out), strict=True):
            predicted = self.model(x)
            loss += nn.functional.cross_entropy(predicted.flatten(0, -2), y.flatten(), reduction="sum")
            right += (predicted.argmax(-1) == y).sum()
        count = self.held_out[1].numel()
        return (loss / count).item(), (right / count).item()


def digits_task(seed: int) -> Task:
    """The images and the network of train_digits.py."""
    train, held_out = digits(seed)
    images, labels = train.tensors
    return Task(network(), 3e-3, len(labels), lambda at: (images[at], labels[at]), held_out)


def text_task(_: int) -> Task:
    """The licences by characters; the same are held out for every seed."""
    known = sorted(path for path in LICENCES.glob("*") if path.is_file() and not path.is_symlink())
    if LICENCES / HELD_OUT not in known or len(known) < 5:
        raise SystemExit(f"{LICENCES}: expected the licences of Debian's package base-files, found {len(known)} files")
    texts = {path.name: path.read_bytes().decode("utf-8", "replace") for path in known}
    numbers = {character: number for number, character in enumerate(sorted(set("".join(texts.values()))))}

    def encoded(text: str) -> Tensor:
        return torch.tensor([numbers[character] for character in text])

    held_out = encoded(texts.pop(HELD_OUT))
    train = encoded("".join(texts.values()))
    windows = held_out[: (len(held_out) - 1) // CONTEXT * CONTEXT + 1]
    held = windows[:-1].view(-1, CONTEXT), windows[1:].view(-1, CONTEXT)
    ahead = torch.arange(CONTEXT)

    def take(at: Tensor) -> tuple[Tensor, Tensor]:
        places = at[:, None] + ahead
        return train[places], train[places + 1]

    return Task(Transformer(len(numbers)), 3e-3, len(train) - CONTEXT, take, held)


class Block(nn.Module):
    """Causal attention and a layer of feed-forward, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3 * self.heads, -1).transpose(1, 2)
        q, k, v = parts.chunk(3, dim=1)
        mixed: Tensor = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        after: Tensor = x + self.wide(self.before_forward(x))
        return after


class Transformer(nn.Module):
    """Predicts the next character at every place of a text."""

    def __init__(self, characters: int, width: int = 128, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)), nn.LayerNorm(width))
        self.head = nn.Linear(width, characters)

    def forward(self, x: Tensor) -> Tensor:
        embedded = self.characters(x) + self.places(torch.arange(x.shape[1]))
        predicted: Tensor = self.head(self.blocks(embedded))
        return predicted


TASKS: dict[str, Callable[[int], Task]] = {"digits": digits_task, "text": text_task}
