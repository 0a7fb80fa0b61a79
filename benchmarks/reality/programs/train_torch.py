# mypy: ignore-errors
"""Small PyTorch trainings over gloo: DDP, FSDP2, a pipeline of two stages, and a mixture of experts.

The program contains nothing of gangwatch: ``python -m gangwatch.torch train_torch.py PLAN`` observes it.
"""

import io

import torch
import torch.distributed as dist
from job import Job
from torch import nn

WIDTH = 256
MICROBATCHES = 2


def block():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())


class Kernel(torch.autograd.Function):
    """Waits for the device in the forward pass, and twice as long in the backward pass."""

    @staticmethod
    def forward(context, rows, job):
        context.job = job
        job.device(len(rows) / job.plan["work"] / 3)
        return rows.view_as(rows)

    @staticmethod
    def backward(context, gradient):
        context.job.device(len(gradient) / context.job.plan["work"] * 2 / 3)
        return gradient, None


class Device(nn.Module):
    """The part of a model's time that a device takes."""

    def __init__(self, job):
        super().__init__()
        self.job = job

    def forward(self, rows):
        if torch.is_grad_enabled() and not rows.requires_grad:
            rows = rows.requires_grad_()
        return Kernel.apply(rows, self.job)


def model(job):
    # The device is last, so that the backward pass waits for it before the gradients of the blocks are averaged.
    return nn.Sequential(*[nn.Sequential(block(), block()) for _ in range(job.plan["layers"] // 2)], Device(job))


class Data:
    """DistributedDataParallel or FSDP2 on a small perceptron."""

    def __init__(self, job):
        self.model = model(job)
        if job.plan["framework"] == "fsdp2":
            from torch.distributed.fsdp import fully_shard

            for one in self.model[:-1]:
                fully_shard(one)
            fully_shard(self.model)
        else:
            self.model = nn.parallel.DistributedDataParallel(self.model)
        self.parameters = list(self.model.parameters())

    def train(self, batch):
        self.model(torch.randn(batch, WIDTH)).square().mean().backward()

    def evaluate(self, batch):
        with torch.no_grad():
            self.model(torch.randn(batch, WIDTH))


class Pipeline:
    """Two stages with two microbatches; ranks of one stage average their gradients."""

    def __init__(self, job):
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        half = job.size // 2
        self.stage = job.rank // half
        chains = [dist.new_group([rank, rank + half]) for rank in range(half)]
        stages = [dist.new_group(list(range(first, first + half))) for first in (0, half)]
        self.model = model(job)
        self.parameters = list(self.model.parameters())
        self.peers, self.half = stages[self.stage], half
        stage = PipelineStage(self.model, self.stage, 2, torch.device("cpu"), group=chains[job.rank % half])
        self.schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=lambda made, wanted: (made - wanted).square().mean())

    def train(self, batch):
        batch = max(1, batch // MICROBATCHES) * MICROBATCHES
        if self.stage == 0:
            self.schedule.step(torch.randn(batch, WIDTH))
        else:
            self.schedule.step(target=torch.randn(batch, WIDTH))
        if self.half > 1:
            flat = torch.cat([parameter.grad.ravel() for parameter in self.parameters])
            dist.all_reduce(flat, group=self.peers)
            parts = flat.div_(self.half).split([parameter.numel() for parameter in self.parameters])
            for parameter, part in zip(self.parameters, parts, strict=True):
                parameter.grad.copy_(part.view_as(parameter))

    def evaluate(self, batch):
        with torch.no_grad():
            self.model(torch.randn(batch, WIDTH))


class Exchange(torch.autograd.Function):
    """Sends rows of a matrix to the ranks of their experts, and gradients back."""

    @staticmethod
    def forward(context, rows, sent, received):
        context.counts = sent, received
        made = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(made, rows.contiguous(), received, sent)
        return made

    @staticmethod
    def backward(context, gradient):
        sent, received = context.counts
        back = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(back, gradient.contiguous(), sent, received)
        return back, None, None


class Experts:
    """One expert a rank between two layers that DDP averages."""

    def __init__(self, job):
        self.job = job
        self.first = nn.parallel.DistributedDataParallel(block())
        self.last = nn.parallel.DistributedDataParallel(block())
        self.expert = model(job)
        self.parameters = [p for part in (self.first, self.last, self.expert) for p in part.parameters()]

    def train(self, batch):
        job, hidden = self.job, self.first(torch.randn(batch, WIDTH))
        share = torch.ones(job.size)
        if job.own["class"] == "hot-expert" and job.step >= job.own["from"]:
            share[job.own["expert"]] = job.own["popularity"]
        expert = torch.multinomial(share, batch, replacement=True)
        sent = torch.bincount(expert, minlength=job.size)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        sent, received = sent.tolist(), received.tolist()
        order = expert.argsort()
        tokens = self.expert(Exchange.apply(hidden[order], sent, received))
        self.last(Exchange.apply(tokens, received, sent)).square().mean().backward()

    def evaluate(self, batch):
        with torch.no_grad():
            self.last(self.first(torch.randn(batch, WIDTH)))


def main():
    job = Job()
    torch.set_num_threads(1)
    torch.manual_seed(job.plan["seed"] * 64 + job.rank)
    dist.init_process_group("gloo")
    training = {"pipeline": Pipeline, "moe": Experts}.get(job.plan["framework"], Data)(job)
    optimizer = torch.optim.SGD(training.parameters, lr=1e-4)
    compiled = None
    if job.own["class"] == "recompiles" and job.rank in job.own["ranks"]:
        compiled = torch.compile(nn.Sequential(block(), block()), dynamic=False, backend=job.own["backend"])
        compiled(torch.randn(1, WIDTH))
    loss = torch.zeros(1)
    dist.barrier()
    going = True
    while going:
        batch = job.load()
        training.train(batch)
        job.collect()
        if compiled is not None and job.due("recompiles"):
            compiled(torch.randn(2 + job.step // job.own["every"], WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if job.due("evaluation"):
            for _ in range(job.own["batches"]):
                training.evaluate(batch)
            dist.all_reduce(loss)
        if job.due("checkpoint-synchronous"):
            if job.rank == 0:
                for _ in range(job.own["times"]):
                    job.save(content(training))
            dist.all_reduce(loss)
        if job.due("checkpoint-asynchronous") and job.rank == 0:
            job.save_later(content(training))
        going = job.ended()


def content(training):
    """Return the parameters of this rank as bytes."""
    file = io.BytesIO()
    local = [getattr(p, "_local_tensor", p).detach() for p in training.parameters]
    torch.save(local * (1 + (1 << 22) // (1 + sum(4 * p.numel() for p in local))), file)
    return file.getvalue()


if __name__ == "__main__":
    main()
