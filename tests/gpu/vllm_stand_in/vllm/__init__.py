"""The part of vLLM that its tests of sleep mode need besides its own files: see `vllm_sleep_tests.py`."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

if os.environ.get("ALLOTMENT_VLLM"):  # vLLM finds this plugin by its entry points
    from allotment._adapters.vllm_plugin import register

    register()


class SamplingParams:
    def __init__(self, temperature: float = 0.0, max_tokens: int = 10) -> None:
        self.max_tokens = max_tokens


class LLM:
    """Stands for the engine: a small model with random weights that generates greedily, with a cache of keys.

    The order of sleep and wake is that of vLLM's engine, executor and worker.
    """

    TAGS = frozenset({"weights", "kv_cache"})
    VOCABULARY, WIDTH = 4096, 1024

    def __init__(self, model: str, kv_cache_memory_bytes: int = 64 << 20, **options: Any) -> None:
        import torch

        from vllm.device_allocator import get_mem_allocator_instance
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

        config = SimpleNamespace(sleep_mode_backend=os.environ.get("SLEEP_MODE_BACKEND", "cumem"))
        self.backend = SleepModeBackendFactory.create_backend(config)
        self.asleep: set[str] = set()
        self.paused = False
        self.llm_engine = SimpleNamespace(is_sleeping=lambda: self.paused or bool(self.asleep))
        allocator = get_mem_allocator_instance()
        assert allocator.get_current_usage() == 0
        with allocator.use_memory_pool("weights"):
            shapes = [(self.VOCABULARY, self.WIDTH), *[(self.WIDTH, self.WIDTH)] * 8]
            self.weights = [torch.empty(shape, device="cuda") for shape in shapes]
        with allocator.use_memory_pool("kv_cache"):
            self.cache = torch.zeros(kv_cache_memory_bytes // 4 // self.WIDTH, self.WIDTH, device="cuda")
        self.reload_weights()

    def reload_weights(self) -> None:
        import torch

        generator = torch.Generator().manual_seed(1)
        for weight in self.weights:
            weight.copy_(torch.randn(weight.shape, generator=generator) / 32)

    def generate(self, prompt: str, params: SamplingParams) -> list[Any]:
        import torch

        assert not self.llm_engine.is_sleeping()
        self.cache.zero_()
        tokens = [ord(letter) for letter in prompt]
        for place in range(len(tokens) + params.max_tokens - 1):
            state = self.weights[0][tokens[place]]
            for layer in self.weights[1:]:
                state = torch.nn.functional.gelu(layer @ state) + state
            self.cache[place] = state
            scores = torch.softmax(self.cache[: place + 1] @ state, 0)
            if place >= len(prompt) - 1:
                tokens.append(int((self.weights[0] @ (scores @ self.cache[: place + 1])).argmax()))
        made = tokens[len(prompt) :]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=made, text=str(made))])]

    def collective_rpc(self, what: Any) -> list[Any]:
        return [self.reload_weights() if what == "reload_weights" else what(self)]

    def sleep(self, level: int = 1) -> None:
        self.paused = True
        if level > 0 and "weights" not in self.asleep:
            self.backend.suspend(level)
            self.asleep |= self.TAGS

    def wake_up(self, tags: list[str] | None = None) -> None:
        if not self.asleep or not self.asleep.issuperset(tags or ()):
            return
        self.backend.resume(tags)
        self.asleep -= set(tags or self.TAGS)
        self.paused = bool(self.asleep)

    def release_kv_cache_memory(self) -> None:
        if not self.paused:
            raise RuntimeError("release_kv_cache_memory() requires a completed pause first")
        self.backend.discard(("kv_cache",))
        self.asleep.add("kv_cache")
