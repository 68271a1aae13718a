# SPDX-License-Identifier: Apache-2.0
"""Evaluation of registered data sets on toy trees and on real frames, against plain NumPy and the reference figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vision3d.cli.main import main
from vision3d.datasets.registry import open_dataset
from vision3d.datasets.synthetic import SceneOptions, make_scene
from vision3d.datasets.toy import list_layouts, write_toy_tree
from vision3d.errors import ConfigError, InputError, UnknownNameError
from vision3d.evaluation.dataset import DEFAULT_SPLITS, evaluate_dataset
from vision3d.evaluation.gallery import Gallery
from vision3d.types import StereoOutput, StereoSample

LAYOUTS = [name for name in list_layouts() if name not in ("folder", "pool")]


class Constant(nn.Module):
    """Answers with 9 pixels everywhere."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> StereoOutput:
        disparity = torch.full_like(left[:, :1], 9.0)
        return StereoOutput(disparity, [disparity])


@pytest.fixture(scope="module")
def samples() -> list[StereoSample]:
    made = [make_scene(seed, 64, 96, SceneOptions(max_disparity=(8.0, 20.0), photometric=0.0)) for seed in range(3)]
    for sample in made:
        sample.foreground = sample.disparity > np.median(sample.disparity)  # type: ignore[operator]
    return made


