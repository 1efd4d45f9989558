"""One PyTorch worker of the network benchmark: DistributedDataParallel over gloo, and its hooks."""

import argparse
import copy
import os

import torch
import torch.distributed as dist
from matrix import MODELS, TORCH_FLOOR
from serve import serve
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

# With DDP's buckets of 25 MB PowerSGD's all-reduces start from callbacks, in an order that may
# differ between workers, which then wait for each other.
_ONE_BUCKET_MB = 10_000


def data_parallel(network, **options):
    """DDP without a second copy of the gradients."""
    return DistributedDataParallel(network, gradient_as_bucket_view=True, **options)


def powersgd(network, rank):
    """DDP with PowerSGD, after the two dense steps that its error feedback needs."""
    ddp = data_parallel(network, bucket_cap_mb=_ONE_BUCKET_MB)
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=rank, start_powerSGD_iter=2
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp


def half(network):
    """DDP whose gradients travel as float16."""
    ddp = data_parallel(network)
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return ddp


ARMS = {
    TORCH_FLOOR: lambda network: network,
    "DDP": data_parallel,
    "DDP fp16": half,
    "DDP PowerSGD 1": lambda network: powersgd(network, 1),
    "DDP PowerSGD 2": lambda network: powersgd(network, 2),
    "DDP PowerSGD 4": lambda network: powersgd(network, 4),
}


def main():
    """Serves the arms of PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    model = MODELS[parser.parse_args().model]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = []
    for inputs, outputs in zip(model.widths, model.widths[1:], strict=False):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1])
    torch.manual_seed(int(os.environ["RANK"]))
    x = torch.randn(model.batch, model.widths[0])
    y = torch.randint(0, model.widths[-1], (model.batch,))
    loss_of = torch.nn.CrossEntropyLoss()

    def build(arm):
        trained = copy.deepcopy(network)
        for parameter, shared in zip(trained.parameters(), network.parameters(), strict=True):
            parameter.data = shared.data  # arms share what they train, to save memory
        trained = ARMS[arm](trained)
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(trained(x), y)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step, {"framework": f"PyTorch {torch.__version__}"}

    serve(build)


if __name__ == "__main__":
    main()
