import torch

from attemper.training.seeds import derived, generator, permutation, seed_device


def test_every_key_has_a_seed_of_its_own():
    keys = [(seed, what, step) for seed in range(3) for what in ("order", "step") for step in range(50)]
    assert len({derived(*key) for key in keys}) == len(keys)
    assert derived(1, "step", 2) == derived(1, "step", 2)
    assert derived(1, 23) != derived(12, 3)
    assert 0 <= min(derived(*key) for key in keys)
    assert max(derived(*key) for key in keys) < 2**63


def test_a_generator_and_a_device_draw_what_their_key_says():
    first, second = (torch.rand(4, generator=generator(0, "augment", 7)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, torch.rand(4, generator=generator(0, "augment", 8)))
    draws = []
    for _ in range(2):
        seed_device(torch.device("cpu"), 5)
        draws.append(torch.rand(4))
    assert torch.equal(*draws)


def test_an_epoch_sees_every_image_once_and_the_next_in_another_order():
    first, second = permutation(60, 0, 0), permutation(60, 0, 1)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(60))
    assert not torch.equal(first, second)
    assert not torch.equal(first, permutation(60, 1, 0))