@pytest.fixture(scope="module")
def kitti(samples: list[StereoSample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kitti2015")
    write_toy_tree("kitti2015", root, samples)
    return root


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_stereo_set(name: str, samples: list[StereoSample], tmp_path: Path) -> None:
    write_toy_tree(name, tmp_path, samples)
    report = evaluate_dataset(Constant(), name, tmp_path, split="all")
    data = open_dataset(name, tmp_path, "all")
    truths = [data[index].disparity for index in range(len(data))]  # type: ignore[arg-type]
    assert [row["scene"] for row in report["scenes"]] == [data[index].scene for index in range(len(data))]  # type: ignore[arg-type]
    for row, truth in zip(report["scenes"], truths, strict=True):
        values = truth[np.isfinite(truth)].astype(np.float64)
        if report["protocol"]["name"] == "sceneflow":
            values = values[(values > 0) & (values < 192)]
        assert row["pixels"] == values.size
        assert row["epe"] == pytest.approx(np.abs(values - 9).mean(), rel=1e-9)
    everything = np.concatenate([truth[np.isfinite(truth)] for truth in truths]).astype(np.float64)
    assert report["pooled"]["epe"] == pytest.approx(np.abs(everything - 9).mean(), rel=1e-6)
    json.dumps(report, allow_nan=False)


def test_roots_from_environment_and_file(kitti: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VISION3D_DATASETS", raising=False)
    with pytest.raises(ConfigError, match="--root DIR"):
        evaluate_dataset(Constant(), "kitti2015")
    monkeypatch.setenv("VISION3D_ROOT_KITTI2015", str(kitti))
    assert len(evaluate_dataset(Constant(), "kitti2015", limit=1)["scenes"]) == 1
    monkeypatch.delenv("VISION3D_ROOT_KITTI2015")
    (tmp_path / "datasets.yaml").write_text(f"kitti2015: {kitti}\n")
    assert len(evaluate_dataset(Constant(), "kitti2015", limit=2)["scenes"]) == 2


def test_split_protocol_options_and_exclusion(kitti: Path) -> None:
    report = evaluate_dataset(Constant(), "kitti2015", kitti, split="validation")
    assert [row["scene"] for row in report["scenes"]] == ["000001_10"]
    report = evaluate_dataset(Constant(), "kitti2015", kitti, protocol="kitti2012", exclude=["000001_10"])
    assert report["headline"]["label"] == "Out-Noc"
    assert [row["scene"] for row in report["scenes"]] == ["000000_10", "000002_10"]
    visible = evaluate_dataset(Constant(), "kitti2015", kitti, options={"truth": "noc"}, limit=1)["scenes"][0]
    everything = evaluate_dataset(Constant(), "kitti2015", kitti, limit=1)["scenes"][0]
    assert visible["epe"] == pytest.approx(everything["regions"]["noc"]["epe"])
    assert visible["pixels"] < everything["pixels"]


def test_baseline_confidence_and_observer(kitti: Path) -> None:
    gallery = Gallery(keep=1, figure="d1")
    report = evaluate_dataset(
        Constant(), "kitti2015", kitti, baseline="sgbm_hh", search=32, confidence=True, observers=[gallery]
    )
    assert report["baseline"]["name"] == "sgbm_hh"
    assert report["baseline"]["mean"]["epe"] < report["mean"]["epe"]
    quality = report["confidence"]
    assert quality["images"] == 3
    assert quality["ause"] >= 0
    assert quality["left_right_check"]["kept"] > 0.5
    assert {"ause", "aurg", "auc"} <= report["scenes"][0].keys()
    ranked = sorted(report["scenes"], key=lambda row: row["d1"])
    worst, best = gallery.shown()
    assert [item.scene for item in worst] == [ranked[-1]["scene"]]
    assert [item.scene for item in best] == [ranked[0]["scene"]]
    assert gallery.histograms[0].total == report["pooled"]["pixels"]
    assert list(worst[0].pictures)[:4] == ["left image", "truth", "prediction", "error"]


def test_errors(kitti: Path) -> None:
    with pytest.raises(UnknownNameError, match="data set 'kitti2016': did you mean kitti2015"):
        evaluate_dataset(Constant(), "kitti2016", kitti)
    with pytest.raises(UnknownNameError, match="stereo data set 'dtu'"):
        evaluate_dataset(Constant(), "dtu", kitti)
    with pytest.raises(UnknownNameError, match="protocol of kitti2015"):
        evaluate_dataset(Constant(), "kitti2015", kitti, protocol="sceneflow")
    with pytest.raises(UnknownNameError, match="baseline"):
        evaluate_dataset(Constant(), "kitti2015", kitti, baseline="sgbm_abc")
    with pytest.raises(UnknownNameError, match="scene '000009_10'"):
        evaluate_dataset(Constant(), "kitti2015", kitti, exclude=["000009_10"])
    with pytest.raises(InputError, match="no scene of kitti2015"):
        evaluate_dataset(Constant(), "kitti2015", kitti, exclude=["000000_10", "000001_10", "000002_10"])


def test_default_splits_are_splits() -> None:
    from vision3d.datasets.registry import find_dataset

    for name, split in DEFAULT_SPLITS.items():
        assert split in find_dataset(name).load().splits  # type: ignore[attr-defined]


def test_command_writes_json_table_and_page(kitti: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["evaluate", "--model", "covonet", "--dataset", "kitti2015", "--root", str(kitti), "--limit", "2"]
    call += ["--baseline", "bm", "--search", "32", "--option", "truth=occ"]
    assert main([*call, "--report", str(tmp_path / "r.html"), "--json", str(tmp_path / "r.json")]) == 0
    captured = capsys.readouterr()
    report = json.loads((tmp_path / "r.json").read_text())
    assert f"D1-all (mean over pixels): {report['headline']['value']:.3f}  covonet" in captured.out
    assert "non-occluded objects" in captured.out
    assert "report: " in captured.err
    assert "covonet on kitti2015" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert {"model", "scenes", "mean", "baseline"} <= report.keys()
    assert {"scene", "epe", "bad1", "bad2", "bad3", "d1", "seconds"} <= report["scenes"][0].keys()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--dataset", "folder", "--protocol", "all"], "--protocol does not go with the data set folder"),
        (["--dataset", "kitti2015", "--option", "truth"], "KEY=VALUE is expected"),
        (["--dataset", "kitti2015", "--option", "trut=occ"], "unknown option 'trut'"),
        (["--dataset", "kitti2015", "--split", "val1"], "split 'val1' of kitti2015"),
        (["--limit", "0"], "must be at least 1"),
    ],
)
def test_command_errors(kitti: Path, extra: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--model", "covonet", "--root", str(kitti), *extra]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "scene", "links"),
    [
        (
            "kitti2015",
            "kitti2015/000000_10",
            {
                "left.png": "training/image_2/000000_10.png",
                "right.png": "training/image_3/000000_10.png",
                "disp_occ_0.png": "training/disp_occ_0/000000_10.png",
            },
        ),
        (
            "eth3d",
            "eth3d/playground_1l",
            {
                "left.png": "two_view_training/playground_1l/im0.png",
                "right.png": "two_view_training/playground_1l/im1.png",
                "calib.txt": "two_view_training/playground_1l/calib.txt",
                "disp0.pfm": "two_view_training_gt/playground_1l/disp0GT.pfm",
            },
        ),
    ],
)
def test_real_frames_reproduce_the_reference_baselines(
    name: str, scene: str, links: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    stereo = shared / "data" / "stereo"
    for source, target in links.items():
        (tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / target).symlink_to(stereo / scene / source)
    search = json.loads((stereo / "index.json").read_text())[scene]["ndisp"]
    reference = json.loads((stereo / "baselines.json").read_text())["scenes"][scene]["sgbm_3way"]
    report = evaluate_dataset(Constant(), name, tmp_path, baseline="sgbm", search=search)
    figures = report["baseline"]["mean"]
    assert figures["epe"] == pytest.approx(reference["epe"], rel=0.02)
    assert report["baseline"]["pooled"]["pixels"] == reference["pixels"]
    for key in ("bad1", "bad2", "bad3", "d1"):
        assert figures[key] == pytest.approx(reference[key], rel=0.02)
