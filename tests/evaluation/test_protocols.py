# SPDX-License-Identifier: Apache-2.0
"""The protocols against plain loops and against PyTorch's loss, and that scores merge exactly."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from vision3d.errors import InputError, UnknownNameError
from vision3d.evaluation.protocols import PROTOCOLS, ProtocolScore, find_protocol, merge_scores
from vision3d.types import StereoSample

SIZE = (12, 17)


def make_sample(seed: int, low: float = 1.0, high: float = 120.0) -> tuple[np.ndarray, StereoSample]:
    """A prediction and a sparse sample with occluded and foreground pixels."""
    generator = np.random.default_rng(seed)
    truth = generator.uniform(low, high, SIZE).astype(np.float32)
    truth[generator.random(SIZE) < 0.3] = np.nan
    prediction = (np.nan_to_num(truth) + generator.laplace(0, 3, SIZE)).astype(np.float32)
    image = np.zeros((*SIZE, 3), dtype=np.uint8)
    sample = StereoSample(image, image, truth, scene=f"s{seed}")
    sample.occlusion, sample.foreground = generator.random(SIZE) < 0.2, generator.random(SIZE) < 0.4
    return prediction, sample


def d1_by_loop(pairs: list[tuple[np.ndarray, StereoSample]], visible: bool, foreground: bool | None) -> float:
    """The outlier count of the KITTI 2015 development kit, pixel by pixel, pooled."""
    wrong = count = 0
    for prediction, sample in pairs:
        for v, u in itertools.product(range(SIZE[0]), range(SIZE[1])):
            truth = float(sample.disparity[v, u])  # type: ignore[index]
            if math.isnan(truth) or (visible and sample.occlusion[v, u]):  # type: ignore[index]
                continue
            if foreground is not None and bool(sample.foreground[v, u]) != foreground:  # type: ignore[index]
                continue
            error = abs(float(prediction[v, u]) - truth)
            count += 1
            wrong += error > 3 and error / truth > 0.05
    return 100 * wrong / count


def test_kitti2015_by_region() -> None:
    pairs = [make_sample(seed) for seed in range(3)]
    score = ProtocolScore(PROTOCOLS["kitti2015"])
    for pair in pairs:
        score.update(*pair)
    pooled = score.compute()["pooled"]
    assert pooled["d1"] == pytest.approx(d1_by_loop(pairs, False, None), rel=1e-12)
    expected = {"noc": (True, None), "bg": (False, False), "fg": (False, True)}
    expected |= {"noc_bg": (True, False), "noc_fg": (True, True)}
    assert list(pooled["regions"]) == ["bg", "fg", "noc", "noc_bg", "noc_fg"]
    for region, choice in expected.items():
        assert pooled["regions"][region]["d1"] == pytest.approx(d1_by_loop(pairs, *choice), rel=1e-12)
    assert score.compute()["headline"]["value"] == pooled["d1"]


def test_regions_that_a_sample_cannot_tell_are_left_out() -> None:
    prediction, sample = make_sample(0)
    sample.foreground = None
    score = ProtocolScore(PROTOCOLS["kitti2015"])
    assert list(score.update(prediction, sample)["regions"]) == ["noc"]
    sample.occlusion = None
    score = ProtocolScore(PROTOCOLS["eth3d"])
    row = score.update(prediction, sample)
    assert "regions" not in row
    headline = score.compute()["headline"]
    assert headline["value"] == row["bad1"]
    assert "no mask" in headline["label"]


def test_sceneflow_variants() -> None:
    pairs = [make_sample(0, -20, 250), make_sample(1, -20, 60), make_sample(2, 200, 300)]  # the last: nothing below 192
    scores = {name: ProtocolScore(PROTOCOLS[name]) for name in ("sceneflow", "fadnetpp", "fadnet", "irs")}
    for score in scores.values():
        for pair in pairs:
            score.update(*pair)
    per_image, smooth, everything = [], [], []
    for prediction, sample in pairs:
        truth = torch.from_numpy(np.asarray(sample.disparity))
        inside = (truth > 0) & (truth < 192)  # comparisons with NaN are false
        errors = (torch.from_numpy(prediction)[inside] - truth[inside]).abs().double()
        everything.append(errors)
        per_image.append(errors.mean().item() if len(errors) else 0.0)
        below = truth < 192
        if below.any():
            loss = torch.nn.functional.smooth_l1_loss(torch.from_numpy(prediction)[below], truth[below])
            smooth.append(loss.item())
    headlines = {name: score.compute()["headline"]["value"] for name, score in scores.items()}
    assert headlines["sceneflow"] == pytest.approx(torch.cat(everything).mean().item(), rel=1e-6)
    assert headlines["fadnetpp"] == pytest.approx(np.mean(per_image), rel=1e-6)
    assert headlines["fadnet"] == pytest.approx(np.mean(smooth), rel=1e-5)
    figures = scores["sceneflow"].compute()
    assert figures["mean"]["images"] == 2
    assert scores["fadnetpp"].compute()["mean"]["images"] == 3
    assert scores["irs"].compute()["pooled"]["pixels"] > figures["pooled"]["pixels"]


def test_kitti2012_thresholds_and_mean() -> None:
    pairs = [make_sample(seed) for seed in range(3)]
    score = ProtocolScore(PROTOCOLS["kitti2012"])
    rows = [score.update(*pair) for pair in pairs]
    assert [name for name in rows[0] if name.startswith("bad")] == ["bad2", "bad3", "bad4", "bad5"]
    expected = np.mean([row["regions"]["noc"]["bad3"] for row in rows])
    assert score.compute()["headline"]["value"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_scores_merge_exactly_in_any_order(name: str) -> None:
    pairs = [make_sample(seed, 0.5, 260) for seed in range(5)]

    def score_of(indices: list[int]) -> ProtocolScore:
        score = ProtocolScore(PROTOCOLS[name])
        for index in indices:
            score.update(*pairs[index])
        return score

    whole = score_of([0, 1, 2, 3, 4]).compute()
    for parts in ([[0, 2], [1, 3, 4]], [[4], [], [3, 1], [2, 0]], [[4, 3, 2, 1, 0]]):
        merged = merge_scores(score_of(part) for part in parts).compute()
        assert repr(merged) == repr(whole)  # to the last bit, NaN included


def test_pooled_quantiles_are_close_to_the_exact_ones() -> None:
    pairs = [make_sample(seed) for seed in range(4)]
    score = ProtocolScore(PROTOCOLS["middlebury"])
    for pair in pairs:
        score.update(*pair)
    errors = np.concatenate([np.abs(p - s.disparity)[s.valid] for p, s in pairs])  # type: ignore[operator]
    for quantile in (50, 90, 95, 99):
        exact = np.percentile(errors, quantile)
        assert score.compute()["pooled"][f"a{quantile}"] == pytest.approx(exact, rel=0.05)
    assert score.compute()["mean"]["a50"] == pytest.approx(
        np.mean([np.percentile(np.abs(p - s.disparity)[s.valid], 50) for p, s in pairs]),
        rel=1e-6,  # type: ignore[operator]
    )


def test_names() -> None:
    assert find_protocol("kitti2015").name == "kitti2015"
    assert find_protocol("tartanair").name == "all"
    assert find_protocol("sceneflow", "fadnetpp").name == "fadnetpp"
    with pytest.raises(UnknownNameError, match="protocol of kitti2015 'kitty2015': did you mean kitti2015"):
        find_protocol("kitti2015", "kitty2015")
    with pytest.raises(InputError, match="do not merge"):
        ProtocolScore(PROTOCOLS["all"]).merge(ProtocolScore(PROTOCOLS["eth3d"]))
    image = np.zeros((2, 2, 3), np.uint8)
    with pytest.raises(InputError, match="no disparity map"):
        ProtocolScore(PROTOCOLS["all"]).update(np.zeros((2, 2)), StereoSample(image, image, scene="x"))
