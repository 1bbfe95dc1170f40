"""Eight PyTorch programs of different kinds, whose weights are drawn: nothing is loaded from disk or the network.

llama     trains with checkpointing on sequences of varying length (transformers)
vit       trains with mixed precision on varying numbers of images (transformers)
whisper   transcribes in half precision, a token at a time (transformers)
mistral   serves two groups of requests in turns, with caches that grow by a token (transformers)
lora      trains adapters of a frozen GPT-2 on sequences of varying length (transformers)
gnn       trains on sampled neighbourhoods that a stream of its own copies ahead
resnet    trains ResNet-50 under DistributedDataParallel on images of varying sizes (transformers)
compiled  trains a small model under torch.compile, with a CUDA graph for each of several shapes

Each is a generator. After every step it yields a tensor with what the step computed, and the number of units that this
was. Without a GPU they run on the processor in `small` sizes, to find mistakes before a GPU's time is used.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

Step = tuple[Any, int]


class Place:
    """Where a program runs, and how large it is."""

    def __init__(self, device: str, small: bool) -> None:
        self.device, self.small = device, small

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    def of(self, full: int, small: int) -> int:
        return small if self.small else full

    def built(self, make: Callable[[], Any]) -> Any:
        """A model whose weights are drawn on the device, the same in every run."""
        import torch

        torch.manual_seed(1)
        with torch.device(self.device):
            return make()

    def tokens(self, source: Any, vocabulary: int, batch: int, length: int) -> Any:
        import torch

        return torch.randint(vocabulary, (batch, length), generator=source).to(self.device)

    def autocast(self) -> Any:
        import torch

        return torch.autocast(self.device, dtype=torch.bfloat16)

    def stream(self) -> Any:
        import torch

        return torch.cuda.Stream() if self.is_gpu else None

    def on(self, stream: Any) -> Any:
        import torch

        return torch.cuda.stream(stream) if self.is_gpu else contextlib.nullcontext()


def drawn(seed: int) -> tuple[random.Random, Any]:
    import torch

    return random.Random(seed), torch.Generator().manual_seed(seed)


def trained(optimizer: Any, loss: Any) -> Any:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def llama(place: Place) -> Iterator[Step]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, layers = place.of(1024, 64), place.of(16, 2)
    config = LlamaConfig(
        vocab_size=place.of(32000, 500), hidden_size=hidden, intermediate_size=place.of(2816, 128),
        num_hidden_layers=layers, num_attention_heads=16, num_key_value_heads=4, max_position_embeddings=4096,
        use_cache=False,
    )  # fmt: skip
    model = place.built(lambda: LlamaForCausalLM(config)).train()
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw, source = drawn(11)
    for _ in range(place.of(40, 3)):
        tokens = place.tokens(source, config.vocab_size, 2, draw.randrange(200, 2000) // place.of(1, 20))
        with place.autocast():
            loss = model(input_ids=tokens, labels=tokens).loss
        yield trained(optimizer, loss), tokens.numel()


def vit(place: Place) -> Iterator[Step]:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_labels=1000)
    if place.small:
        config = ViTConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96)
    model = place.built(lambda: ViTForImageClassification(config)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw, source = drawn(12)
    for _ in range(place.of(40, 3)):
        images = draw.randrange(16, 97) // place.of(1, 8)
        pixels = torch.randn(images, 3, 224, 224, generator=source).to(place.device)
        labels = torch.randint(2, (images,), generator=source).to(place.device)
        with place.autocast():
            loss = torch.nn.functional.cross_entropy(model(pixel_values=pixels).logits.float(), labels)
        yield trained(optimizer, loss), images


def whisper_model(place: Place) -> Any:
    """A model of 512, six layers each way, in half precision."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    width, layers = place.of(512, 64), place.of(6, 2)
    config = WhisperConfig(
        d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
        max_source_positions=place.of(1500, 60),
    )  # fmt: skip
    model = place.built(lambda: WhisperForConditionalGeneration(config)).eval()
    return model.to(torch.half if place.is_gpu else torch.bfloat16)


