"""An RL loop of twenty rounds, with and without sleep in between: equal outputs, and free memory while a half sleeps.

    python tests/gpu/rl_loop.py [--mode deep] [--rounds 20] [--settings S]

A policy with random weights generates tokens by a captured graph, under the tag "engine", and is trained on them under
the tag "training". With sleep, each half is paused while the other works. Each run is a process of its own. Exit code 1
if tokens, losses or weights differ in a bit, or if a sleeping half keeps its memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from typing import Any

WIDTH, LAYERS, VOCABULARY, BATCH, LENGTH = 1024, 12, 8192, 16, 64


def digest(*tensors: Any) -> str:
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().float().cpu().numpy().tobytes())
    return whole.hexdigest()[:16]


def make_policy(torch: Any) -> Any:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(WIDTH)
            self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(VOCABULARY, WIDTH)
            self.mix = torch.nn.Linear(WIDTH, WIDTH)
            self.blocks = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
            self.head = torch.nn.Linear(WIDTH, VOCABULARY)

        def forward(self, tokens: Any, state: Any) -> tuple[Any, Any]:
            x = self.table(tokens) + self.mix(state)
            for block in self.blocks:
                x = block(x)
            return self.head(x), torch.tanh(x)

    return Policy().cuda()


def run(options: argparse.Namespace) -> None:
    import allotment
    import allotment.torch

    allotment.torch.install(options.mode, settings=options.settings)
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(7)
    allocator = allotment.current("cuda:0")
    free: dict[str, list[int]] = {"awake": [], "engine asleep": [], "training asleep": []}

    def note(name: str) -> None:
        torch.cuda.synchronize()
        free[name].append(torch.cuda.mem_get_info()[0])

    with allotment.tag("training"):
        trained = make_policy(torch)
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3, foreach=True)

    with allotment.tag("engine"), torch.no_grad():
        engine = make_policy(torch)
        tokens = torch.zeros(BATCH, dtype=torch.long, device="cuda")
        state = torch.zeros(BATCH, WIDTH, device="cuda")
        written = torch.zeros(LENGTH, BATCH, dtype=torch.long, device="cuda")
        noise = torch.zeros(BATCH, VOCABULARY, device="cuda")

        def decode() -> None:
            logits, after = engine(tokens, state)
            tokens.copy_((logits + noise).argmax(-1))
            state.copy_(after)

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                decode()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            decode()
    note("awake")

    losses, outputs, slept = [], [], 0
    if options.sleep:
        slept += allocator.pause("engine")
        slept += allocator.pause("training")
    for number in range(options.rounds):
        generator = torch.Generator().manual_seed(number)
        if options.sleep:
            allocator.resume("training")  # for its weights
            allocator.resume("engine")
        with torch.no_grad(), allotment.tag("engine"):
            for mine, theirs in zip(engine.parameters(), trained.parameters(), strict=True):
                mine.copy_(theirs)
            if options.sleep:
                torch.cuda.synchronize()
                allocator.pause("training")
                note("training asleep")
            tokens.fill_(number)
            state.zero_()
            for step in range(LENGTH):
                noise.copy_(torch.randn(BATCH, VOCABULARY, generator=generator))
                graph.replay()
                written[step].copy_(tokens)
            kept = written.cpu()
        outputs.append(digest(kept))
        if options.sleep:
            torch.cuda.synchronize()
            allocator.pause("engine")
            note("engine asleep")
            allocator.resume("training")
        with allotment.tag("training"):
            lines = kept.cuda()
            hidden = torch.zeros(BATCH, WIDTH, device="cuda")
            total = torch.zeros((), device="cuda")
            for step in range(LENGTH - 1):
                logits, hidden = trained(lines[step], hidden.detach())
                total = total + torch.nn.functional.cross_entropy(logits, lines[step + 1])
            total.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(total.detach()).hex())
            del lines, hidden, logits, total
        if options.sleep:
            torch.cuda.synchronize()
            allocator.pause("training")
    if options.sleep:
        allocator.resume("training")
        allocator.resume("engine")
    allocator.inspection.check_invariants()
    print(json.dumps({
        "mode": allotment.torch.installed_mode(), "losses": losses, "outputs": outputs,
        "weights": digest(*trained.parameters()),
        "free_mib": {name: [min(seen) >> 20, max(seen) >> 20] for name, seen in free.items() if seen},
        "slept_mib": slept >> 20,
    }))  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="deep", choices=["hooks", "deep"])
    parser.add_argument("--settings")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sleep", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        run(options)
        return 0
    found = {}
    for name, more in (("awake", []), ("with sleep", ["--sleep"])):
        command = [sys.executable, __file__, "--here", *sys.argv[1:], *more]
        environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
        if done.returncode:
            print(f"{name}: ended with {done.returncode}")
            return 1
        found[name] = json.loads(done.stdout.splitlines()[-1])
        facts = {key: value for key, value in found[name].items() if key not in ("losses", "outputs")}
        print(f"{name}: {json.dumps(facts)}")
    awake, slept = found["awake"], found["with sleep"]
    equal = {key: awake[key] == slept[key] for key in ("outputs", "losses", "weights")}
    before = awake["free_mib"]["awake"][0]
    regained = {name: slept["free_mib"][f"{name} asleep"][0] - before for name in ("engine", "training")}
    print(f"equal over {options.rounds} rounds: {equal}; more free than with both awake, in MiB: {regained}")
    return 0 if all(equal.values()) and min(regained.values()) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
