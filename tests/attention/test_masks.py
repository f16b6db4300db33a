import pytest
import torch
from torch import Tensor

from attemper.attention.masks import seen_only

INF = torch.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_models_write_for_not_seen_becomes_minus_infinity(dtype):
    mask = torch.tensor([0.0, -5.0, -1e4, -1e9, torch.finfo(dtype).min, -INF, INF], dtype=torch.float64).to(dtype)
    assert seen_only(mask).tolist() == [*mask[:3].tolist(), -INF, -INF, -INF, INF]


def test_half_precision_has_a_least_number_of_its_own():
    mask = torch.tensor([-32000.0, -32752.0, -65504.0, -INF]).half()
    assert seen_only(mask).tolist() == [-32000.0, -INF, -INF, -INF]


def test_bool_masks_and_none_stay_as_they_are():
    mask = torch.tensor([True, False])
    assert seen_only(mask) is mask
    assert seen_only(None) is None


def test_an_expanded_mask_is_not_filled_with_memory():
    mask = torch.tensor([0.0, -1e9, -2.0]).expand(2, 4, 5, 3)
    found: Tensor = seen_only(mask)
    assert found.shape == mask.shape
    assert found[1, 2, 3].tolist() == [0.0, -INF, -2.0]
    assert found.untyped_storage().nbytes() == 3 * 4
    assert seen_only(torch.zeros(0, 3)).shape == (0, 3)


def test_a_learned_bias_keeps_its_gradient():
    bias = torch.tensor([1.0, -1e9, 2.0], requires_grad=True)
    seen_only(bias)[[0, 2]].square().sum().backward()
    assert bias.grad.tolist() == [2.0, 0.0, 4.0]