def transcribed(model: Any, features: Any, count: int, see: Callable[[str, Any], None] | None = None) -> Any:
    """Tokens chosen greedily; `see` gets the encoder's states and the logits of every step."""
    import torch

    states = model.model.encoder(features)
    if see is not None:
        see("encoder", states.last_hidden_state)
    tokens = torch.full((len(features), 1), 50258, device=features.device)
    past, newest = None, tokens
    for index in range(count):
        out = model(encoder_outputs=states, decoder_input_ids=newest, past_key_values=past, use_cache=True)
        past, logits = out.past_key_values, out.logits[:, -1]
        if see is not None:
            see(f"logits {index}", logits)
        newest = logits.argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, newest], dim=1)
    return tokens


def sounds(place: Place, draw: random.Random, source: Any, model: Any) -> Any:
    import torch

    batch = draw.randrange(4, 17) // place.of(1, 4)
    frames = 2 * model.config.max_source_positions
    features = torch.randn(batch, model.config.num_mel_bins, frames, generator=source)
    return features.to(place.device, model.dtype)


def whisper(place: Place) -> Iterator[Step]:
    import torch

    model = whisper_model(place)
    draw, source = drawn(13)
    with torch.no_grad():
        for _ in range(place.of(8, 2)):
            features = sounds(place, draw, source, model)
            tokens = transcribed(model, features, place.of(60, 4))
            yield tokens.double().square().sum(), tokens.numel()


