# SPDX-License-Identifier: Apache-2.0
"""Networks on their way into a file: which ones can, their inputs and outputs as plain tensors, example inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vision3d.errors import InputError
from vision3d.inference import size_multiple
from vision3d.models.normals.common import IRS_FOCAL_LENGTH
from vision3d.registry import find_model
from vision3d.zoo import create_model, load_card

UNTRAINED = "untrained"
# Height and width of these families stay free only where no map has to be resized between their scales.
_MULTIPLES = {"easnet": 24}
_REFUSED = {
    "covonet_sgm": "its semi-global matching runs in OpenCV: export the network inside it, covonet.rooms",
    "easnet_supernet": "it is many networks in one: export a sub-network, easnet_s, or easnet with --weights FILE",
}
_TRACE_SIZE = (128, 256)  # at least this large, and at least two multiples, so that no side looks like a constant
_LARGEST_SIDE = 16384
_LARGEST_BATCH = 1024
_SHIFT = 7  # pixels of disparity of the example pairs


@dataclass(frozen=True)
class Source:
    """A network to be exported.

    Attributes:
        network: in eval mode, on the CPU, float32.
        name: its registered name.
        weights: ``name.tag``, the name of a file, or ``untrained``.
        license: of the weights, or "".
    """

    network: nn.Module
    name: str
    weights: str
    license: str

    @property
    def task(self) -> str:
        """The task of the network."""
        return find_model(self.name).task

    @property
    def multiple(self) -> int:
        """What height and width are multiples of."""
        return math.lcm(size_multiple(self.network), _MULTIPLES.get(find_model(self.name).family, 1))

    @property
    def on_mesh(self) -> bool:
        """Whether the network samples the panorama by tables that belong to one size."""
        return self.task == "panorama" and hasattr(self.network, "level")


def load_network(name: str, weights: str | Path | None = None, untrained: bool = False) -> Source:
    """A registered network with the weights that shall go into a file.

    Args:
        name: registered name, optionally with a weight tag.
        weights: a checkpoint or a weight tag; None: the shipped ones.
        untrained: keep the values that the network starts training with (to time networks without shipped weights).

    Raises:
        InputError: a network that cannot be exported.
        UnknownNameError, ConfigError, WeightsError: see ``create_model``.
    """
    base, _, tag = name.partition(".")
    check_exportable(base)
    card = load_card(base)
    if untrained:
        if weights is not None or tag:
            raise InputError("--untrained takes no weights: leave out either")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return Source(create_model(base), base, UNTRAINED, "")
    if weights is None and not tag and card.default_weights is None:
        raise InputError(f"no weights are shipped for '{base}': pass --weights FILE, or --untrained for a file to time")
    network = create_model(name, pretrained=True if weights is None else str(weights))
    chosen = tag if weights is None else str(weights)
    shipped = card.default_weights if not chosen else next((w for w in card.weights if w.tag == chosen), None)
    if shipped is not None:
        return Source(network, base, shipped.name, shipped.license)
    return Source(network, base, Path(chosen).name, "")


def source_of(model: str | nn.Module) -> Source:
    """The network to be exported from a name, or from a module that ``create_model`` built.

    Raises:
        InputError: a module that is not of the zoo, or a network that cannot be exported.
    """
    if isinstance(model, str):
        return load_network(model)
    name = getattr(model, "name", None)
    if not isinstance(name, str):
        raise InputError(
            f"{type(model).__name__} has no registered name: pass a network of create_model, or set its 'name'"
        )
    check_exportable(name)
    return Source(model.cpu().float().eval(), name, "own", "")


def check_exportable(name: str) -> None:
    """Raise InputError, with the mend, for a network that cannot be exported."""
    task = find_model(name).task
    if name in _REFUSED:
        raise InputError(f"{name} cannot be exported: {_REFUSED[name]}")
    if task not in ("stereo", "normals", "panorama"):
        raise InputError(f"{name} cannot be exported: its task is '{task}'; stereo, normals and panorama can")


class PlainOutputs(nn.Module):
    """A network whose answer is a tuple of tensors instead of a data class."""

    inputs: tuple[str, ...]
    fields: tuple[str, ...]

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def _answer(self, *inputs: Tensor) -> dict[str, Tensor]:
        answer = self.network(*inputs)
        return {name: value for name in self.fields if (value := getattr(answer, name)) is not None}

    def output_names(self, inputs: tuple[Tensor, ...]) -> tuple[str, ...]:
        """The fields that the network answers."""
        with torch.no_grad():
            return tuple(self._answer(*inputs))


class _PlainStereo(PlainOutputs):
    inputs, fields = ("left", "right"), ("disparity", "confidence")

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._answer(left, right).values())


class _PlainNormals(PlainOutputs):
    inputs, fields = ("left", "right", "intrinsics", "doffs"), ("disparity", "normals")

    def forward(self, left: Tensor, right: Tensor, intrinsics: Tensor, doffs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._answer(left, right, intrinsics, doffs).values())


class _PlainPanorama(PlainOutputs):
    inputs, fields = ("image",), ("depth", "faces")

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._answer(image).values())


def plain_outputs(source: Source) -> PlainOutputs:
    """The network of ``source`` with tensors in and tensors out."""
    kinds = {"stereo": _PlainStereo, "normals": _PlainNormals, "panorama": _PlainPanorama}
    return kinds[source.task](source.network)


def trace_size(source: Source, size: tuple[int, int] | None) -> tuple[int, int]:
    """(height, width) that the network is traced with: ``size`` rounded up to its multiple, or a small one.

    Raises:
        InputError: a panorama that is not twice as wide as high, or a size below the smallest.
    """
    multiple = source.multiple
    if source.task == "panorama":
        from vision3d.panorama import network_height

        if size is not None and size[1] != 2 * size[0]:
            raise InputError(
                f"--size {size[0]}x{size[1]}: a panorama is twice as wide as high, {size[0]}x{2 * size[0]}"
            )
        default = network_height(source.network) if source.on_mesh else max(_TRACE_SIZE[0], 2 * multiple)
        height = -(-(size[0] if size is not None else default) // multiple) * multiple
        return height, 2 * height
    wanted = (max(side, 2 * multiple) for side in _TRACE_SIZE) if size is None else size
    height, width = (-(-side // multiple) * multiple for side in wanted)
    least = smallest_size(source)
    if height < least[0] or width < least[1]:
        raise InputError(f"--size {height}x{width} is too small for {source.name}: take {least[0]}x{least[1]} or more")
    return height, width


def smallest_size(source: Source) -> tuple[int, int]:
    """Smallest (height, width) of a graph with free sides: maps of one row or column would be traced as constants."""
    side = max(2 * source.multiple, 16)
    return (side, 2 * side) if source.task == "panorama" else (side, side)


def free_dimensions(source: Source, batch: bool, size: bool) -> tuple[dict[int, object], ...]:
    """What stays free of each input, as torch.export takes it."""
    pairs = torch.export.Dim("batch", min=1, max=_LARGEST_BATCH)
    first: dict[int, object] = {0: pairs} if batch else {}
    image = dict(first)
    if size:
        multiple, least = source.multiple, smallest_size(source)[0] // source.multiple
        rows = torch.export.Dim("rows", min=least, max=_LARGEST_SIDE // multiple)
        columns = torch.export.Dim("columns", min=least, max=_LARGEST_SIDE // multiple)
        panorama = source.task == "panorama"
        image[2] = multiple * rows if multiple > 1 else rows
        image[3] = 2 * multiple * rows if panorama else multiple * columns if multiple > 1 else columns
    images = (image,) if source.task == "panorama" else (dict(image), dict(image))
    return (*images, dict(first), dict(first)) if source.task == "normals" else images


def example_inputs(task: str, batch: int, height: int, width: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Inputs of a network: smooth random texture; pairs are shifted by 7 pixels, cameras 90 degrees wide."""
    generator = torch.Generator().manual_seed(seed)
    wide = width + _SHIFT
    canvas = torch.zeros(batch, 3, height, wide)
    for cell in (1, 4, 16):
        noise = torch.rand(batch, 3, height // cell + 2, wide // cell + 2, generator=generator)
        canvas += nn.functional.interpolate(noise, scale_factor=float(cell), mode="bilinear")[..., :height, :wide] / 3
    if task == "panorama":
        return (canvas[..., :width].contiguous(),)
    left, right = canvas[..., :width].contiguous(), canvas[..., _SHIFT:].contiguous()
    if task == "stereo":
        return left, right
    return left, right, nominal_camera(batch, height, width, width / 2, width / 2), torch.zeros(batch)


def nominal_camera(
    batch: int, height: int, width: int, fx: float = IRS_FOCAL_LENGTH, fy: float = IRS_FOCAL_LENGTH
) -> Tensor:
    """Intrinsics [B, 3, 3] with the principal point in the middle of the image."""
    matrix = [[fx, 0.0, (width - 1) / 2], [0.0, fy, (height - 1) / 2], [0.0, 0.0, 1.0]]
    return torch.tensor(matrix).expand(batch, 3, 3).contiguous()
