"""A generating engine and a trainer take turns on one GPU; each sleeps while the other works.

    python rl_loop.py hooks|deep SETTINGS awake|asleep

Prints one JSON object: for each round a digest of the tokens, the loss in hexadecimal and a digest of the logits, and
how much free device memory rose in each sleep. With "awake" nothing is paused; everything else is the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from typing import Any

import torch

import allotment.torch

MODE, SETTINGS, WAY = sys.argv[1:]
ROUNDS, BATCH, STEPS, WIDTH, TOKENS, LAYERS = 20, 16, 24, 1024, 512, 4
PLACES: list[dict[str, Any]] = [{}, {"keep_host": True}, {"keep": "file", "folder": tempfile.gettempdir()}]

allotment.torch.install(mode=MODE, settings=SETTINGS)
torch.use_deterministic_algorithms(True)


class Model(torch.nn.Module):
    """Compute logits and the next state from tokens and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(TOKENS, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.out = torch.nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.embed(tokens) + state
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.out(hidden), torch.tanh(hidden)


class Engine:
    """A decoding step as a graph, with static buffers: weights, state and graph memory are in one tag."""

    tag = "engine"

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        with allotment.tag(self.tag), torch.no_grad():
            self.model = Model().cuda().eval()
            self.load(weights)
            self.tokens = torch.zeros(BATCH, dtype=torch.long, device="cuda")
            self.state = torch.zeros(BATCH, WIDTH, device="cuda")
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.model(self.tokens, self.state)
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits, state = self.model(self.tokens, self.state)
                self.tokens.copy_(self.logits.argmax(-1))
                self.state.copy_(state)

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(weights)

    def generate(self, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.tokens.copy_(first)
        self.state.zero_()
        made = []
        for _ in range(STEPS):
            self.graph.replay()
            made.append(self.tokens.cpu())
        return torch.stack(made), self.logits.cpu()


class Trainer:
    tag = "trainer"

    def __init__(self) -> None:
        with allotment.tag(self.tag):
            self.model = Model().cuda()
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)  # the backward pass is in no tag
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def train(self, tokens: torch.Tensor) -> float:
        with allotment.tag(self.tag):
            given = tokens.cuda()
            state = torch.zeros(given.shape[1], WIDTH, device="cuda")
            loss = torch.zeros((), device="cuda")
            for step in range(given.shape[0] - 1):
                logits, state = self.model(given[step], state)
                loss = loss + torch.nn.functional.cross_entropy(logits, given[step + 1])
            self.optimizer.zero_grad(set_to_none=False)
            loss.backward()
            self.optimizer.step()
        return float(loss)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.cpu() for name, value in self.model.state_dict().items()}


class Turns:
    """Whether at most one of the two has memory."""

    def __init__(self) -> None:
        self.rises: list[int] = []
        self.number = 0

    def sleep(self, who: Engine | Trainer) -> None:
        if WAY == "awake":
            return
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        released = allotment.torch.pause(who.tag, **PLACES[self.number % len(PLACES)])
        rise = torch.cuda.mem_get_info()[0] - before
        assert released > 0 and rise >= released - (64 << 20), (released, rise)
        self.rises.append(rise)
        self.number += 1

    def wake(self, who: Engine | Trainer) -> None:
        if WAY == "asleep":
            allotment.torch.resume(who.tag)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def main() -> None:
    torch.manual_seed(1)
    turns = Turns()
    trainer = Trainer()
    weights = trainer.weights()
    turns.sleep(trainer)
    engine = Engine(weights)
    rounds = []
    for number in range(ROUNDS):
        first = torch.randint(0, TOKENS, (BATCH,), generator=torch.Generator().manual_seed(number))
        tokens, logits = engine.generate(first.cuda())
        turns.sleep(engine)
        turns.wake(trainer)
        loss = trainer.train(tokens)
        weights = trainer.weights()
        turns.sleep(trainer)
        turns.wake(engine)
        engine.load(weights)
        rounds.append([digest(tokens), loss.hex(), digest(logits)])
    print(json.dumps({"rounds": rounds, "least_rise": min(turns.rises, default=0), "sleeps": turns.number}))


if __name__ == "__main__":
    main()
