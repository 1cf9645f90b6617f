"""Where a number stopped being one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def blame(module: nn.Module, x: Tensor) -> str:
    """The first place in a forward pass, or else in the gradients, that is not finite.

    Names, in this order of search: a parameter, the input, the first submodule without children
    whose output is not finite, a parameter's gradient, the loss itself.
    """
    for name, parameter in module.named_parameters():
        if not parameter.isfinite().all():
            return f"parameter {name}"
    if not x.isfinite().all():
        return "the input"
    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not output.isfinite().all():
                found.append(name)

        return hook

    handles = [
        part.register_forward_hook(watch(name))
        for name, part in module.named_modules()
        if name and next(part.children(), None) is None
    ]
    try:
        with torch.no_grad():
            output = module(x)
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return f"output of layer {found[0]}"
    if isinstance(output, Tensor) and not output.isfinite().all():
        return "output of the model"
    for name, parameter in module.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"gradient of {name}"
    return "the loss"
