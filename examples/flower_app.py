"""Flower with a server that leaves Byzantine clients out: twelve simulated clients, two of which push both halves one way."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

from bymi.flower import ByMI

CLIENTS, BYZANTINE, ROUNDS = 12, 2, 3
client, server = ClientApp(), ServerApp()
strategy = ByMI(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)


@client.train()
def train(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(200, 5, generator=generator)
    targets = inputs.sum(1, keepdim=True) + 0.5 * torch.randn(200, 1, generator=generator)
    records = {"metrics": MetricRecord({"num-examples": 200})}
    for name, half in (("first", slice(0, 100)), ("second", slice(100, 200))):
        model = nn.Linear(5, 1)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(5):
            optimiser.zero_grad()
            nn.functional.mse_loss(model(inputs[half]), targets[half]).backward()
            optimiser.step()
        if number < BYZANTINE:
            with torch.no_grad():
                model.weight -= 3.0
        records[name] = ArrayRecord(model.state_dict())
    return Message(RecordDict(records), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    start = ArrayRecord({"weight": torch.zeros(1, 5), "bias": torch.zeros(1)})
    result = strategy.start(grid, initial_arrays=start, num_rounds=ROUNDS)
    flagged = {number: int(verdict.flagged.sum()) for number, verdict in strategy.verdicts.items()}
    print("flagged per round:", flagged, "weights:", result.arrays.to_torch_state_dict()["weight"].round(decimals=1).tolist())


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=CLIENTS)
