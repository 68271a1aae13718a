# SPDX-License-Identifier: Apache-2.0
"""How each benchmark measures: which pixels count, which error, and what is averaged over what.

Every protocol reports both means: over images (each image's figure weighs the same) and over pixels (all images are one
large one); ``headline`` says which of them the benchmark prints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from vision3d.errors import InputError, UnknownNameError
from vision3d.evaluation.metrics import QUANTILES, THRESHOLDS, DisparityMetrics
from vision3d.evaluation.quantiles import ErrorHistogram
from vision3d.types import StereoSample

REGIONS = {
    "all": "all pixels with truth",
    "noc": "visible in both views",
    "occ": "hidden in the right view",
    "bg": "background",
    "fg": "foreground objects",
    "noc_bg": "visible background",
    "noc_fg": "visible foreground objects",
}


@dataclass(frozen=True)
class Protocol:
    """What a benchmark counts.

    Attributes:
        name, title: for the command line, and for people.
        text: the rule in one or two sentences.
        label: what the benchmark calls its main figure.
        region, figure, mean: where that figure is found; ``mean`` is ``images`` or ``pixels``.
        regions: pixels that are measured apart, names of ``REGIONS``; those that a sample cannot tell are left out.
        thresholds: the k of bad-k.
        least, most: only pixels with ``least < truth < most`` count.
        smooth_l1: also the mean smooth L1 loss.
        empty_is_zero: an image without counted pixels has error 0 in the mean over images; else it is left out.
    """

    name: str
    title: str
    text: str
    label: str
    region: str
    figure: str
    mean: Literal["images", "pixels"]
    regions: tuple[str, ...] = ("all",)
    thresholds: tuple[float, ...] = THRESHOLDS
    least: float = -math.inf
    most: float = math.inf
    smooth_l1: bool = False
    empty_is_zero: bool = False

    def masks(self, sample: StereoSample) -> dict[str, np.ndarray]:
        """region -> [H, W] bool, the pixels of a sample that count; only the regions that it can tell apart.

        Raises:
            InputError: the sample has no disparity map.
        """
        if sample.disparity is None:
            raise InputError(f"{sample.scene}: the sample has no disparity map, so it cannot be measured")
        with np.errstate(invalid="ignore"):
            counted = sample.valid & (sample.disparity > self.least) & (sample.disparity < self.most)
        parts: dict[str, np.ndarray] = {"all": counted}
        if sample.occlusion is not None:
            parts["noc"], parts["occ"] = counted & ~sample.occlusion, counted & sample.occlusion
        if sample.foreground is not None:
            parts["bg"], parts["fg"] = counted & ~sample.foreground, counted & sample.foreground
            if "noc" in parts:
                parts["noc_bg"], parts["noc_fg"] = parts["noc"] & ~sample.foreground, parts["noc"] & sample.foreground
        return {name: parts[name] for name in self.regions if name in parts}


_VISIBILITY = ("all", "noc", "occ")
_SCENEFLOW = "{} Mean absolute error; D1 over the same pixels."
PROTOCOLS: dict[str, Protocol] = {
    item.name: item
    for item in (
        Protocol(
            "all",
            "all pixels with truth",
            "Every pixel with a finite truth counts, occluded ones too; each scene weighs the same.",
            *("EPE", "all", "epe", "images"),
            regions=_VISIBILITY,
        ),
        Protocol(
            "kitti2015",
            "KITTI 2015",
            "D1: error > 3 px and > 5 % of the truth, over background (bg), objects (fg) and both, all (occ) and "
            "visible (noc) pixels; pixels of all images are pooled.",
            *("D1-all", "all", "d1", "pixels"),
            regions=("all", "bg", "fg", "noc", "noc_bg", "noc_fg"),
        ),
        Protocol(
            "kitti2012",
            "KITTI 2012",
            "Share of pixels with an error > 3 px (also 2, 4, 5), over visible (Out-Noc) and all pixels (Out-All); "
            "mean over images. EPE is Avg-All, Avg-Noc.",
            *("Out-Noc", "noc", "bad3", "images"),
            regions=("all", "noc"),
            thresholds=(2.0, 3.0, 4.0, 5.0),
        ),
        Protocol(
            "sceneflow",
            "SceneFlow, per pixel",
            _SCENEFLOW.format("Pixels with 0 < truth < 192 px; the pixels of all images are pooled."),
            *("EPE", "all", "epe", "pixels"),
            least=0.0,
            most=192.0,
        ),
        Protocol(
            "fadnetpp",
            "SceneFlow, per image (FADNet++)",
            _SCENEFLOW.format(
                "Pixels with 0 < truth < 192 px; mean over images, an image without such pixels counts as 0."
            ),
            *("EPE", "all", "epe", "images"),
            least=0.0,
            most=192.0,
            empty_is_zero=True,
        ),
        Protocol(
            "fadnet",
            "SceneFlow, smooth L1 (FADNet)",
            "Pixels with truth < 192 px; the mean smooth L1 loss, which the first release prints as EPE; mean over "
            "images (the original: over batches).",
            *("smooth L1", "all", "smooth_l1", "images"),
            most=192.0,
            smooth_l1=True,
        ),
        Protocol(
            "irs",
            "IRS",
            "Pixels with truth < 192 px, without a lower bound; mean absolute error, mean over images (the original: "
            "over batches).",
            *("EPE", "all", "epe", "images"),
            most=192.0,
        ),
        Protocol(
            "middlebury",
            "Middlebury v3",
            "bad-0.5 to bad-4, average and RMS error, A50 to A99 over visible (noc) and all pixels; mean over scenes, "
            "unweighted, at the resolution of the images given (the server measures at full resolution and weighs some "
            "scenes less).",
            *("bad-2 non-occluded", "noc", "bad2", "images"),
            regions=_VISIBILITY,
        ),
        Protocol(
            "eth3d",
            "ETH3D two-view",
            "bad-0.5 to bad-4, average and RMS error, A50 to A99 over visible (noc) and all pixels; mean over scenes.",
            *("bad-1 non-occluded", "noc", "bad1", "images"),
            regions=_VISIBILITY,
        ),
    )
}

_SCENEFLOW_NAMES = ("sceneflow", "fadnetpp", "fadnet")
# The protocols of each data set, the usual one first; "all" fits every set.
DATASET_PROTOCOLS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sceneflow", "flyingthings3d", "driving", "monkaa"), _SCENEFLOW_NAMES),
    "irs": ("irs", *_SCENEFLOW_NAMES),
    "kitti2015": ("kitti2015", "kitti2012"),
    "kitti2012": ("kitti2012", "kitti2015"),
    **dict.fromkeys(("middlebury_v3", "middlebury2014", "middlebury2021"), ("middlebury",)),
    "eth3d": ("eth3d",),
}


def find_protocol(dataset: str, name: str | None = None) -> Protocol:
    """The protocol of a data set: the usual one, or that of a name.

    Raises:
        UnknownNameError: not a protocol of this data set; the message lists those that are.
    """
    names = (*DATASET_PROTOCOLS.get(dataset, ()), "all")
    if name is None:
        return PROTOCOLS[names[0]]
    if name not in names:
        raise UnknownNameError(f"protocol of {dataset}", name, names)
    return PROTOCOLS[name]


@dataclass
class RegionScore:
    """One region over many images: each image's figures, and the sums of all."""

    pooled: DisparityMetrics
    histogram: ErrorHistogram = field(default_factory=ErrorHistogram)
    images: list[dict[str, float]] = field(default_factory=list)

    def add(self, image: DisparityMetrics) -> dict[str, float]:
        """Count the metrics of an image (with quantiles) and return its figures."""
        figures = image.compute()
        for errors in image.errors:
            self.histogram.update(errors)
        self.pooled = self.pooled.merge(replace(image, quantiles=False, errors=[]))
        self.images.append(figures)
        return figures

    def merge(self, other: RegionScore) -> RegionScore:
        """The images of both."""
        return RegionScore(
            self.pooled.merge(other.pooled), self.histogram.merge(other.histogram), [*self.images, *other.images]
        )

    def pixel_figures(self) -> dict[str, float]:
        """Figures over all pixels; the A-quantiles are known to one part in 1024."""
        quantiles = {f"a{quantile}": self.histogram.quantile(quantile) for quantile in QUANTILES}
        figures = self.pooled.compute()
        return {**figures, **quantiles, "pixels": self.pooled.pixels}

    def image_figures(self, empty_is_zero: bool = False) -> dict[str, float]:
        """The mean over images of each figure, rounded once, so that the order of the images does not matter."""
        used = [row for row in self.images if row["pixels"] or empty_is_zero]
        count = len(used) or float("nan")
        names = [name for name in self.pooled.compute() if name != "pixels"] + [f"a{q}" for q in QUANTILES]
        totals = {name: math.fsum(row[name] if row["pixels"] else 0.0 for row in used) for name in names}
        return {**{name: total / count for name, total in totals.items()}, "images": len(used)}


