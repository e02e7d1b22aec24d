"""What is known about the arithmetic of the Neural Engine, chip by chip, as data.

Each rule carries its source and a confidence: "high" was measured on hardware and repeated or confirmed, "medium" was
measured once, "low" was inferred or carried over from another chip. The executor's ``ane`` mode obeys the rules; its
trace reports the hazards.

Sources: "probes" are the measurements on an M1 of the ane-guide project (its chapters on numerics); "Forge"
is the report on numerics of the Forge runtime (M6); "Apple" are Apple's rules for authors of Core AI models; #2690 is
an issue of coremltools.
"""

from dataclasses import dataclass
from typing import Any

from anemone.errors import ExecuteError

CHIPS = ("m1", "m2", "m3", "m4", "m5", "m6")
DEFAULT_CHIP = "m1"
"""The chip that was probed throughout."""


@dataclass(frozen=True)
class Rule:
    """One fact: ``value`` holds for ``chips`` (all when empty). The first rule of a name that fits a chip counts."""

    name: str
    value: Any
    chips: tuple[str, ...]
    says: str
    source: str
    confidence: str


RULES = (
    Rule("flush_products", False, ("m5",), "dot products keep subnormal operands and products", "probes", "medium"),
    Rule("flush_products", True, ("m1", "m6"), "dot products lose subnormal operands and products", "probes, Forge",
         "high"),
    Rule("flush_products", True, (), "taken to be as on M1", "not measured", "low"),
    Rule("product_limit", 2.0**15, ("m1",), "matmul, linear and convolutions of several taps, partial sums included, "
         "are infinite from 32768 on (32752 passes)", "probes", "high"),
    Rule("product_limit", float("inf"), (), "taken to reach 65504, as all else does", "not measured", "low"),
    Rule("slice_limit", 4095.0, ("m1", "m2"), "a slice of the last axis that starts beyond 0 passes a path that "
         "multiplies by 16: infinite from 4095 on", "probes", "high"),
    Rule("slice_limit", float("inf"), (), "mended from M3 on", "probes", "medium"),
    Rule("exp_limit", 11.094, (), "exp is infinite above 11.094", "probes, Forge", "high"),
    Rule("silu_bias", -0.001259, (), "silu is off by this much at 0, less further out", "probes, Forge", "high"),
    Rule("softplus_limit", 11.094, (), "softplus is 0 beyond exp's limit", "probes, Forge, #2690", "high"),
    Rule("gelu_bias", -0.000543, (), "gelu is off by this much at 0 (0.0059 at worst)", "probes", "medium"),
    Rule("log_of_zero", -45440.0, (), "log of 0; log, sqrt and rsqrt of negative numbers are 0", "probes", "medium"),
    Rule("round_squares", True, ("m1",), "reduce_sum_square rounds each square to fp16", "probes", "high"),
    Rule("round_squares", False, (), "taken to sum as other reductions do", "not measured", "low"),
)  # fmt: skip


@dataclass(frozen=True)
class Hazard:
    """A native operation that the hardware computes badly. ``severity``: "error" or "warning"."""

    kind: str
    severity: str
    says: str
    instead: str
    source: str


HAZARDS = (
    Hazard("silu", "error", "native silu is off by 0.00126 near 0: 6-12 % where its inputs are small",
           "0.5 * x * (1 + tanh(x / 2))", "probes, Forge"),
    Hazard("softplus", "error", "native softplus is 0 from about 11 on",
           "relu(x) + log(1 + exp(-abs(x)))", "probes, Forge, #2690"),
    Hazard("softplus_parametric", "error", "native softplus is 0 from about 11 on",
           "relu(x) + log(1 + exp(-abs(x))) with its two factors", "probes, Forge, #2690"),
    Hazard("reduce_log_sum_exp", "warning", "the sum of exp overflows from 65504 on",
           "subtract the maximum first", "#2690"),
    Hazard("sin", "warning", "off by 0.04 to 0.12 near seams, and not native before M3", "a table as input", "probes"),
    Hazard("cos", "warning", "off by 0.04 to 0.12 near seams, and not native before M3", "a table as input", "probes"),
    Hazard("atan", "warning", "off by 0.04 to 0.12 near seams", "a table as input", "probes"),
)  # fmt: skip


def chip_rules(chip: str) -> dict[str, Any]:
    """The value of every rule for a chip. Raises ExecuteError for an unknown one."""
    if chip not in CHIPS:
        raise ExecuteError(f"chip {chip!r} is not known; choose one of {', '.join(CHIPS)}")
    found: dict[str, Any] = {}
    for rule in RULES:
        if not rule.chips or chip in rule.chips:
            found.setdefault(rule.name, rule.value)
    return found
