"""Reads digits that no client had, with the model of a run: ``python -m plain_app.use``."""

import torch

from plain_app.task import Net, load_test_data

net = Net()
net.load_state_dict(torch.load("final_model.pt", weights_only=True))
((images, labels),) = load_test_data()
read = net(images).argmax(1)
right = (read == labels).sum()
print(f"{right} of {len(labels)} digits are right; the first ten: {read[:10].tolist()}")
