"""Your own model and loss: 24 nodes on a complete graph learn which of three numbers is the largest; five of them lie."""

from __future__ import annotations

import torch
from torch import nn

from bymi import BALANCE, Adversary, Detector, Graph, ModuleProblem, Optimisation, Plan, Shards, StepSize, WarmUp, simulate
from bymi.attacks import GradientAttack
from bymi.streams import stream

NODES, SAMPLES = 24, 80

inputs = stream(0, "inputs", node=torch.arange(NODES)).normal(SAMPLES, 6).to(torch.float32)
shards = Shards(inputs, inputs[:, :, :3].argmax(2))
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
problem = ModuleProblem(model, nn.functional.cross_entropy, shards)

plan = Plan(
    steps=150,
    warm_up_steps=30,
    warm_up=WarmUp(BALANCE(), StepSize(0.05), batch=16),
    detector=Detector(point="receiver", cross_fit=True),
    optimisation=Optimisation(StepSize(0.3, "trapezoid"), batch=16, max_local_step=0.6, order="adapt-then-combine"),
    identification=40,
)
liars = torch.arange(NODES) < 5
adversary = Adversary(liars, GradientAttack(), mixing="none")

found = torch.zeros(NODES, dtype=torch.long)
for snapshot in simulate(problem, Graph.from_adjacency(torch.ones(NODES, NODES)), plan, adversary):
    if snapshot.verdict is not None:
        found = (snapshot.verdict.flagged & liars).sum(1)

average = snapshot.theta[~liars].mean(0)
right = (problem.outputs(average, inputs[~liars].flatten(0, 1)).argmax(1) == shards.targets[~liars].flatten()).double().mean()
print(f"all liars found by {int((found[~liars] == 5).sum())} of {NODES - 5} nodes, accuracy {float(right):.2f}")
