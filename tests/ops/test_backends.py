"""The choice between back ends of kernels: by what each says of itself."""

import dataclasses
import logging

import absl.logging
import pytest
from cases import Case

from tf_scalecom.ops import backends, native, xla
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.selection import SELECTIONS

LAYOUT = Case("").layout((2_000,))


@dataclasses.dataclass
class Fake:
    """A back end's answers; it computes nothing."""

    name: str
    unsuited: str = ""
    problem: str | None = None
    lack: str | None = None

    @property
    def title(self):
        return f"{self.name} kernels"

    def suits(self):
        return not self.unsuited, self.unsuited or f"{self.name} is here"

    def unavailable(self):
        return self.problem

    def unsupported(self, layout: Layout):
        return self.lack


@pytest.fixture
def choose(monkeypatch, caplog):
    """A function from back ends, and the variable's value, to the chosen one's name and reason."""

    def among(*fakes, wanted="auto"):
        monkeypatch.setattr(backends, "BACKENDS", fakes)
        monkeypatch.setenv(backends.BACKEND_VARIABLE, wanted)
        backends.backend.cache_clear()
        chosen, reason = backends.backend()
        return chosen.name, reason

    absl_logger = absl.logging.get_absl_logger()
    monkeypatch.setattr(absl_logger, "propagate", True)
    caplog.set_level(logging.INFO, logger=absl_logger.name)
    yield among
    backends.backend.cache_clear()


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_auto_is_the_first_that_suits_and_runs(choose, caplog):
    assert choose(Fake("fast"), Fake("plain")) == ("fast", "fast is here")
    assert choose(Fake("fast", unsuited="no chip"), Fake("plain")) == ("plain", "no chip")
    assert warnings(caplog) == []  # that is no fault of anybody's
    assert choose(Fake("fast", problem="torn"), Fake("plain")) == ("plain", "torn")
    assert warnings(caplog) == ["tf_scalecom: plain kernels: torn."]


def test_a_back_end_that_is_asked_for_runs_or_says_why_not(choose):
    fakes = Fake("fast", unsuited="no chip"), Fake("plain")
    assert choose(*fakes, wanted="fast") == ("fast", "TF_SCALECOM_BACKEND=fast")
    assert choose(*fakes, wanted="plain") == ("plain", "TF_SCALECOM_BACKEND=plain")
    with pytest.raises(RuntimeError, match=r"Expected fast kernels, as TF_.*; received: torn\. "):
        choose(Fake("fast", problem="torn"), Fake("plain"), wanted="fast")
    with pytest.raises(ValueError, match=r"to be fast, plain or auto; received 'faster'"):
        choose(*fakes, wanted="faster")


def test_where_nothing_runs_every_reason_is_said(choose):
    with pytest.raises(RuntimeError, match=r"received: no chip; torn\. "):
        choose(Fake("fast", unsuited="no chip"), Fake("plain", problem="torn"))


def test_what_the_chosen_one_lacks_runs_on_the_last_and_is_said_once(choose, caplog):
    choose(Fake("fast", lack="speed"), Fake("other"), Fake("plain"))
    backends._log_once.cache_clear()
    assert [backends.kernels_for(LAYOUT).name for _ in range(2)] == ["plain", "plain"]
    said = [record.getMessage() for record in caplog.records]
    assert said.count("tf_scalecom: speed runs on plain kernels.") == 1
    choose(Fake("fast", lack="speed"), Fake("plain", lack="size"))
    with pytest.raises(ValueError, match=r"without speed \(fast kernels\), size \(plain kernels\)"):
        backends.kernels_for(LAYOUT)


def test_the_native_kernels_say_what_they_lack():
    def lack(**changes):
        tensor = dataclasses.replace(LAYOUT.tensors[0], **changes)
        return native.unsupported(dataclasses.replace(LAYOUT, tensors=(tensor,)))

    assert lack() is None
    assert lack(chunk_size=5_000, chunk_keep=16) is None
    assert lack(chunk_size=5_000, chunk_keep=17) == "chunk_keep above 16"
    assert lack(selection="exact", chunk_size=2_000, chunk_keep=17) is None
    assert lack(selection="another") == "selection='another'"
    assert lack(dtype="another") == "a compressed gradient of another"
    assert native.unsupported(dataclasses.replace(LAYOUT, value_dtype="float64")) == (
        "value_dtype='float64'"
    )


def test_the_plain_kernels_know_every_selection():
    assert xla._RULES.keys() == SELECTIONS.keys()
