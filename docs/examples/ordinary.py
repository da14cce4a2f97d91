"""A small training."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 10

inputs = torch.randn(960, 8, generator=torch.Generator().manual_seed(1))
dataset = TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())
loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=1)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)

for _ in range(EPOCHS):
    for features, labels in loader:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimiser.step()
    scheduler.step()

torch.save(model.state_dict(), "model.pt")
