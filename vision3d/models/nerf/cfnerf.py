# SPDX-License-Identifier: Apache-2.0
"""CF-NeRF (Yan et al., AAAI 2024, arXiv 2312.08760): a radiance field together with the cameras of its images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vision3d.errors import ConfigError, InputError, check_option_names
from vision3d.io.checkpoints import load_into
from vision3d.models.nerf.cameras import (
    DEFAULT_FIELD_OF_VIEW,
    CameraParameters,
    FocalForm,
    RotationForm,
    pixel_grid,
)
from vision3d.models.nerf.hash_grid import HashGridField
from vision3d.models.nerf.networks import Field, GaussianField, ReluField, SirenField
from vision3d.models.nerf.rendering import RenderedRays, Rendering, render_rays
from vision3d.registry import register_model

FieldName = Literal["siren", "relu", "gaussian", "hash_grid"]
FIELDS: dict[str, type[Field]] = {
    "siren": SirenField,
    "relu": ReluField,
    "gaussian": GaussianField,
    "hash_grid": HashGridField,
}
OFFICIAL_PREFIX = "fg_net.coarse_model."
_CAMERA_NAMES = ("phi", "t", "f")


@dataclass
class RenderedView:
    """A rendered image.

    Attributes:
        rgb: [3, H, W], clamped to [0, 1].
        depth: [1, H, W] z-depth, unit of the scene.
        opacity: [1, H, W] in [0, 1].
    """

    rgb: Tensor
    depth: Tensor
    opacity: Tensor


def make_field(name: str, options: Mapping[str, Any] | None = None) -> Field:
    """Build a field by name.

    Raises:
        ConfigError: an unknown name or option.
    """
    if name not in FIELDS:
        raise ConfigError(f"cfnerf: unknown field '{name}': choose {', '.join(FIELDS)}")
    given = dict(options or {})
    check_option_names(f"cfnerf field '{name}'", FIELDS[name].__init__.__annotations__.keys() - {"return"}, given)
    return FIELDS[name](**given)


class CFNeRF(nn.Module):
    """A radiance field and the cameras of the images that it is fitted to.

    Nothing is pretrained: a model is one scene. Fit it with :mod:`vision3d.training.nerf`.

    Args:
        field: "siren" (published results), "relu", "gaussian", or the fast "hash_grid".
        views, height, width, rotation, focal, field_of_view: see
            :class:`vision3d.models.nerf.cameras.CameraParameters`.
        field_options: keyword arguments of the field.
        rendering: keyword arguments of :class:`vision3d.models.nerf.rendering.Rendering`.

    Raises:
        ConfigError: an unknown or illegal option.
    """

    size_multiple = 1

    def __init__(
        self,
        field: FieldName = "siren",
        views: int = 1,
        height: int = 480,
        width: int = 640,
        *,
        rotation: RotationForm = "axis_angle",
        focal: FocalForm = "square",
        field_of_view: float = DEFAULT_FIELD_OF_VIEW,
        field_options: Mapping[str, Any] | None = None,
        rendering: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_option_names("cfnerf rendering", [item.name for item in fields(Rendering)], rendering or {})
        self.normalization = nn.Identity()
        self.rendering = Rendering(**(rendering or {}))
        self.field = make_field(field, field_options)
        self.cameras = CameraParameters(
            views, height, width, rotation=rotation, focal=focal, field_of_view=field_of_view
        )

    def forward(
        self,
        views: Tensor,
        pixels: Tensor,
        *,
        density_noise: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> RenderedRays:
        """Render pixels. In training mode the samples along the rays are stratified, in eval mode even.

        Args:
            views: [R] int64, frame of each ray.
            pixels: [R, 2] (column, row) counted from the image's corner; the first pixel's centre is (0.5, 0.5).
            density_noise: standard deviation of the noise on raw densities (1 in the published training).
            generator: source of all randomness.

        Raises:
            InputError: shapes that differ from the above, or frames that do not exist.
        """
        if views.dim() != 1 or tuple(pixels.shape) != (len(views), 2):
            raise InputError(f"views must be [R] and pixels [R, 2], got {list(views.shape)} and {list(pixels.shape)}")
        if len(views) and (int(views.min()) < 0 or int(views.max()) >= len(self.cameras)):
            raise InputError(
                f"views must lie in 0 to {len(self.cameras) - 1}, got {int(views.min())} to {int(views.max())}"
            )
        origins, directions = self.cameras.rays(views, pixels)
        return render_rays(
            self.field,
            origins,
            directions,
            self.rendering,
            random=self.training,
            density_noise=density_noise,
            generator=generator,
        )

    @torch.no_grad()
    def render_view(self, view: int) -> RenderedView:
        """Render the whole image of a frame at the cameras' present size, in chunks, without randomness."""
        height, width, device = self.cameras.height, self.cameras.width, self.cameras.t.device
        mode = self.training
        self.eval()
        parts = []
        try:
            for pixels in pixel_grid(height, width, device).split(self.rendering.rays_per_chunk):
                rays = self(torch.full((len(pixels),), view, device=device), pixels)
                parts.append(torch.cat([rays.rgb.clamp(0, 1), rays.depth[:, None], rays.opacity[:, None]], 1))
        finally:
            self.train(mode)
        image = torch.cat(parts).view(height, width, 5).permute(2, 0, 1)
        return RenderedView(image[:3], image[3:4], image[4:])

    def load_official_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the authors' checkpoint (network ``fg_net.coarse_model.*``, cameras ``phi``, ``t``, ``f``) or ours.

        The number of frames becomes that of the checkpoint. Cameras that a network checkpoint lacks stay as they are.

        Raises:
            WeightsError: names or shapes of another network; nothing is loaded.
        """
        found = _official_names(dict(_tensors(state_dict)))
        own = self.state_dict()
        if any(name.startswith("field.") for name in found):
            found.setdefault("field.progress", torch.tensor(1.0))
            found.update({name: own[name] for name in own if name.startswith("cameras.") and name not in found})
        frames = found.get("cameras.t")
        previous = self.cameras
        if frames is not None and frames.dim() == 2 and len(frames) != len(previous):
            self.cameras = CameraParameters(
                len(frames),
                previous.height,
                previous.width,
                rotation=previous.rotation_form,
                focal=previous.focal_form,
            ).to(previous.t)
        try:
            load_into(self, found)
        except BaseException:
            self.cameras = previous
            raise


def _tensors(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of nested dictionaries, by dotted name."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _tensors(value, f"{prefix}{name}.")
        elif isinstance(value, Tensor):
            yield f"{prefix}{name}", value


def _official_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our names for the authors' entries, wherever in the checkpoint they are; others keep theirs."""
    renamed = {}
    for name, value in tensors.items():
        last = name.rpartition(".")[2]
        if OFFICIAL_PREFIX in name:
            renamed["field." + name.partition(OFFICIAL_PREFIX)[2]] = value
        elif last in _CAMERA_NAMES:
            renamed[f"cameras.{last}"] = value.reshape(1) if last == "f" and value.dim() == 0 else value
        else:
            start = max(name.rfind("field."), name.rfind("cameras."), 0)
            renamed[name[start:]] = value
    return renamed


@register_model(task="nerf", family="cfnerf")
def cfnerf(**options: object) -> CFNeRF:
    """CF-NeRF's field with its cameras."""
    return CFNeRF(**options)  # type: ignore[arg-type]
