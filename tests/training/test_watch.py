import math

from attemper.training import watch


def test_a_training_that_guesses_has_stalled(tiny):
    options = tiny(temperature=1000.0).resolved()
    said = watch.stalled(10, 100, math.log(50) - 1e-3, 50, options)
    assert said.startswith(
        "After 10 of 100 steps the loss is 3.9110, that of guessing among 50 classes (ln 50 = 3.9120)"
    )
    assert 'lr_rule = "times-temperature"' in said
    assert "stands still at temperature 1000" in said
    for factor in (0.99, 1.01):
        assert watch.stalled(10, 100, factor * math.log(50), 50, options) is None
    compensated = options.replaced(lr_rule="times-temperature")
    assert "times-temperature" not in watch.stalled(10, 100, math.log(50), 50, compensated)


def test_a_training_that_diverged_is_told_what_to_try(tiny):
    said = watch.diverged(7, 100, tiny(lr=0.3, temperature=2.0).resolved())
    assert "no longer finite at step 7 of 100, at temperature 2 with lr = 0.3" in said
    assert "Try lr = 0.1, clip = 1 or a smaller init_scale" in said
