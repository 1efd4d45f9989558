"""The user's compression arguments."""

import dataclasses
import inspect

import pytest

import tf_scalecom as sc
from tf_scalecom.wire.config import CompressionConfig


def test_defaults_are_those_of_the_optimizer():
    arguments = inspect.signature(sc.ScaleComOptimizer).parameters
    assert {field.name: field.default for field in dataclasses.fields(CompressionConfig)} == {
        name: arguments[name].default for name in CompressionConfig().get_config()
    }


def test_arguments_are_named_and_stay():
    with pytest.raises(TypeError):
        CompressionConfig(100)
    with pytest.raises(dataclasses.FrozenInstanceError):
        CompressionConfig().beta = 0.5
