import json
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import attemper as at
from attemper.errors import ArgumentError, FileError

numbers = st.floats(1e-6, 1e6)
any_numbers = st.floats(-1e6, 1e6)
tensors = st.lists(st.floats(1e-2, 1e2), min_size=1, max_size=5).flatmap(
    lambda values: st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]).map(
        lambda dtype: torch.tensor(values, dtype=dtype)
    )
)
simple = st.one_of(
    st.builds(at.Constant, numbers),
    st.builds(at.Adaptive, st.lists(any_numbers, min_size=1, max_size=6), st.floats(0, 1), st.none() | st.floats(2, 9)),
    st.builds(at.EntropyTarget, numbers, st.floats(1, 1e3), st.integers(1, 20)),
    st.builds(at.LogLength, st.integers(2, 10**9)),
    st.builds(at.SSMax, numbers | tensors | tensors.map(nn.Parameter)),
    st.builds(at.Yarn, st.floats(1, 1e3)),
    st.builds(at.Llama4, numbers, st.floats(0, 10)),
    st.builds(at.CriticalScale, numbers),
)
keys = st.tuples(st.integers(0, 99), st.none() | st.integers(0, 99))
policies = st.recursive(
    simple,
    lambda inner: st.builds(at.PerHead, st.dictionaries(keys, inner, max_size=3), st.none() | inner),
    max_leaves=5,
)


@given(policies)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_saved_is_loaded(tmp_path, policy):
    at.save_policy(policy, tmp_path / "policy.json")
    loaded = at.load_policy(str(tmp_path / "policy.json"))
    assert loaded == policy and type(loaded) is type(policy)
    assert repr(loaded) == repr(policy)


def test_a_parameter_stays_one(tmp_path):
    for scale in (torch.ones(2), nn.Parameter(torch.ones(2))):
        at.save_policy(at.SSMax(scale), tmp_path / "policy.json")
        assert isinstance(at.load_policy(tmp_path / "policy.json").scale, nn.Parameter) == isinstance(
            scale, nn.Parameter
        )


def test_the_file_reads_well_and_holds_no_counts(tmp_path):
    policy = at.Adaptive()
    with pytest.warns(UserWarning, match="5.94"):
        policy.inverse_temperature(at.RowStatistics.from_logits(torch.zeros(1, 500)))
    at.save_policy(at.PerHead({(0, None): policy}), tmp_path / "policy.json")
    assert json.loads((tmp_path / "policy.json").read_text()) == {
        "attemper_policy": 1,
        "policy": {
            "kind": "PerHead",
            "policies": [
                {
                    "layer": 0,
                    "head": None,
                    "policy": {
                        "kind": "Adaptive",
                        "coefficients": [-0.037, 0.481, -2.3, 4.917, -1.791],
                        "min_entropy": 0.5,
                        "max_entropy": None,
                    },
                }
            ],
            "default": None,
        },
    }


class Own(at.Constant):
    pass


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Own(1.0), "policy: a policy of this package .*Constant, .* or PerHead.*Own"),
        (at.Constant, "policy: a policy of this package .*Constant'"),
        (None, "policy: a policy of this package .*NoneType"),
        (at.PerHead({(0, 2): Own(1.0)}), r"policy\[0, 2\]: a policy of this package .*Own"),
        (at.PerHead({}, Own(1.0)), r"policy\.default: a policy of this package .*Own"),
    ],
)
def test_what_is_not_saved(policy, message, tmp_path):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        at.save_policy(policy, tmp_path / "policy.json")
    assert not list(tmp_path.iterdir())


def test_a_scale_that_learned_what_cannot_be_is_not_saved(tmp_path):
    policy = at.SSMax(nn.Parameter(torch.ones(2)))
    policy.scale.data[0] = math.nan
    with pytest.raises(ArgumentError, match="^scale: a finite number above 0, or a tensor of such"):
        at.save_policy(policy, tmp_path / "policy.json")


CONSTANT = {"kind": "Constant", "temperature": 2.0}
TENSOR = {"values": [1.0], "dtype": "float32", "learned": False}


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ([], "policy: .* is accepted as its kind, but None came"),
        ({"temperature": 2.0}, "policy: .* is accepted as its kind, but None came"),
        ({**CONSTANT, "kind": "Own"}, "policy: Constant, .* or PerHead is accepted as its kind, but 'Own' came"),
        ({**CONSTANT, "kind": ["Constant"]}, "policy: .* is accepted as its kind"),
        ({"kind": "Constant"}, r"policy: the fields temperature are accepted, but \[\] came"),
        ({**CONSTANT, "more": 1}, r"policy: the fields temperature are accepted, but \['more', 'temperature'\] came"),
        ({**CONSTANT, "temperature": 0}, "temperature: a finite number above 0"),
        ({**CONSTANT, "temperature": "2"}, "temperature: a finite number above 0"),
        ({"kind": "PerHead", "policies": {}, "default": None}, "policy: a list of policies is accepted"),
        (
            {"kind": "PerHead", "policies": [3], "default": None},
            r"policy\.policies\[0\]: the fields layer, head, policy",
        ),
        ({"kind": "PerHead", "policies": [], "default": {}}, r"policy\.default: .* is accepted as its kind"),
        (
            {"kind": "PerHead", "policies": [{"layer": -1, "head": 0, "policy": CONSTANT}], "default": None},
            r"layer of \(-1, 0\): a whole number from 0",
        ),
        (
            {"kind": "PerHead", "policies": [{"layer": 1, "head": 0, "policy": CONSTANT}] * 2, "default": None},
            r"policy\.policies\[1\]: a layer and a head that did not come before",
        ),
        (
            {"kind": "PerHead", "policies": [{"layer": [1], "head": 0, "policy": CONSTANT}], "default": None},
            r"policy\.policies\[0\]: a layer and a head",
        ),
        ({"kind": "SSMax", "scale": {**TENSOR, "dtype": "int8"}}, r"policy\.scale: a dtype \(float64, .*bfloat16\)"),
        ({"kind": "SSMax", "scale": {**TENSOR, "dtype": []}}, r"policy\.scale: a dtype"),
        ({"kind": "SSMax", "scale": {**TENSOR, "values": ["a"]}}, r"policy\.scale: a list of numbers"),
        ({"kind": "SSMax", "scale": {**TENSOR, "values": [[1.0]]}}, "scale: a number, or a floating-point tensor"),
        ({"kind": "SSMax", "scale": {"values": [1.0]}}, r"policy\.scale: the fields values, dtype, learned"),
    ],
)
def test_damaged_files(policy, message, tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"attemper_policy": 1, "policy": policy}))
    with pytest.raises(FileError, match=f"policy.json is damaged: {message}"):
        at.load_policy(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "holds no policy: a file that attemper.save_policy wrote"),
        ('{"policy": {}}', "holds no policy"),
        ('{"attemper_policy": 2, "policy": {}}', "is of version 2, and this attemper reads version 1"),
        ("[]", "is damaged: a JSON object was expected"),
        ("{", "is not JSON"),
    ],
)
def test_files_that_are_none_of_ours(text, message, tmp_path):
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises(FileError, match=message):
        at.load_policy(tmp_path / "policy.json")
    with pytest.raises(FileError, match="^cannot read"):
        at.load_policy(tmp_path / "none.json")
