"""The simulated device refuses what a GPU refuses, counts its waits, and computes right."""

import gc
import pickle
import threading

import numpy as np
import pytest
import torch
from simulated import simulated

GPU = "cuda"


@pytest.fixture
def gpu():
    with simulated() as device:
        yield device


@pytest.fixture
def x(gpu):
    return torch.arange(12.0).reshape(4, 3).to(GPU)


HOST = torch.ones(4, 3)
MIXED = {
    "host added": lambda x: x + HOST,
    "device added": lambda x: HOST + x,
    "in place": lambda x: x.add_(HOST),
    "in place on the host": lambda x: HOST.add_(x),
    "a row in place": lambda x: HOST[0].mul_(x[0]),
    "a number of the device": lambda x: HOST * x[0, 0],
    "a number of the host in place": lambda x: torch.tensor(1.0).add_(x[0, 0]),
    "a number in a list": lambda x: torch.stack([x[0, 0], torch.tensor(1.0)]),
    "joined": lambda x: torch.cat([x, HOST]),
    "a product": lambda x: x.T @ HOST,
    "out": lambda x: torch.mul(x, x, out=torch.empty(4, 3)),
    "rows of the host": lambda x: HOST[torch.arange(2, device=GPU)],
    "chosen rows": lambda x: x.index_select(0, torch.tensor([1])),
    "put rows": lambda x: x.index_put_((torch.arange(2, device=GPU),), HOST[:2]),
    "where": lambda x: torch.where(x > 1, x, HOST),
    "a mask": lambda x: x.masked_fill_(HOST > 0, 0.0),
    "sorted": lambda x: torch.searchsorted(HOST[0], x),
    "a loss": lambda x: torch.nn.functional.mse_loss(x, HOST),
}


@pytest.mark.parametrize("mix", MIXED.values(), ids=MIXED)
def test_devices_do_not_mix(mix, x):
    with pytest.raises(RuntimeError, match="same device"):
        mix(x)


def test_what_may_come_from_the_host(x, gpu):
    """Numbers beside elements, indices of rows, and copies; the last two are sent."""
    two = torch.tensor(2.0)
    assert ((x * two + 1).cpu() == 2 * torch.arange(12.0).reshape(4, 3) + 1).all()
    assert torch.where(x > 5, two, x).device == x.device
    gpu.forget()
    assert x[torch.tensor([0, 2])].tolist() == [[0, 1, 2], [6, 7, 8]]
    assert x[[1]].tolist() == x[np.array([1])].tolist() == [[3, 4, 5]]
    x[0] = torch.zeros(3)
    assert sum(gpu.sent.values()) == 4
    there = torch.empty(3)
    there.copy_(x[1])
    assert there.tolist() == [3, 4, 5]


def test_numbers_of_the_device_are_not_numpys(x):
    for read in (lambda: x.numpy(), lambda: np.asarray(x), lambda: np.sqrt(x)):
        with pytest.raises(TypeError, match="to numpy"):
            read()
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(x)


def test_random_numbers_need_a_generator_of_the_device(x):
    ours, theirs = torch.Generator(GPU).manual_seed(0), torch.Generator().manual_seed(0)
    for draw in (
        lambda g: torch.randn(3, device=GPU, generator=g),
        lambda g: torch.randperm(3, device=GPU, generator=g),
        lambda g: x.normal_(generator=g),
    ):
        assert draw(ours).device == x.device
        with pytest.raises(RuntimeError, match="for generator"):
            draw(theirs)
    with pytest.raises(RuntimeError, match="for generator"):
        torch.randn(3, generator=ours)


def test_views_share_memory_with_their_tensor(x, gpu):
    before = gpu.allocated
    x[1].zero_()
    x.diagonal().add_(10)
    x.T[2, 3:] -= 1
    assert gpu.allocated == before
    assert x.tolist() == [[10, 1, 2], [0, 10, 0], [6, 7, 18], [9, 10, 10]]
    rows = x[:1].clone()
    assert rows.squeeze_(0).shape == (3,) and rows.tolist() == [10, 1, 2]
    assert rows.unsqueeze_(1).mT.tolist() == [[10, 1, 2]] and (x.T @ x[:, 0]).shape == (3,)
    assert x.mul_(2) is x and x.device == torch.device("cuda:0") and x.is_cuda and not x.is_cpu


def _loss(X, w, eye):
    z = (X @ w).tanh() * 1
    z[0].mul_(3)
    gram = torch.linalg.cholesky(w.T @ w + eye)
    return (
        torch.cdist(z, z[1:]).square().sum()
        + gram.sum()
        + w[torch.arange(2, device=w.device)].exp().sum()
    )


