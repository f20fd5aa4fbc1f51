"""Models that ship with bymi."""

from __future__ import annotations

import math

from torch import Tensor, nn

from bymi.core.random_streams import stream
from bymi.problems.parameter_vector import ParameterShapes


def lenet(classes: int = 10) -> nn.Sequential:
    """LeNet for 28 x 28 grey images, padding 2: 61,706 parameters for 10 classes, initialised by torch (see `start_of`)."""
    # Pooling before ReLU: the same function, a quarter of the work.
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def start_of(model: nn.Module, *, seed: int) -> Tensor:
    """A random start [D] for a model: Kaiming-uniform weights and uniform biases of its linear and convolution layers.

    Weights in +-sqrt(6 / fan in), as for layers that a ReLU follows, biases in +-1 / sqrt(fan in), from named streams: torch's
    own initialisation depends on the global generator. Parameters of other layers (such as norms) stay as the model has them.
    """
    values = {name: value.detach() for name, value in model.named_parameters()}
    for path, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
            continue
        fan_in = module.weight[0].numel()
        for part, value in module.named_parameters(recurse=False):
            name = f"{path}.{part}" if path else part
            bound = math.sqrt((6 if part == "weight" else 1) / fan_in)
            uniform = stream(seed, f"start {name}").uniform(*value.shape)
            values[name] = (bound * (2 * uniform - 1)).to(value)
    return ParameterShapes.of(model).join(values)