@dataclass
class ProtocolScore:
    """The figures of one method under a protocol. Scores merge: the result does not depend on how images were split
    among processes, nor on their order.
    """

    protocol: Protocol
    regions: dict[str, RegionScore] = field(default_factory=dict)

    def update(self, prediction: np.ndarray, sample: StereoSample) -> dict[str, Any]:
        """Measure one image and return its figures: those over all counted pixels, and ``regions`` where there are
        others.

        Raises:
            InputError: no truth, or maps of different sizes.
        """
        row: dict[str, Any] = {}
        for name, mask in self.protocol.masks(sample).items():
            image = self._metrics(quantiles=True)
            image.update(prediction, np.asarray(sample.disparity), mask)
            figures = self.regions.setdefault(name, RegionScore(self._metrics())).add(image)
            if name == "all":
                row.update(figures)
            else:
                row.setdefault("regions", {})[name] = figures
        return row

    def _metrics(self, quantiles: bool = False) -> DisparityMetrics:
        return DisparityMetrics(self.protocol.thresholds, quantiles, self.protocol.smooth_l1)

    def merge(self, other: ProtocolScore) -> ProtocolScore:
        """The images of both.

        Raises:
            InputError: they were measured under different protocols.
        """
        if self.protocol != other.protocol:
            raise InputError(f"scores of the protocols {self.protocol.name} and {other.protocol.name} do not merge")
        merged = dict(self.regions)
        for name, score in other.regions.items():
            merged[name] = merged[name].merge(score) if name in merged else score
        return ProtocolScore(self.protocol, {name: merged[name] for name in self.protocol.regions if name in merged})

    def compute(self) -> dict[str, Any]:
        """``mean`` (over images) and ``pooled`` (over pixels), each with ``regions``, and the ``headline``."""
        means = {name: score.image_figures(self.protocol.empty_is_zero) for name, score in self.regions.items()}
        pools = {name: score.pixel_figures() for name, score in self.regions.items()}
        return {"mean": _nested(means), "pooled": _nested(pools), "headline": self._headline(means, pools)}

    def _headline(self, means: dict[str, Any], pools: dict[str, Any]) -> dict[str, Any]:
        rule = self.protocol
        region = rule.region if rule.region in means else "all"
        source = means if rule.mean == "images" else pools
        value = source.get(region, {}).get(rule.figure, float("nan"))
        label = rule.label if region == rule.region else f"{rule.label} (all pixels: no mask here)"
        return {"label": label, "value": value, "figure": rule.figure, "region": region, "mean": rule.mean}


def merge_scores(parts: Iterable[ProtocolScore]) -> ProtocolScore:
    """The score over the images of all parts, e.g. one a process.

    Raises:
        InputError: no part, or different protocols.
    """
    scores: Sequence[ProtocolScore] = list(parts)
    if not scores:
        raise InputError("there is no score to merge")
    merged = scores[0]
    for score in scores[1:]:
        merged = merged.merge(score)
    return merged


def _nested(figures: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The figures over all pixels, those of other regions below ``regions``."""
    others = {name: row for name, row in figures.items() if name != "all"}
    return {**figures.get("all", {}), **({"regions": others} if others else {})}