def test_gradients_are_those_of_the_host(gpu):
    generator = torch.Generator().manual_seed(0)
    X, w = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (5, 3))
    grads = []
    for device in ("cpu", GPU):
        there = w.clone().to(device).requires_grad_()
        _loss(X.to(device), there, torch.eye(3, dtype=torch.float64, device=device)).backward()
        grads.append(there.grad)
    assert grads[1].device.type == "cuda" and torch.equal(grads[0], grads[1].cpu())


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.full((), 3.0, device=x.device) * x.square()


def test_functions_with_a_backward_of_their_own(x):
    (grad,) = torch.autograd.grad(_Cube.apply(x.requires_grad_()).sum(), x)
    assert torch.equal(grad.cpu(), 3 * x.detach().cpu().square())


def test_networks_and_optimizers_work_on_it(x):
    network = torch.nn.Linear(3, 1).to(GPU)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (network(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


READS = {
    "item": lambda x: x[0, 0].item(),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool((x > 0).any()),
    "if": lambda x: 1 if x[0, 0] > 0 else 0,
    "list": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "mask": lambda x: x[x > 3],
    "nonzero": lambda x: torch.nonzero(x > 3),
    "unique": lambda x: torch.unique(x),
    "equal": lambda x: torch.equal(x, x),
    "a factor that is checked": lambda x: torch.linalg.cholesky(
        x[:3].T @ x[:3] + 9 * torch.eye(3, device=GPU)
    ),
    "sent": lambda x: torch.ones(3).to(GPU),
    "data": lambda x: torch.tensor([1.0], device=GPU),
    "synchronised": lambda x: torch.cuda.synchronize(),
}
FREE = {
    "arithmetic": lambda x: (x @ x.T).sum(0),
    "a filled mask": lambda x: x.masked_fill_(x > 3, 0.0),
    "a mask that is assigned": lambda x: x.__setitem__(x > 3, 0.0),
    "rows": lambda x: x[torch.arange(2, device=GPU)],
    "new": lambda x: torch.zeros(3, device=GPU),
    "a factor": lambda x: torch.linalg.cholesky_ex(x[:3]),
    "sent ahead": lambda x: torch.ones(3).to(GPU, non_blocking=True),
    "here": lambda x: float(torch.ones(3).sum()),
    "shape": lambda x: (len(x), x.shape, x.dtype, x.device),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_waits_are_counted(read, x, gpu):
    gpu.forget()
    read(x)
    assert sum(gpu.waits.values()) >= 1


@pytest.mark.parametrize("work", FREE.values(), ids=FREE)
def test_what_waits_for_nothing(work, x, gpu):
    gpu.forget()
    work(x)
    assert not gpu.waits


def test_counts_name_lines_of_the_package(gpu):
    from sklearn.gaussian_process.kernels import RBF

    from skscalablegp.kernels import compile_kernel
    from skscalablegp.linalg.operators import KernelOperator

    kernel = compile_kernel(RBF(), 3)
    H = KernelOperator(kernel, kernel.theta0, torch.randn(30, 3).to(GPU))
    gpu.forget()
    H.bilinear_grad(torch.ones(30, 1, device=GPU))
    (place,) = gpu.waits
    assert place.startswith("linalg/operators/_kernel.py:")
    assert gpu.launches["mm"] >= 2 and "view" not in gpu.launches


def test_memory_is_limited_and_given_back():
    with simulated(memory=1000) as gpu:
        a = torch.zeros(100, device=GPU)
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.zeros(1000, device=GPU)
        b = a + 1
        assert gpu.allocated == gpu.peak == 800 and torch.cuda.mem_get_info() == (200, 1000)
        with pytest.raises(torch.OutOfMemoryError):
            a * 2
        part = b[:10]
        del b
        assert gpu.allocated == 800  # a view keeps its tensor's memory
        del part
        gc.collect()
        assert gpu.allocated == 400
        a * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3, dtype=torch.float64, device="mps"),
        lambda: torch.as_tensor(np.zeros(3), device="mps"),
        lambda: torch.zeros(3, device="mps").double(),
        lambda: torch.zeros(3, device="mps").sum(dtype=torch.float64),
        lambda: torch.linalg.vector_norm(torch.zeros(3, device="mps"), dtype=torch.float64),
    ],
)
def test_dtypes_that_a_device_lacks(make):
    with simulated("mps:0"):
        torch.zeros(3, device="mps").half()
        with pytest.raises(TypeError, match="no|float64"):
            make()


def test_other_devices_are_not_there(gpu):
    with pytest.raises(RuntimeError, match="not there"):
        torch.zeros(3, device="cuda:1")
    with pytest.raises(RuntimeError, match="not there"):
        torch.zeros(3).to("xpu")


def test_tensors_end_with_their_block_and_thread():
    with simulated():
        x = torch.ones(3, device=GPU)
        caught = []

        def work():
            try:
                x * 2
            except RuntimeError as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(caught) == 1
    with pytest.raises(RuntimeError, match="another thread or block"):
        x * 2
    assert not torch.cuda.is_available()