def mistral(place: Place) -> Iterator[Step]:
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=place.of(32000, 500), hidden_size=place.of(2048, 64), intermediate_size=place.of(5632, 128),
        num_hidden_layers=place.of(16, 2), num_attention_heads=32, num_key_value_heads=8, sliding_window=None,
    )  # fmt: skip
    model = place.built(lambda: MistralForCausalLM(config)).to(torch.bfloat16).eval()
    draw, source = drawn(14)
    groups: deque[tuple[Any, Any, int]] = deque()  # newest tokens, cache, tokens still to write
    with torch.no_grad():
        for _ in range(place.of(24, 4)):
            while len(groups) < 2:
                batch, length = draw.randrange(1, 25), draw.randrange(50, 1500) // place.of(1, 30)
                out = model(input_ids=place.tokens(source, config.vocab_size, batch, length), use_cache=True)
                newest = out.logits[:, -1].argmax(-1, keepdim=True)
                groups.append((newest, out.past_key_values, draw.randrange(40, 200) // place.of(1, 10)))
            newest, past, left = groups.popleft()
            count = min(left, draw.randrange(10, 50) // place.of(1, 5))
            for _ in range(count):
                out = model(input_ids=newest, past_key_values=past, use_cache=True)
                newest, past = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
            yield newest.double().square().sum(), count * len(newest)
            if left > count:
                groups.append((newest, past, left - count))
            del out, past


def lora(place: Place) -> Iterator[Step]:
    import torch
    from torch import nn
    from transformers import GPT2Config, GPT2LMHeadModel

    rank = 16

    class Adapted(nn.Module):
        """A frozen layer with a trainable product of two thin matrices beside it."""

        def __init__(self, frozen: nn.Module, width: int, outputs: int) -> None:
            super().__init__()
            self.frozen = frozen
            self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, outputs, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, value: Any) -> Any:
            return self.frozen(value) + self.up(self.down(value))

    width = place.of(1024, 64)
    config = GPT2Config(
        n_embd=width, n_layer=place.of(24, 2), n_head=16, vocab_size=place.of(50257, 500), use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip

    def made() -> Any:
        model = GPT2LMHeadModel(config).requires_grad_(False)
        for block in model.transformer.h:
            block.attn.c_attn = Adapted(block.attn.c_attn, width, 3 * width)
        return model

    model = place.built(made).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    draw, source = drawn(15)
    for _ in range(place.of(24, 3)):
        tokens = place.tokens(source, config.vocab_size, place.of(8, 2), draw.randrange(60, 1000) // place.of(1, 20))
        with place.autocast():
            loss = model(input_ids=tokens, labels=tokens).loss
        yield trained(optimizer, loss), tokens.numel()


def gnn(place: Place) -> Iterator[Step]:
    import torch
    from torch import nn

    width, hidden, classes = 128, 256, 47
    layers = place.built(
        lambda: nn.ModuleList([nn.Linear(2 * width, hidden), nn.Linear(2 * hidden, hidden), nn.Linear(hidden, classes)])
    )
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    features = torch.randn(place.of(800_000, 5000), width, generator=torch.Generator().manual_seed(1)).to(place.device)
    copying = place.stream()
    draw, source = drawn(16)

    def sampled() -> list[Any]:
        nodes = [place.of(1024, 64)]
        for fan in (15, 10):
            nodes.append(int(nodes[-1] * fan * draw.uniform(0.25, 0.75)))
        chosen = torch.randint(len(features), (nodes[-1],), generator=source)
        hosts = [chosen]
        for sources, targets in zip(nodes[:0:-1], nodes[-2::-1], strict=True):
            hosts.append(torch.randint(sources, (targets, 8), generator=source))
        hosts.append(torch.randint(classes, (nodes[0],), generator=source))
        with place.on(copying):
            return [host.pin_memory().to(place.device, non_blocking=True) if place.is_gpu else host for host in hosts]

    ahead: deque[list[Any]] = deque()
    for _ in range(place.of(120, 4)):
        while len(ahead) < 3:
            ahead.append(sampled())
        chosen, *neighbours, labels = ahead.popleft()
        if place.is_gpu:
            torch.cuda.current_stream().wait_stream(copying)
            for tensor in (chosen, *neighbours, labels):
                tensor.record_stream(torch.cuda.current_stream())
        value = features[chosen]
        for layer, nearby in zip(layers, neighbours, strict=False):
            value = layer(torch.cat([value[: len(nearby)], value[nearby].mean(dim=1)], dim=1)).relu()
        loss = nn.functional.cross_entropy(layers[-1](value), labels)
        yield trained(optimizer, loss), len(labels)


def resnet(place: Place) -> Iterator[Step]:
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_labels=1000)
    if place.small:
        config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1])
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if place.is_gpu else "gloo"
        distributed.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        model = DistributedDataParallel(place.built(lambda: ResNetForImageClassification(config)).train())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        draw, source = drawn(17)
        for _ in range(place.of(40, 3)):
            images, side = draw.choice((32, 48, 64)) // place.of(1, 16), draw.choice((192, 224, 256)) // place.of(1, 4)
            pixels = torch.randn(images, 3, side, side, generator=source).to(place.device)
            labels = torch.randint(2, (images,), generator=source).to(place.device)
            loss = torch.nn.functional.cross_entropy(model(pixels).logits, labels)
            yield trained(optimizer, loss), images
        distributed.destroy_process_group()


def compiled(place: Place) -> Iterator[Step]:
    import torch
    from torch import nn

    width = 256
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    model = place.built(lambda: nn.TransformerEncoder(layer, place.of(6, 1), enable_nested_tensor=False)).train()
    model = model.to(place.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    way: dict[str, Any] = {"mode": "reduce-overhead"} if place.is_gpu else {"backend": "eager"}
    fast = torch.compile(model, dynamic=False, **way)
    draw, source = drawn(18)
    shapes = [(batch, 128) for batch in draw.sample(range(2, 33, 2), 3)]
    for index in range(place.of(120, 4)):
        value = torch.randn(*shapes[index % len(shapes)], width, generator=source).to(place.device)
        torch.compiler.cudagraph_mark_step_begin()
        yield trained(optimizer, fast(value).square().mean()), len(value)


PROGRAMS: dict[str, Callable[[Place], Iterator[Step]]] = {
    make.__name__: make for make in (llama, vit, whisper, mistral, lora, gnn, resnet, compiled)
}
WARM = {"llama": 3, "vit": 3, "whisper": 2, "mistral": 3, "lora": 3, "gnn": 10, "resnet": 12, "compiled": 30}
"""Steps that are not timed: kernels are loaded in them, cuDNN plans every new shape, and graphs are captured."""
