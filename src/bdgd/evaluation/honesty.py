"""Where the authors' released code departs from the paper's formulas, and where we depart from either: each choice as trainings to compare.

All cases are the short training of `epistemic` with one thing changed (the last one: all at once), sampled with one thing
changed; what a choice does is the difference to a case that has everything else alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bdgd.evaluation.epistemic import Training

GRADIENT_SCALE = 61.0  # of the preset: about ||A|| for 30 views


@dataclass(frozen=True)
class Variant(Training):
    """A training that changes more of the recipe than `Training` can. also: entries (section of the preset, key, value)."""

    label: str = ""
    also: tuple[tuple[str, str, float | str], ...] = ()

    @property
    def name(self) -> str:
        return f"honesty-{self.label}-seed{self.seed}"

    def changes(self) -> dict[str, dict[str, Any]]:
        changed = super().changes()
        for section, key, value in self.also:
            changed[section][key] = value
        return changed


@dataclass(frozen=True)
class Case:
    """One training and how it is sampled; in float32 on every device unless the case is about that."""

    key: str
    name: str
    training: Training
    draw: str = "weights"
    precision: str = "float32"


@dataclass(frozen=True)
class Choice:
    """What the paper says, what the authors' code does, what we do.

    cases: pairs of keys of `CASES`, one that does not make our choice and the one that it is compared with.
    """

    name: str
    paper: str
    code: str
    ours: str
    cases: tuple[tuple[str, str], ...]


OURS, RELEASED_KL = Training("mean_field"), Training("mean_field", 16384.0)
_SCALE_1 = Variant("mean_field", label="scale-1", also=(("model", "gradient_scale", 1.0),))
_SCALE_SQUARED = Variant("mean_field", label="scale-squared", also=(("model", "gradient_scale", GRADIENT_SCALE**2),))
_FRESH = Variant("mean_field", label="fresh", also=(("training", "initialise", "fresh"),))
_BATCH = Variant("mean_field", label="batch-128", also=(("training", "batch", 128),))
_SCHEDULE = (("initialise", "fresh"), ("batch", 128), ("learning_rate", 1e-3), ("last_learning_rate", 1e-4))
#: The code's loss is a sum over the batch, where ours is a mean; its sigma_k sqrt(P) starts at 1.
_RECIPE = (*_SCHEDULE, ("weight_decay", 1e-3 / 128), ("first_noise_level", 1 / 128))
_RELEASED = Variant("mean_field", 16384.0, label="released", also=tuple(("training", key, value) for key, value in _RECIPE))

CASES = (
    Case("ours", "ours, with the paper's kl_weight 1", OURS),
    Case("kl16384", "kl_weight 16384", RELEASED_KL),
    Case("pixels", "noise per pixel", OURS, "pixels"),
    Case("kl16384-pixels", "kl_weight 16384, noise per pixel", RELEASED_KL, "pixels"),
    Case("bfloat16", "draws in bfloat16", OURS, precision="bfloat16"),
    Case("kl16384-bfloat16", "kl_weight 16384, draws in bfloat16", RELEASED_KL, precision="bfloat16"),
    Case("scale-1", "gradient of the unit-norm pair, scale 1", _SCALE_1),
    Case("scale-squared", "gradient without any scaling, scale ‖A‖²", _SCALE_SQUARED),
    Case("fresh", "fresh blocks", _FRESH),
    Case("batch-128", "batches of 128", _BATCH),
    Case("released", "all of the code's recipe", _RELEASED, "pixels"),
)
CHOICES = (
    Choice(
        "objective",
        "log-likelihood of all pixels + KL",
        "log σ² once per image: KL × 16384",
        "an explicit `kl_weight`: 1 in this table, 100 in the models of the tables",
        (("kl16384", "ours"),),
    ),
    Choice(
        "draws at test time",
        "one Θ per sample (Algorithm 2)",
        "independent noise in every pixel, its variance at least 1e-6",
        "one Θ per sample",
        (("pixels", "ours"), ("kl16384-pixels", "kl16384")),
    ),
    Choice(
        "precision of draws",
        "not said",
        "float32",
        "float32 on a CPU, bfloat16 inside the blocks on a GPU",
        (("bfloat16", "ours"), ("kl16384-bfloat16", "kl16384")),
    ),
    Choice(
        "gradient input",
        "Aᵀ(Ax − y)",
        "A scaled by 1/‖A‖, Aᵀ not",
        f"both scaled, times {GRADIENT_SCALE:g}, about the code's ‖A‖",
        (("scale-1", "ours"), ("scale-squared", "ours")),
    ),
    Choice("start of a block", "not said", "fresh weights", "weights of the block before", (("fresh", "ours"),)),
    Choice("batch", "not said", "128", "16", (("batch-128", "ours"),)),
    Choice(
        "all of it",
        "150 epochs per block",
        "the above, learning rate 1e-3 to 1e-4, weight decay 1e-3 of a loss summed over the batch, σ_k √P from 1 on",
        "the above, learning rate 2e-3 to 1e-5, no weight decay",
        (("released", "ours"),),
    ),
)
#: What was chosen on which images is no case of one training; `selection` measures it.
VALIDATION = Choice(
    "validation set", "a second ellipse dataset", "the test set, ten ellipses and Shepp-Logan", "images that no table scores", ()
)
