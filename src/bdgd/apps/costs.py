"""What it would cost to train a model that is not shipped: the command, and about how many seconds on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from bdgd.apps.presets import Preset, preset_names, read_preset

GPU = "one NVIDIA H200"
#: Images that pass a training step of one block per second, by batch: measured on that GPU over whole trainings (128: over steps alone).
BLOCK_IMAGES_PER_SECOND = {16: 19_000, 32: 24_000, 128: 37_000}
#: The same where all K blocks, or iterations of primal-dual, are trained as a whole: images times K per second.
UNROLLED_IMAGES_PER_SECOND = 10_000


@dataclass(frozen=True)
class Cost:
    """How a missing model is made. seconds is None where no preset of that name is there yet."""

    model: str
    command: str
    seconds: float | None

    def told(self) -> str:
        """The cost as a sentence."""
        if self.seconds is None:
            return f"no model {self.model} is shipped, and there is no preset of that name yet"
        return f"no model {self.model} is shipped; {self.command} makes it in about {_rounded(self.seconds)} on {GPU}"


def training_cost(model: str, seed: int = 0) -> Cost:
    """The cost of the shipped model of that name, whose preset has the same name."""
    run = f"runs/{model}-seed{seed}"
    command = f"bdgd train {model} -o {run}" + (f" --seed {seed}" if seed else "")
    return Cost(model, command, training_seconds(read_preset(model)) if model in preset_names() else None)


def training_seconds(preset: Preset) -> float:
    """Blocks times epochs times images over images per second, of every stage of a preset."""
    images, epochs, jointly = preset.train, preset.epochs("training"), preset.epochs("finetuning")
    if preset.kind == "primal-dual":
        return int(preset.argument("model", "iterations")) * epochs * images / UNROLLED_IMAGES_PER_SECOND
    blocks, batch = int(preset.argument("model", "blocks")), int(preset.argument("training", "batch"))
    nearest = min(BLOCK_IMAGES_PER_SECOND, key=lambda known: abs(known - batch))
    return blocks * images * (epochs / BLOCK_IMAGES_PER_SECOND[nearest] + jointly / UNROLLED_IMAGES_PER_SECOND)


def _rounded(seconds: float) -> str:
    """Two digits: more would promise too much."""
    return f"{float(f'{seconds:.2g}'):.0f} s"
