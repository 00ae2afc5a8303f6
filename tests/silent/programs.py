"""Small training programs that go wrong without a word, and their mended twins. `# HERE` marks the line at fault."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 6


def net(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))


def batch(count: int = 8) -> torch.Tensor:
    return torch.randn(count, 4)


def loop(model: Any, optimizer: Any, forward: Any = None, steps: int = STEPS) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        out = forward(batch()) if forward is not None else model(batch())
        out.square().mean().backward()
        optimizer.step()


def sgd(model: Any, lr: float = 0.1) -> Any:
    return torch.optim.SGD(model.parameters(), lr=lr)


# ddp-bypassed


def bypass_attribute(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model.module(batch()).square().mean()  # HERE
        loss.backward()
        optimizer.step()


def bypass_kept_inner(rank: int) -> None:
    inner = net()
    model = DDP(inner)
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = inner(batch()).square().mean()  # HERE
        loss.backward()
        optimizer.step()


class Losses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x))

    def training_step(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x)).square().mean()


def bypass_method(rank: int) -> None:
    model = DDP(Losses())
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model.module.training_step(batch())  # HERE
        loss.backward()
        optimizer.step()


def through_wrapper(rank: int) -> None:
    model = DDP(Losses())
    loop(model, sgd(model))
    with torch.no_grad():
        model.module(batch())


# accumulation-unsynced


def never_synced(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():  # HERE
            model(batch()).square().mean().backward()
        optimizer.step()


def last_window_short(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(2):
        for turn in range(3):
            with model.no_sync() if turn != 0 else nullcontext():  # HERE
                model(batch()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def flag_left_off(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    model.require_backward_grad_sync = False
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch()).square().mean()  # HERE
        loss.backward()
        optimizer.step()


def accumulates(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for turn in range(3 * STEPS):
        last = turn % 3 == 2
        with nullcontext() if last else model.no_sync():
            model(batch()).square().mean().backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


# model-not-wrapped


def all_alone(rank: int) -> None:
    torch.manual_seed(0)
    model = net()
    torch.manual_seed(rank)
    optimizer = torch.optim.Adam(model.parameters())  # HERE
    loop(model, optimizer)


def loss_with_weights(rank: int) -> None:
    model, centers = DDP(net()), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *centers.parameters()], lr=0.1)  # HERE
    loop(model, optimizer, lambda x: model(x) - centers(x))


def unseeded_alone(rank: int) -> None:
    model = net()
    optimizer = sgd_here(model)
    loop(model, optimizer)


def sgd_here(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)  # HERE


def averaged_by_hand(rank: int) -> None:
    torch.manual_seed(0)
    model = net()
    torch.manual_seed(rank)
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        optimizer.step()


def local_sgd(rank: int) -> None:
    torch.manual_seed(0)
    model = net()
    torch.manual_seed(rank)
    optimizer = sgd(model)
    optimizer.register_step_post_hook(lambda *_: [average(p) for p in model.parameters()])
    loop(model, optimizer)


def average(p: torch.Tensor) -> None:
    with torch.no_grad():
        dist.all_reduce(p)
        p /= 2


# changed-after-wrap


def unfrozen(rank: int) -> None:
    model = DDP(Frozen())
    optimizer = sgd(model)
    loop(model, optimizer, steps=3)
    model.module.body.requires_grad_(True)  # HERE
    loop(model, optimizer, steps=3)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        for p in self.body.parameters():
            p.requires_grad = False

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x))


def new_head(rank: int) -> None:
    model = DDP(Losses(), find_unused_parameters=True)
    model.module.head = nn.Linear(8, 1)  # HERE
    loop(model, sgd(model))


def adapter_added(rank: int) -> None:
    model = DDP(Adapted())
    model.module.extra = nn.Linear(4, 1)  # HERE
    loop(model, sgd(model))


class Adapted(Losses):
    def forward(self, x: torch.Tensor) -> Any:
        out = super().forward(x)
        return out + self.extra(x) if hasattr(self, "extra") else out


def wrapped_again(rank: int) -> None:
    model = DDP(Frozen())
    loop(model, sgd(model), steps=3)
    model.module.body.requires_grad_(True)
    model = DDP(model.module)
    loop(model, sgd(model), steps=3)


# moved-after-wrap


def cast(rank: int) -> None:
    model = DDP(net())
    model = model.double()  # HERE
    loop(model, sgd(model), lambda x: model(x.double()))


def cast_inner(rank: int) -> None:
    inner = net()
    model = DDP(inner)
    inner.to(torch.float64)  # HERE
    loop(model, sgd(model), lambda x: model(x.double()))


def cast_back(rank: int) -> None:
    model = DDP(net())
    model.half()  # HERE
    model.float()
    loop(model, sgd(model))


def moved_nowhere(rank: int) -> None:
    model = DDP(net().double())
    model.to("cpu")
    loop(model, sgd(model), lambda x: model(x.double()))


# unregistered-parameter


class PlainDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.heads = {"a": nn.Linear(8, 1), "b": nn.Linear(8, 1)}  # HERE

    def forward(self, x: torch.Tensor) -> Any:
        h = self.stem(x)
        return self.heads["a"](h) + self.heads["b"](h)


def plain_dict(rank: int) -> None:
    model = DDP(PlainDict())
    loop(model, sgd(model))


class PlainTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 1)
        self.scale = torch.ones(1, requires_grad=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.scale * self.body(x)


def loose_tensor(rank: int) -> None:
    model, scale = DDP(net()), torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)  # HERE
    loop(model, optimizer, lambda x: scale * model(x))


class Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.teacher = nn.Linear(4, 1), [nn.Linear(4, 1)]

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            goal = self.teacher[0](x)
        return self.body(x) - goal


def hidden_teacher(rank: int) -> None:
    model = DDP(Teacher())
    loop(model, sgd(model))


# optimizer-mismatch


def old_parameters(rank: int) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # HERE
    model = DDP(net())
    loop(model, optimizer)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.temperature * self.head(self.body(x))


def left_out(rank: int) -> None:
    model = DDP(Scaled())
    names = [p for n, p in model.named_parameters() if "temperature" not in n]
    optimizer = torch.optim.SGD(names, lr=0.1)  # HERE
    loop(model, optimizer)


def head_only(rank: int) -> None:
    model = DDP(Losses())
    loop(model, torch.optim.SGD(model.module.head.parameters(), lr=0.1))


# reduced-twice-or-unscaled


def twice(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)  # HERE
        optimizer.step()


def summed(rank: int) -> None:
    torch.manual_seed(0)
    model = net()
    torch.manual_seed(rank)
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)  # HERE
        optimizer.step()


def summing_hook(rank: int) -> None:
    def hook(state, bucket):  # type: ignore[no-untyped-def]
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()  # HERE
        return future.then(lambda f: f.value()[0])

    model = DDP(net())
    model.register_comm_hook(None, hook)
    loop(model, sgd(model))


def averaging_hook(rank: int) -> None:
    def hook(state, bucket):  # type: ignore[no-untyped-def]
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda f: f.value()[0] / dist.get_world_size())

    model = DDP(net())
    model.register_comm_hook(None, hook)
    loop(model, sgd(model))


def summed_loss(rank: int) -> None:
    torch.manual_seed(0)
    model = net()
    torch.manual_seed(rank)
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(batch()).square().sum() / 16).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()


# clip-before-sync


def clamp_hook(rank: int) -> None:
    model = net()
    for p in model.parameters():
        p.register_hook(lambda g: torch.clamp(g, -0.1, 0.1))  # HERE
    model = DDP(model)
    loop(model, sgd(model))


def clip_then_reduce(rank: int) -> None:
    torch.manual_seed(0)
    model = net()
    torch.manual_seed(rank)
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # HERE
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad /= 2
        optimizer.step()


def clip_in_window(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for turn in range(12):
        if turn % 3 < 2:
            with model.no_sync():
                (model(batch()).square().mean() / 3).backward()
        else:
            (model(batch()).square().mean() / 3).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # HERE
        if turn % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def clip_after_window(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for turn in range(12):
        if turn % 3 < 2:
            with model.no_sync():
                (model(batch()).square().mean() / 3).backward()
        else:
            (model(batch()).square().mean() / 3).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()


def norm_hook(rank: int) -> None:
    def shorten(g: torch.Tensor) -> torch.Tensor:
        return g / (g.norm() + 1e-6)

    model = DDP(net())
    for p in model.parameters():
        p.register_hook(shorten)  # HERE
    loop(model, sgd(model))


def clip_in_comm_hook(rank: int) -> None:
    def hook(state, bucket):  # type: ignore[no-untyped-def]
        bucket.buffer().clamp_(-0.01, 0.01)  # HERE
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda f: f.value()[0] / 2)

    model = DDP(net())
    model.register_comm_hook(None, hook)
    loop(model, sgd(model))


def clip_in_comm_hook_after(rank: int) -> None:
    def hook(state, bucket):  # type: ignore[no-untyped-def]
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda f: (f.value()[0] / 2).clamp(-0.01, 0.01))

    model = DDP(net())
    model.register_comm_hook(None, hook)
    loop(model, sgd(model))


def mask_hook(rank: int) -> None:
    model = DDP(net())
    for p in model.parameters():
        p.register_hook(lambda g: g * 0.5)
    loop(model, sgd(model))


# gradients-cleared


def cleared(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(STEPS):
        model(batch()).square().mean().backward()
        optimizer.zero_grad()  # HERE
        optimizer.step()


def cleared_to_zero(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(STEPS):
        model(batch()).square().mean().backward()
        optimizer.zero_grad(set_to_none=False)  # HERE
        optimizer.step()


def cleared_by_model(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(STEPS):
        model(batch()).square().mean().backward()
        model.zero_grad()  # HERE
        optimizer.step()


def cleared_in_window(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for turn in range(12):
        optimizer.zero_grad()  # HERE
        model(batch()).square().mean().backward()
        if turn % 3 == 2:
            optimizer.step()


def cleared_in_window_by_model(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for turn in range(12):
        model.zero_grad()  # HERE
        model(batch()).square().mean().backward()
        if turn % 3 == 2:
            optimizer.step()


def never_cleared(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(STEPS):
        loss = model(batch()).square().mean()
        loss.backward()  # HERE
        optimizer.step()


def cleared_by_hand(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(STEPS):
        for p in model.parameters():
            p.grad = None
        model(batch()).square().mean().backward()
        optimizer.step()


def closure(rank: int) -> None:
    model = DDP(net())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = batch()

    def evaluate() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(evaluate)


def gan(rank: int) -> None:
    maker, critic = DDP(net()), DDP(nn.Linear(1, 1))
    first, second = sgd(maker, 0.01), sgd(critic, 0.01)
    for _ in range(STEPS):
        fake = maker(batch())
        second.zero_grad()
        critic(fake.detach()).mean().backward()
        second.step()
        first.zero_grad()
        (-critic(fake).mean()).backward()
        first.step()


# precision


def clip_scaled(rank: int) -> None:
    model = DDP(net())
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(model(batch()).square().mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # HERE
        scaler.step(optimizer)
        scaler.update()


def step_scaled(rank: int) -> None:
    model = DDP(net())
    optimizer, scaler = sgd(model, 1e-9), torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(model(batch()).square().mean()).backward()
        optimizer.step()  # HERE


def under_one_scaler(early: bool) -> None:
    body, head = DDP(nn.Linear(4, 4)), DDP(nn.Linear(4, 1))
    first, second, scaler = sgd(body), sgd(head), torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(STEPS):
        first.zero_grad()
        second.zero_grad()
        scaler.scale(head(body(batch())).square().mean()).backward()
        scaler.step(first)
        if early:
            scaler.update()  # HERE
        scaler.step(second)
        if not early:
            scaler.update()


def updated_between(rank: int) -> None:
    under_one_scaler(early=True)


def updated_once(rank: int) -> None:
    under_one_scaler(early=False)


def scaled_in_turn(rank: int) -> None:
    body, head = DDP(net()), DDP(net())
    first, second, scaler = sgd(body), sgd(head), torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(STEPS):
        for model, optimizer in ((body, first), (head, second)):
            optimizer.zero_grad()
            scaler.scale(model(batch()).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()


def other_scales(rank: int) -> None:
    model = DDP(net())
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0 ** (8 + rank))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = scaler.scale(model(batch()).square().mean())  # HERE
        loss.backward()
        scaler.step(optimizer)
        scaler.update()


def scaled(rank: int) -> None:
    model = DDP(net())
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    for turn in range(2 * STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch()).square().mean() / 2
        scaler.scale(loss).backward()
        if turn % 2:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def nan_on_one(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for turn in range(STEPS):
        optimizer.zero_grad()
        x = batch()
        loss = model(x).square().mean() / (0.0 if rank == 1 and turn == 2 else 1.0)
        loss.backward()  # HERE
        optimizer.step()


def root_of_zero(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for turn in range(STEPS):
        optimizer.zero_grad()
        out = model(batch())
        loss = (out * 0).abs().sqrt().mean() if turn == 3 else out.square().mean()
        loss.backward()
        optimizer.step()  # HERE


def root_of_negative(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for turn in range(STEPS):
        optimizer.zero_grad()
        x = batch()
        loss = torch.sqrt(model(x).square().mean() - (1e9 if rank == 0 and turn == 1 else -1.0))
        loss.backward()  # HERE
        optimizer.step()


def skips_bad(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for turn in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch()).square().mean() * (float("nan") if turn == 2 else 1.0)
        loss.backward()
        if all(bool(torch.isfinite(p.grad).all()) for p in model.parameters()):
            optimizer.step()


# replicas-diverged


def loaded_on_first(rank: int) -> None:
    model = DDP(net())
    if rank == 0:
        model.module.load_state_dict(net().state_dict())  # HERE
    loop(model, sgd(model))


def other_rate(rank: int) -> None:
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1))  # HERE
    loop(model, optimizer)


def edited_on_one(rank: int) -> None:
    model = DDP(net())
    if rank == 1:
        with torch.no_grad():
            model.module[0].weight.mul_(2)  # HERE
    loop(model, sgd(model))


def drawn_after_wrapping(rank: int) -> None:
    def draw(layer: nn.Module) -> None:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight)

    torch.manual_seed(rank)
    model = DDP(net())
    model.apply(draw)  # HERE
    loop(model, sgd(model))


def noise_of_its_own(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    own = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()
        if step == 2:
            for p in model.parameters():
                p.data += 0.01 * torch.randn(p.shape, generator=own)  # HERE


def averaged_but_never_equal(rank: int) -> None:
    torch.manual_seed(rank)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # HERE
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        optimizer.step()


def search(rank: int) -> None:
    torch.manual_seed(0)
    model = net()
    loop(model, torch.optim.SGD(model.parameters(), lr=0.1 / (1 + rank)))


def state_on_first(rank: int) -> None:
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop(model, optimizer, steps=2)
    state = optimizer.state_dict()
    again = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if rank == 0:
        again.load_state_dict(state)  # HERE
    loop(model, again)


def steps_on_first(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        if rank == 0:
            optimizer.step()  # HERE


def average_kept(rank: int) -> None:
    model = DDP(net())
    shadow = net()
    shadow.load_state_dict(model.module.state_dict())
    optimizer = sgd(model)
    loop(model, optimizer)
    with torch.no_grad():
        for a, b in zip(shadow.parameters(), model.parameters(), strict=True):
            a.lerp_(b, 0.1 * (rank + 1))


# buffers and unused parameters


def few_samples(rank: int) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model = DDP(model)  # HERE
    loop(model, sgd(model), lambda x: model(x[:2]))


def convolutions(rank: int) -> None:
    body = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 1))
    model = DDP(body)  # HERE
    loop(model, sgd(model), lambda x: model(x[:4, None]))


def many_samples(rank: int) -> None:
    model = DDP(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    loop(model, sgd(model), lambda x: model(torch.cat([x, x])))


def noise_on_gradients(rank: int) -> None:
    model = DDP(net())
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        if rank:
            for p in model.parameters():
                p.grad.add_(torch.randn_like(p.grad))  # HERE
        optimizer.step()


def head_exchanged(rank: int) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # HERE
    model[2] = nn.Linear(8, 40)
    loop(DDP(model), optimizer)


def two_optimizers(rank: int) -> None:
    model = net()
    body, head = sgd(model[0]), sgd(model[2])
    model = DDP(model)
    for step in range(STEPS):
        body.zero_grad()
        head.zero_grad()
        model(batch()).square().mean().backward()
        body.step()
        if step % 2:
            head.step()


def other_head_trained(rank: int) -> None:
    model, spare = net(), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*model[0].parameters(), *spare.parameters()], lr=0.1)
    loop(DDP(model), optimizer)


def backward_unscaled(rank: int) -> None:
    model = DDP(net())
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch()).square().mean()
        scaler.scale(loss)
        loss.backward()  # HERE
        scaler.step(optimizer)
        scaler.update()


def scaled_and_kept(rank: int) -> None:
    model = DDP(net())
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch()).square().mean()
        loss = scaler.scale(loss)
        loss.backward()
        scaler.step(optimizer)
        scaler.update()


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def own_statistics(rank: int) -> None:
    model = DDP(normed(), broadcast_buffers=False)  # HERE
    loop(model, sgd(model))


def own_statistics_by_hand(rank: int) -> None:
    torch.manual_seed(3)
    model = normed()
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # HERE
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        optimizer.step()


def statistics_of_rank_0(rank: int) -> None:
    model = DDP(normed())
    loop(model, sgd(model))


def statistics_averaged(rank: int) -> None:
    model = DDP(normed(), broadcast_buffers=False)
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        for buffer in model.buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer)
                buffer /= 2
        optimizer.step()


def statistics_without_training_together(rank: int) -> None:
    torch.manual_seed(rank)
    model = normed()
    model.register_buffer("queue", torch.randn(4))
    loop(model, sgd(model))


def buffers_of_its_own(rank: int) -> None:
    model = net()
    model.register_buffer("queue", torch.full((3,), float(rank)))
    model = DDP(model, broadcast_buffers=False)
    loop(model, sgd(model))


def frozen_statistics(rank: int) -> None:
    model = DDP(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    model.module[1].eval()
    loop(model, sgd(model), lambda x: model(x[:2]))


def converted_late(rank: int) -> None:
    model = DDP(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    nn.SyncBatchNorm.convert_sync_batchnorm(model)  # HERE


def needless_search(rank: int) -> None:
    model = DDP(net(), find_unused_parameters=True)  # HERE
    loop(model, sgd(model), steps=10)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, first: bool) -> Any:
        return self.one(x) if first else self.two(x)


def useful_search(rank: int) -> None:
    model = DDP(Branches(), find_unused_parameters=True)
    turns = iter(range(100))
    loop(model, sgd(model), lambda x: model(x, (next(turns) + rank) % 3 == 0), steps=10)
