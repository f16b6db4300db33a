"""What a classifier does on a set of images, from sums that add up over processes."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..data.images import Images
from ..gauge.moments import Moments, float64
from ..models.classifier import Classifier
from .batches import batches
from .parallel import Processes


class Evaluation(NamedTuple):
    """Means over images: accuracy, cross-entropy at a temperature, norm of a row of logits; and the logits' moments."""

    accuracy: float
    loss: float
    logits_norm: float
    logits: Moments

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss)


@torch.no_grad()
def evaluate(
    model: Classifier,
    images: Images,
    indices: Tensor,
    temperature: float,
    batch: int,
    device: torch.device,
    group: Processes,
    autocast: torch.autocast,
) -> Evaluation:
    """Over the images of those indices, `batch` at a time, each process its share; the loss is not finite where a logit
    is not."""
    logits_moments = Moments(model.classes)
    sums = torch.zeros(3)
    for pixels, labels in batches(images, torch.split(group.share(indices), batch), device):
        with autocast:
            logits = model(pixels)
        logits = float64(logits)
        labels = labels.to(logits.device)
        right = (logits.argmax(1) == labels).sum()
        loss = functional.cross_entropy(logits / temperature, labels, reduction="sum")
        sums = sums.to(logits) + torch.stack([right, loss, logits.norm(dim=1).sum()])
        if not loss.isfinite():
            break
        logits_moments.update(logits)
    if group.count > 1:
        torch.distributed.all_reduce(sums)
        logits_moments.all_reduce()
    accuracy, mean_loss, mean_norm = (sums / len(indices)).tolist()
    return Evaluation(accuracy, mean_loss, mean_norm, logits_moments)
