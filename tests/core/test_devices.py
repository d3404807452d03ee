"""Names of devices, what they can do, and their memory."""

import pytest
import torch
from simulated import simulated

from skscalablegp._devices import device_or_cpu, has_float64, resolve_device
from skscalablegp._validation import available_memory


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture
def two_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_devices_without_cuda(no_cuda):
    assert resolve_device() == resolve_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(ValueError, match=f"device='{name}' is not available.* sees 'cpu'"):
            resolve_device(name)


def test_devices_with_cuda(two_cuda):
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda:0")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="sees 'cpu', 'cuda:0', 'cuda:1'"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "tpu:0", "cuda:one", "", None, 0])
def test_unknown_device_lists_the_known(name):
    with pytest.raises(ValueError, match="is unknown: use 'auto', 'cpu', 'cuda'"):
        resolve_device(name)


def test_devices_of_other_makers():
    with simulated("xpu:0", memory=2**20):
        assert resolve_device("auto") == resolve_device("xpu") == torch.device("xpu:0")
        assert has_float64(torch.device("xpu:0"))
        torch.xpu.get_device_properties().has_fp64 = False
        assert not has_float64(torch.device("xpu:0")) and resolve_device("auto").type == "cpu"
    with simulated("mps:0", memory=2**20):
        kept = torch.zeros(2**10, device="mps")
        assert resolve_device("mps") == torch.device("mps:0") and resolve_device().type == "cpu"
        assert not has_float64(torch.device("mps:0"))
        assert available_memory("mps:0") == 2**20 - kept.nbytes


def test_a_device_that_is_gone():
    assert device_or_cpu("cuda:0") == torch.device("cpu") == device_or_cpu("cpu")
    with simulated():
        assert device_or_cpu("cuda:0") == torch.device("cuda:0")
        assert device_or_cpu("cuda:1") == torch.device("cpu")
