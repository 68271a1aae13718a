# SPDX-License-Identifier: Apache-2.0
"""Error figures of panorama depth: per pixel of the panorama as published, and per area of the sphere.

Published tables average over the pixels of each image, then over the images; a pixel near a pole then counts as much as
one at the equator, which looks at up to H / 1.6 times the area. The sphere figures weigh each pixel by its solid angle
(Pano3D, arXiv 2109.02749, weighs by cos lat, which is the same up to the height of a pixel).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

import numpy as np

from vision3d.errors import InputError, UnknownNameError
from vision3d.geometry.panorama_mesh import pixel_solid_angles

DELTAS = (1, 2, 3)


@dataclass(frozen=True)
class PanoramaProtocol:
    """Which pixels count, and what is done before comparing. Metres.

    Attributes:
        name: as in tables.
        truth_limit: largest truth that counts, or None; truth must be positive and finite.
        clamp: (least, largest) that predictions are moved into, or None.
        clamp_truth: move the truth into ``clamp`` as well.
    """

    name: str
    truth_limit: float | None = None
    clamp: tuple[float, float] | None = None
    clamp_truth: bool = False


PROTOCOLS: dict[str, PanoramaProtocol] = {
    protocol.name: protocol
    for protocol in (
        PanoramaProtocol("all"),
        PanoramaProtocol("hohonet", clamp=(0.01, 10.0), clamp_truth=True),  # also BiFuse
        PanoramaProtocol("unifuse", truth_limit=10.0, clamp=(0.1, 10.0)),
    )
}


def panorama_errors(
    prediction: np.ndarray,
    truth: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    weights: np.ndarray | None = None,
    protocol: str = "all",
    alignment: str = "none",
) -> dict[str, float]:
    """The figures of one panorama, or of the faces of one mesh.

    Args:
        prediction, truth: distances of one shape; unknown = NaN, infinite or not positive.
        mask: bool of that shape, True where it shall count.
        weights: positive weights of that shape (or one that broadcasts to it); None: all alike.
        protocol: a name of ``PROTOCOLS``.
        alignment: "median" first multiplies the prediction by ``median(truth) / median(prediction)`` (unweighted, over
            the counted pixels that have a prediction).

    Returns:
        ``abs_rel`` (the tables' MRE), ``sq_rel``, ``mae``, ``rmse``, ``rmse_log`` (natural logarithm; OmniDepth,
        Pano3D), ``rmse_log10`` (HoHoNet, UniFuse), ``log10``; ``delta1`` ... ``delta3`` and ``density`` in percent;
        ``pixels``. Where there is no prediction, delta counts it as wrong and the others leave it out. NaN if none.

    Raises:
        InputError: arrays of different shapes, or another alignment.
        UnknownNameError: an unknown protocol.
    """
    rule = find_protocol(protocol)
    check_alignment(alignment)
    predicted, true = np.asarray(prediction, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    if predicted.shape != true.shape or (mask is not None and np.shape(mask) != true.shape):
        found = "" if mask is None else f", the mask {np.shape(mask)}"
        raise InputError(
            f"the prediction has shape {predicted.shape}, the truth {true.shape}{found}: they must be one size"
        )
    share = np.broadcast_to(1.0 if weights is None else np.asarray(weights, dtype=np.float64), true.shape)
    counted = np.isfinite(true) & (true > 0)
    if rule.truth_limit is not None:
        counted &= true <= rule.truth_limit
    if mask is not None:
        counted &= np.asarray(mask, dtype=bool)
    total, pixels = share[counted].sum(), int(counted.sum())
    counted &= np.isfinite(predicted) & (predicted > 0)
    predicted, true, share = predicted[counted], true[counted], share[counted]
    if alignment == "median" and true.size:
        predicted = predicted * (np.median(true) / np.median(predicted))
    if rule.clamp is not None:
        predicted = np.clip(predicted, *rule.clamp)
        true = np.clip(true, *rule.clamp) if rule.clamp_truth else true
    return {**_figures(predicted, true, share, float(total)), "pixels": pixels}


def _figures(predicted: np.ndarray, true: np.ndarray, share: np.ndarray, total: float) -> dict[str, float]:
    """Weighted means over the pixels with a prediction; delta and density relative to the ``total`` weight."""
    answered = float(share.sum())

    def mean(values: np.ndarray) -> float:
        return float((values * share).sum() / answered) if answered else float("nan")

    def percent(values: np.ndarray) -> float:
        return float(100 * share[values].sum() / total) if total else float("nan")

    error, logs, ratio = (
        np.abs(predicted - true),
        np.log(predicted / true),
        np.maximum(predicted / true, true / predicted),
    )
    figures = {
        "abs_rel": mean(error / true),
        "sq_rel": mean(np.square(error) / true),
        "mae": mean(error),
        "rmse": mean(np.square(error)) ** 0.5,
        "rmse_log": mean(np.square(logs)) ** 0.5,
        "rmse_log10": mean(np.square(logs)) ** 0.5 / float(np.log(10)),
        "log10": mean(np.abs(logs)) / float(np.log(10)),
    }
    for power in DELTAS:
        figures[f"delta{power}"] = percent(ratio < 1.25**power)
    return {**figures, "density": percent(np.ones(len(true), dtype=bool))}


def find_protocol(name: str) -> PanoramaProtocol:
    """The protocol of that name.

    Raises:
        UnknownNameError: there is none; near names are listed.
    """
    if name not in PROTOCOLS:
        raise UnknownNameError("panorama protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def check_alignment(name: str) -> None:
    """Raise InputError unless it is "none" or "median"."""
    if name not in ("none", "median"):
        raise InputError(f"alignment must be none or median, got '{name}'")


@dataclass
class PanoramaMetrics:
    """Means over images of the figures of each panorama, per pixel and per area of the sphere.

    Attributes:
        protocol: a name of ``PROTOCOLS``.
        alignment: "none" or "median".
        images: the figures of each image so far; those per area carry the prefix ``sphere_``.
    """

    protocol: str = "all"
    alignment: str = "none"
    images: list[dict[str, float]] = field(default_factory=list)

    def update(self, prediction: np.ndarray, truth: np.ndarray, mask: np.ndarray | None = None) -> dict[str, float]:
        """Add one panorama and return its figures; see :func:`panorama_errors`.

        Args:
            prediction, truth: [H, 2H] distances.
            mask: [H, 2H] bool, True where the pixel shall count.

        Raises:
            InputError: arrays of other shapes.
        """
        shape = np.shape(truth)
        if len(shape) != 2 or not shape[0] or shape[1] != 2 * shape[0]:
            raise InputError(f"a panorama must be [H, 2 H], got shape {shape}")
        figures = panorama_errors(prediction, truth, mask, protocol=self.protocol, alignment=self.alignment)
        area = pixel_solid_angles(shape[0])[:, None]
        sphere = panorama_errors(
            prediction, truth, mask, weights=area, protocol=self.protocol, alignment=self.alignment
        )
        figures |= {f"sphere_{name}": value for name, value in sphere.items() if name != "pixels"}
        self.images.append(figures)
        return figures

    def merge(self, other: PanoramaMetrics) -> PanoramaMetrics:
        """The figures over the images of both.

        Raises:
            InputError: they were counted with different settings.
        """
        if (self.protocol, self.alignment) != (other.protocol, other.alignment):
            raise InputError("only panorama metrics with the same protocol and alignment can be merged")
        return PanoramaMetrics(self.protocol, self.alignment, self.images + other.images)

    def compute(self) -> dict[str, float]:
        """The mean of each figure over the images in which it is a number (NaN if there are none), the sum of
        ``pixels``, and the number of ``images``.
        """
        names = self.images[0] if self.images else {**panorama_errors(np.ones(0), np.ones(0))}
        means: dict[str, float] = {}
        for name in names:
            known = [image[name] for image in self.images if np.isfinite(image[name])]
            means[name] = statistics.fmean(known) if known else float("nan")
        return {**means, "pixels": sum(image["pixels"] for image in self.images), "images": len(self.images)}
