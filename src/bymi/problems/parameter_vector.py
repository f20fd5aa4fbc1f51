"""Parameters of a torch module as one vector, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ParameterShapes:
    """Names and shapes of a module's parameters, in the order in which a vector [..., D] lists them."""

    shapes: tuple[tuple[str, torch.Size], ...]

    @staticmethod
    def of(model: nn.Module) -> ParameterShapes:
        return ParameterShapes(tuple((name, value.shape) for name, value in model.named_parameters()))

    @property
    def dim(self) -> int:
        return sum(shape.numel() for _, shape in self.shapes)

    def split(self, vectors: Tensor) -> dict[str, Tensor]:
        """Views into vectors [..., D] by name, each [..., *shape]."""
        pieces = torch.split(vectors, [shape.numel() for _, shape in self.shapes], dim=-1)
        return {
            name: piece.reshape((*vectors.shape[:-1], *shape)) for (name, shape), piece in zip(self.shapes, pieces, strict=True)
        }

    def join(self, values: Mapping[str, Tensor]) -> Tensor:
        """The vectors [..., D] of named values [..., *shape]."""
        return torch.cat(
            [
                values[name].flatten(values[name].ndim - len(shape)) if shape else values[name].unsqueeze(-1)
                for name, shape in self.shapes
            ],
            dim=-1,
        )
