import pytest
import torch
from torch import nn
from torch.nn import functional

from attemper.models import build
from attemper.models.vit import HEAD, Attention, TokenBatchNorm, ViT


def test_it_calls_torchs_attention(narrow, monkeypatch):
    model, images = narrow("vit", (3, 8, 8)), torch.rand(2, 3, 8, 8)
    usual, calls = functional.scaled_dot_product_attention, []

    def counted(query, key, value):
        calls.append(tuple(query.shape))
        assert query.shape == key.shape == value.shape
        return usual(query, key, value)

    plain = model(images)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    assert torch.equal(model(images), plain)
    assert calls == [(2, 1, 5, 64)] * 12


def test_attention_against_one_written_out():
    torch.manual_seed(0)
    attention, tokens = Attention(2 * HEAD), torch.randn(3, 5, 2 * HEAD)
    query, key, value = attention.qkv(tokens).split(2 * HEAD, -1)
    heads = []
    for part in (slice(0, HEAD), slice(HEAD, None)):
        weights = (query[..., part] @ key[..., part].mT / 8).softmax(-1)
        heads.append(weights @ value[..., part])
    torch.testing.assert_close(attention(tokens), attention.out(torch.cat(heads, -1)))


@pytest.mark.parametrize(
    ("sides", "given", "patch", "grid"),
    [
        ((32, 32), None, 4, (8, 8)),
        ((64, 28), None, 4, (16, 7)),
        ((30, 31), None, 4, (8, 8)),
        ((1, 5), None, 4, (1, 2)),
        ((224, 224), None, 16, (14, 14)),
        ((97, 64), None, 16, (7, 4)),
        ((8, 8), 5, 5, (2, 2)),
        ((8, 8), 20, 20, (1, 1)),
    ],
)
def test_patches(sides, given, patch, grid):
    with torch.device("meta"):
        body = ViT((1, *sides), "tiny", 1.0, False, given)
    assert body.patches.kernel_size == body.patches.stride == (patch, patch)
    assert body.positions.shape[1] == 1 + grid[0] * grid[1]


def test_part_of_a_patch_is_filled_up_with_standardised_zeros_at_the_right_and_the_bottom(narrow):
    model, larger = narrow("vit", (3, 9, 7)), narrow("vit", (3, 12, 8))
    model.standardise.set([0.5, 0.4, 0.3], [0.2, 0.2, 0.2])
    larger.load_state_dict(model.state_dict())
    images = torch.rand(2, 3, 9, 7)
    by_hand = model.standardise.mean.expand(2, 3, 12, 8).clone()
    by_hand[:, :, :9, :7] = images
    torch.testing.assert_close(model(images), larger(by_hand))


def test_width_is_a_multiple_of_the_heads():
    for multiplier, width in ((1.0, 192), (0.5, 128), (0.01, 64), (2.0, 384), (1.1, 192)):
        with torch.device("meta"):
            model = build("vit-tiny", image_shape=(1, 8, 8), classes=2, width_multiplier=multiplier)
        assert model.classifier.in_features == width


def test_batch_norm_over_tokens(narrow):
    tokens = torch.randn(4, 5, 3) * 2 + 1
    normed = TokenBatchNorm(3)(tokens)
    assert normed.shape == (4, 5, 3)
    torch.testing.assert_close(normed.mean((0, 1)), torch.zeros(3), rtol=0, atol=1e-6)
    torch.testing.assert_close(normed.var((0, 1), correction=0), torch.ones(3), rtol=1e-4, atol=0)
    for batch_norm in (True, False):
        kinds = [type(m) for m in narrow("vit", batch_norm=batch_norm).modules()]
        assert kinds.count(TokenBatchNorm) == (25 if batch_norm else 0)
        assert kinds.count(nn.LayerNorm) == (0 if batch_norm else 25)


def test_positions_tell_patches_apart(narrow):
    model = narrow("vit", (1, 8, 8)).eval()
    images = torch.rand(1, 1, 8, 8)
    swapped = torch.cat([images[..., 4:], images[..., :4]], -1)
    assert not torch.allclose(model(images), model(swapped), atol=1e-5)
    model.body.positions.data.zero_()
    torch.testing.assert_close(model(images), model(swapped))


def test_first_weights(narrow):
    model = narrow("vit", (3, 8, 8), classes=100)
    assert model.classifier.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.body.positions.std().item() == pytest.approx(0.02, rel=0.2)
    assert model.body.patches.weight.std().item() == pytest.approx(48**-0.5, rel=0.05)
