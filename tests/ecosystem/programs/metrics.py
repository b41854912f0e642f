"""torchmetrics: states of both ranks are merged, by sums and by uneven lists."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from report import report
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
from torchmetrics.regression import PearsonCorrCoef

dist.init_process_group(sys.argv[1] or None)
rank = dist.get_rank()
generator = torch.Generator().manual_seed(rank)
metrics = MetricCollection([MulticlassAccuracy(num_classes=3), MulticlassAUROC(3)])
mean, correlation = MeanMetric(), PearsonCorrCoef()
for step in range(3 + rank):  # ranks see different numbers of examples
    guessed = torch.randn(5 + step, 3, generator=generator).softmax(1)
    metrics.update(guessed, torch.randint(3, (5 + step,), generator=generator))
    mean.update(guessed.max())
    correlation.update(guessed[:, 0], guessed[:, 1])
found = {name: value.item() for name, value in metrics.compute().items()}
report(found=found, mean=mean.compute().item(), pearson=correlation.compute().item())
dist.destroy_process_group()
