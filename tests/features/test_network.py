"""Networks as pure functions of their tensors, and the errors for unsuitable ones."""

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from skscalablegp.features import (
    ACTIVATIONS,
    make_network,
    network_from_numpy,
    network_to_numpy,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(m=9, d=3):
    return torch.randn(m, d, generator=seeded(7), dtype=torch.float64)


def normed(d):
    return nn.Sequential(nn.Linear(d, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 2))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_layers_are_products_and_activations(activation):
    network = make_network(3, (5, 4), activation)
    params = network.initial(seeded(), torch.float64)
    W, b, V, c = (p.numpy() for p in params)
    X = rows()

    def act(z):
        return ACTIVATIONS[activation](torch.tensor(z)).numpy()

    assert_allclose(network(params, X), act(act(X.numpy() @ W.T + b) @ V.T + c), rtol=1e-12)
    assert (network.n_features_in, network.n_features, network.n_trainable) == (3, 4, 4)


@pytest.mark.parametrize("extractor", [(), None])
def test_no_layers_are_the_identity(extractor):
    network, X = make_network(3, extractor), rows()
    assert network.initial(seeded()) == [] and network.n_features == 3
    assert torch.equal(network([], X), X)


def test_one_width_may_be_a_number():
    assert make_network(3, 7).widths == (3, 7)


def test_initial_features_keep_the_scale_of_the_rows():
    network = make_network(50, (400, 400))
    Z = network(network.initial(seeded()), torch.randn(200, 50, generator=seeded(1)))
    assert 0.8 < float(Z.square().mean()) < 1.4


def test_a_module_is_the_function_it_was():
    network, X = make_network(3, normed), rows()
    params = network.initial(seeded(), torch.float64)
    module = normed(3).double()
    module.load_state_dict(
        dict(zip([n for n, _ in module.named_parameters()], params, strict=True))
    )
    torch.testing.assert_close(network(params, X), module(X).detach())
    assert (network.n_features, network.n_trainable) == (2, len(params))


def test_a_modules_weights_follow_the_generator_and_leave_the_global_seed_alone():
    network, state = make_network(3, normed), torch.get_rng_state()
    first, again, other = (network.initial(seeded(s)) for s in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_a_given_module_starts_where_it_is_and_stays_there():
    module = normed(3).double()
    before = [p.detach().clone() for p in module.parameters()]
    network = make_network(3, module)
    params = network.initial(seeded(), torch.float64)
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
    expected = network(params, rows())
    with torch.no_grad():
        for p in (*params, *module.parameters()):
            p.add_(1.0)
    torch.testing.assert_close(network(before, rows()), expected)
    assert all(
        torch.equal(a, b)
        for a, b in zip(network.initial(seeded(), torch.float64), before, strict=True)
    )


def test_frozen_statistics_are_a_function_of_a_row():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout())
    with pytest.raises(ValueError, match="batch norm"):
        make_network(3, module)
    network = make_network(3, module.eval())
    params = network.initial(seeded(), torch.float64)
    torch.testing.assert_close(network(params, rows()), module.double()(rows()).detach())


class Shifted(nn.Module):
    """A trained weight, a frozen one and a buffer."""

    def __init__(self, d):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d), requires_grad=False)
        self.weight = nn.Parameter(torch.ones(d))
        self.register_buffer("shift", torch.randn(d))

    def forward(self, X):
        return X * self.weight * self.scale + self.shift


def test_buffers_and_frozen_parameters_come_last():
    network = make_network(3, Shifted)
    params = network.initial(seeded(), torch.float64)
    assert network.n_trainable == 1 and len(params) == 3
    torch.testing.assert_close(network(params, rows()), rows() + params[2])


@pytest.mark.parametrize("extractor", [(4,), Shifted, Shifted(3)])
def test_gradients_reach_parameters_and_rows(extractor):
    network = make_network(3, extractor, "tanh")
    params = network.initial(seeded(), torch.float64)[: network.n_trainable]
    fixed = network.initial(seeded(), torch.float64)[network.n_trainable :]

    def value(X, *trained):
        return network([*trained, *fixed], X)

    inputs = [t.requires_grad_(True) for t in (rows(4), *params)]
    assert torch.autograd.gradcheck(value, inputs)


@pytest.mark.parametrize("extractor", [(4,), Shifted, Shifted(3)])
def test_arrays_and_pickles_give_the_network_back(extractor):
    network = make_network(3, extractor)
    params = network.initial(seeded())
    arrays = network_to_numpy(params)
    assert all(isinstance(a, np.ndarray) for a in arrays)
    assert b"torch" not in pickle.dumps(arrays)
    copy = pickle.loads(pickle.dumps(network))
    Z = copy(network_from_numpy(pickle.loads(pickle.dumps(arrays)), torch.float32), rows().float())
    assert torch.equal(Z, network(params, rows().float()))


class Log(nn.Module):
    def forward(self, X):
        return torch.log(X)


@pytest.mark.parametrize(
    "factory, error, message",
    [
        (lambda d: nn.Sequential(nn.Linear(d, 4), nn.BatchNorm1d(4)), ValueError, "batch norm"),
        (lambda d: nn.Sequential(nn.Linear(d, 4), nn.Dropout()), ValueError, "Dropout"),
        (lambda d: nn.Softmax(dim=0), ValueError, "depend on the other rows"),
        (lambda d: nn.Flatten(0), ValueError, r"turned \(8, 3\) into \(24,\)"),
        (lambda d: nn.Linear(d + 1, 2), ValueError, "8 rows of 3 columns"),
        (lambda d: Log(), ValueError, "NaN or infinity for 8 of 8 rows"),
        (lambda d: 3, TypeError, "returned int for 3"),
        (nn.Linear(4, 2), ValueError, "8 rows of 3 columns"),
    ],
)
def test_modules_that_define_no_kernel_are_refused(factory, error, message):
    with pytest.raises(error, match=message):
        make_network(3, factory)


@pytest.mark.parametrize("sizes", [(0,), (3, -1), (2.5,), "ab", [[2], [3]]])
def test_wrong_layers(sizes):
    with pytest.raises(ValueError, match="feature_extractor must be positive integers"):
        make_network(3, sizes)


def test_unknown_activation_lists_the_known():
    with pytest.raises(ValueError, match="'swish'.*'relu'.*'tanh'"):
        make_network(3, (4,), "swish")


def test_modules_leave_the_seeds_of_gpus_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", None)
    state = torch.get_rng_state()
    weights = [
        make_network(3, lambda q: nn.Linear(q, 2)).initial(torch.Generator().manual_seed(0))[0]
        for _ in "ab"
    ]
    assert torch.equal(*weights)
    assert torch.equal(torch.get_rng_state(), state)
