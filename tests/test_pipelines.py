# SPDX-License-Identifier: Apache-2.0
"""predict_stereo: sizes, scales, calibration, confidence, memory, and what is written."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from matcher import Constant, Matcher
from PIL import Image

from vision3d import inference
from vision3d.errors import CalibrationError, InputError, OutputError, UnknownNameError
from vision3d.io.disparity import read_depth_png16, read_disparity
from vision3d.io.pointcloud import read_pointcloud
from vision3d.pipelines import StereoResult, predict_stereo
from vision3d.types import Camera, StereoRig

Scene = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def scene() -> Scene:
    """A textured plane at 8 px with a square at 24 px before it: left, right, true disparity of the left view."""
    generator = np.random.default_rng(3)
    noise = generator.integers(0, 255, (2, 90, 160, 3), dtype=np.uint8)
    wall, box = (cv2.resize(layer, (480, 270), interpolation=cv2.INTER_CUBIC) for layer in noise)
    left, right = wall[:240, 16:336].copy(), wall[:240, 24:344].copy()
    left[70:170, 120:220] = box[70:170, 120:220]
    right[70:170, 96:196] = box[70:170, 120:220]
    truth = np.full((240, 320), 8.0, np.float32)
    truth[70:170, 120:220] = 24.0
    return left, right, truth


def rig_of(width: int, height: int, doffs: float = 0.0, known: bool = True) -> StereoRig:
    size = (width, height) if known else (None, None)
    views = [
        Camera(np.array([[300.0, 0, width / 2 + shift], [0, 300.0, height / 2], [0, 0, 1]]), *size)
        for shift in (0.0, doffs)
    ]
    return StereoRig(views[0], views[1], 0.1)


@pytest.fixture(scope="module")
def result(scene: Scene) -> StereoResult:
    return predict_stereo(scene[0], scene[1], model=Matcher(48), calibration=rig_of(320, 240))


def test_disparity_depth_and_confidence(scene: Scene, result: StereoResult) -> None:
    truth = scene[2]
    assert result.disparity.shape == truth.shape
    assert result.disparity.dtype == np.float32
    assert (np.abs(result.disparity - truth) < 1).mean() > 0.9
    assert result.depth is not None
    positive = result.disparity > 0
    np.testing.assert_allclose(result.depth[positive], 300 * 0.1 / result.disparity[positive], rtol=1e-5)
    assert np.isnan(result.depth[~positive]).all()
    assert result.confidence is not None
    assert result.occlusion is not None
    # columns 104..119 of the box's rows are hidden behind it in the right view
    assert result.occlusion[75:165, 106:118].mean() > 0.8
    assert result.confidence[75:165, 106:118].mean() < 0.3
    assert result.occlusion[75:165, 130:210].mean() < 0.02
    assert result.confidence[75:165, 130:210].mean() > 0.95
    assert result.occlusion[:, :6].all()  # outside of the right view
    assert result.warnings == []
    assert result.model == "matcher"
    assert result.seconds > 0


def test_inputs_of_every_kind_give_the_same(scene: Scene, tmp_path: Path) -> None:
    left, right, _ = scene
    expected = predict_stereo(left, right, model=Matcher(48), confidence=False).disparity
    for name, view in (("left.png", left), ("right.png", right)):
        Image.fromarray(view).save(tmp_path / name)
    kinds = [
        (tmp_path / "left.png", str(tmp_path / "right.png")),
        (Image.fromarray(left), Image.fromarray(right)),
        (left / 255.0, (right / 255.0).astype(np.float32)),
    ]
    for a, b in kinds:
        answer = predict_stereo(a, b, model=Matcher(48), confidence=False)
        np.testing.assert_array_equal(answer.disparity, expected)
    assert predict_stereo(*kinds[0], model=Matcher(48)).files["left"].endswith("left.png")


@pytest.mark.parametrize("size", [(1, 1), (1, 70), (65, 1), (63, 129)])
def test_any_size_goes_in(size: tuple[int, int]) -> None:
    image = np.zeros((*size, 3), np.uint8)
    answer = predict_stereo(image, image, model=Constant(0.25), calibration=None)
    assert answer.disparity.shape == size
    np.testing.assert_allclose(answer.disparity, 0.25)
    small = predict_stereo(image, image, model=Constant(0.25), scale=0.3)
    assert small.disparity.shape == size


def test_padding_is_undone_exactly(scene: Scene) -> None:
    network = Matcher(48)
    left, right = scene[0][:203, :301], scene[1][:203, :301]
    answer = predict_stereo(left, right, model=network, confidence=False)
    assert network.sizes == [(320, 224)]
    assert answer.disparity.shape == (203, 301)
    assert (np.abs(answer.disparity - scene[2][:203, :301]) < 1).mean() > 0.88


@pytest.mark.parametrize("scale", [0.5, 0.73, 1.7])
def test_scale_keeps_full_pixels(scene: Scene, scale: float) -> None:
    network = Matcher(48)
    answer = predict_stereo(scene[0], scene[1], model=network, scale=scale, calibration=rig_of(320, 240))
    assert network.sizes[0][0] == int(np.ceil(round(320 * scale) / 32) * 32)
    assert answer.disparity.shape == (240, 320)
    assert answer.scale == scale
    assert np.median(answer.disparity) == pytest.approx(8, abs=0.5)
    assert np.median(answer.disparity[80:160, 130:210]) == pytest.approx(24, abs=0.5)
    assert answer.depth is not None
    assert np.nanmedian(answer.depth) == pytest.approx(30 / 8, rel=0.05)


def test_constant_disparity_scales_with_the_rounded_width() -> None:
    image = np.zeros((50, 101, 3), np.uint8)
    answer = predict_stereo(image, image, model=Constant(4.0), scale=0.5)
    np.testing.assert_allclose(answer.disparity, 4.0 * 101 / 50, rtol=1e-6)


def test_automatic_scale_follows_the_range(scene: Scene) -> None:
    big = [cv2.resize(view, (1280, 960), interpolation=cv2.INTER_CUBIC) for view in scene[:2]]  # up to 96 px
    answer = predict_stereo(*big, model=Matcher(64), scale="auto", confidence=False)
    assert answer.scale == pytest.approx(64 / (1.1 * 96), rel=0.1)
    assert np.median(answer.disparity[320:640, 520:840]) == pytest.approx(96, abs=2)
    assert predict_stereo(*scene[:2], model=Matcher(48), scale="auto", confidence=False).scale == 1.0


def test_rig_without_size_and_offset_of_principal_points(scene: Scene) -> None:
    answer = predict_stereo(*scene[:2], model=Constant(10.0), calibration=rig_of(320, 240, doffs=-4.0, known=False))
    np.testing.assert_allclose(answer.depth, 30 / 6, rtol=1e-6)
    assert answer.rig is not None
    assert answer.rig.size == (320, 240)
    beyond = predict_stereo(*scene[:2], model=Constant(3.0), calibration=rig_of(320, 240, doffs=-4.0))
    assert np.isnan(beyond.depth).all()


def test_errors_name_the_files_and_the_mend(scene: Scene, tmp_path: Path) -> None:
    left, right, _ = scene
    Image.fromarray(left).save(tmp_path / "a.png")
    Image.fromarray(right[:100]).save(tmp_path / "b.png")
    with pytest.raises(InputError, match=r"a\.png is 320x240 but .*b\.png is 320x100"):
        predict_stereo(tmp_path / "a.png", tmp_path / "b.png", model=Matcher())
    with pytest.raises(InputError, match="3 channels but the right image has 1"):
        predict_stereo(left, right[..., :1], model=Matcher())
    with pytest.raises(CalibrationError, match="640x480 but the images are 320x240"):
        predict_stereo(left, right, model=Matcher(), calibration=rig_of(640, 480))
    with pytest.raises(InputError, match="scale is 0"):
        predict_stereo(left, right, model=Matcher(), scale=0)
    with pytest.raises(InputError, match="precision"):
        predict_stereo(left, right, model=Matcher(), precision="int3")
    with pytest.raises(UnknownNameError):
        predict_stereo(left, right, model="fadnetpq")
    with pytest.raises(InputError, match="unknown device"):
        predict_stereo(left, right, model=Matcher(), device="abacus")
    with pytest.raises(InputError, match="instead of a disparity map"):
        predict_stereo(left, right, model=torch.nn.Bilinear(320, 320, 320))


def test_memory_is_estimated_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    image = np.zeros((600, 800, 3), np.uint8)
    monkeypatch.setattr(inference, "available_memory", lambda device: 100_000_000)
    with pytest.raises(InputError, match=r"800x600 at scale 1 need about 0\.8 GB .* 0\.1 GB are free.*--scale 0\.25"):
        predict_stereo(image, image, model=Constant())
    assert predict_stereo(image, image, model=Constant(), scale=0.25).disparity.shape == (600, 800)
    assert predict_stereo(image, image, model=Constant(), check_memory=False).disparity.shape == (600, 800)
    assert predict_stereo(image, image, model=Constant(), scale="auto").scale < 0.5


def test_full_size_results_count_at_any_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "available_memory", lambda device: 4_000_000_000)
    cpu = torch.device("cpu")
    with pytest.raises(InputError, match=r"8000x6000 at scale 0\.1 need about 5\.8 GB .* no scale makes"):
        inference.check_memory(Constant(), 8000, 6000, 0.1, cpu)
    inference.check_memory(Constant(), 4000, 3000, 0.25, cpu)


def test_estimate_counts_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    heavy = torch.nn.Linear(1000, 1000)
    assert inference.weight_bytes(heavy) == 4 * 1001 * 1000
    assert inference.estimate_memory(heavy, 64, 64) == 4 * 1001 * 1000 + 64 * 64 * 1500
    monkeypatch.setattr(inference, "available_memory", lambda device: 64 * 64 * 1500)
    inference.check_memory(heavy, 64, 64, 1.0, torch.device("cpu"))  # its weights are no longer free, yet loaded


_MEASURE = """
import sys, numpy, torch
from pathlib import Path
from vision3d import inference
from vision3d.zoo import create_model

def resident(key):
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(key)))

model, image = create_model(sys.argv[1]), numpy.zeros((512, 768, 3), numpy.uint8)
inference.run_network(model, image[:64, :64], image[:64, :64], torch.device("cpu"))
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
inference.run_network(model, image, image, torch.device("cpu"))
estimate = inference.estimate_memory(model, 768, 512) - inference.weight_bytes(model)
print((resident("VmHWM") - before) / estimate)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peak memory cannot be read here")
@pytest.mark.parametrize("name", ["fadnetpp_tiny", "covonet"])
def test_estimates_hold(name: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(inference.__file__).parents[1])}
    call = [sys.executable, "-c", _MEASURE, name]
    done = subprocess.run(call, capture_output=True, text=True, check=True, env=environment, timeout=300)
    assert 0.5 < float(done.stdout) < 1.05


@pytest.mark.slow
@pytest.mark.parametrize("cloud_format", ["ply", "glb", "pcd"])
def test_results_keep_to_their_estimate(cloud_format: str, tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 255, (900, 1200, 3), dtype=np.uint8)
    predict_stereo(image[:64, :64], image[:64, :64], model=Constant(5.0)).save(tmp_path)  # imports and caches
    tracemalloc.start()
    try:
        answer = predict_stereo(image, image, model=Constant(5.0), calibration=rig_of(1200, 900), scale=0.1)
        answer.save(tmp_path, cloud_formats=(cloud_format,), confidence_threshold=0.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < inference.RESULT_BYTES_PER_PIXEL * 900 * 1200


def test_unknown_pixels_do_not_spread_when_resized() -> None:
    values = np.full((20, 30), 5.0, np.float32)
    values[4, 7] = np.nan
    for size in ((120, 80), (45, 33)):
        resized = inference.resize_map(values, *size, factor=2.0)
        share = np.isnan(resized).mean() * values.size
        assert share <= 2  # the area of one or two of the old pixels
        np.testing.assert_allclose(resized[np.isfinite(resized)], 10.0, rtol=1e-6)
    assert np.isnan(inference.resize_map(values, 120, 80)[18, 30])
    assert np.isnan(inference.resize_map(np.full((3, 3), np.nan, np.float32), 7, 5)).all()


def test_models_are_kept_for_each_device() -> None:
    cpu, meta = (inference.cached_model("covonet", torch.device(name)) for name in ("cpu", "meta"))
    assert next(cpu.parameters()).device.type == "cpu"
    assert next(meta.parameters()).device.type == "meta"
    assert inference.cached_model("covonet", torch.device("cpu")) is cpu


def test_free_memory_is_read(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 9 kB\nMemAvailable:       2 kB\n", encoding="ascii")
    assert inference.available_memory(torch.device("cpu"), file) == 2048
    assert inference.available_memory(torch.device("cpu"), tmp_path / "none") is None


def test_module_keeps_its_mode_and_confidence_can_be_off(scene: Scene) -> None:
    network = Constant().train()
    answer = predict_stereo(*scene[:2], model=network, confidence=False)
    assert network.training
    assert answer.confidence is None
    assert answer.occlusion is None


def test_unknown_pixels_stay_unknown(scene: Scene, tmp_path: Path) -> None:
    network = Matcher(48, fill=False)
    answer = predict_stereo(*scene[:2], model=network, calibration=rig_of(320, 240))
    unknown = np.isnan(answer.disparity)
    assert unknown.any()
    assert np.isnan(answer.depth[unknown]).all()
    assert (answer.confidence[unknown] == 0).all()
    assert answer.occlusion[unknown].all()
    answer.save(tmp_path)
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["disparity"]["valid_percent"] < 100
    nothing = predict_stereo(*scene[:2], model=Constant(float("nan")), calibration=rig_of(320, 240))
    assert "no finite disparity" in nothing.warnings[0]
    nothing.save(tmp_path / "nothing")
    assert not (tmp_path / "nothing" / "cloud.ply").exists()


def test_range_of_the_network_is_watched(scene: Scene) -> None:
    assert "limit" in predict_stereo(*scene[:2], model=Constant(191.0)).warnings[0]


def test_pointcloud_filters(result: StereoResult) -> None:
    assert result.depth is not None
    everything = result.pointcloud(confidence_threshold=0.0, remove_flying_pixels=False, normals=False)
    assert everything.normals is None
    kept = result.pointcloud()
    assert 0.7 * len(everything) < len(kept) < len(everything)
    assert kept.normals is not None
    assert kept.colors is not None
    near = result.pointcloud(max_depth=2.0)
    assert near.points[:, 2].max() <= 2.0
    assert np.median(near.points[:, 2]) == pytest.approx(30 / 24, rel=0.03)
    assert result.pointcloud(min_depth=2.0).points[:, 2].min() >= 2.0
    assert len(result.pointcloud(voxel_size=0.05)) < len(kept) / 4
    assert len(result.pointcloud(voxel_size=0.05, remove_outliers=True)) > 0
    with pytest.raises(InputError, match="min_depth 3 is not below"):
        result.pointcloud(min_depth=3, max_depth=2)
    with pytest.raises(InputError, match="confidence_threshold"):
        result.pointcloud(confidence_threshold=7)
    with pytest.raises(InputError, match="voxel_size"):
        result.pointcloud(voxel_size=-1)


def test_save_writes_what_it_says(result: StereoResult, scene: Scene, tmp_path: Path) -> None:
    written = result.save(tmp_path / "deep" / "out", cloud_formats=("ply", "glb", "pcd"), truth=scene[2])
    folder = tmp_path / "deep" / "out"
    assert sorted(written) == sorted(path.name for path in folder.iterdir())
    np.testing.assert_array_equal(read_disparity(folder / "disparity.pfm"), result.disparity)
    np.testing.assert_allclose(read_depth_png16(folder / "depth.png"), result.depth, atol=6e-4)
    np.testing.assert_array_equal(np.load(folder / "depth.npy"), result.depth)
    assert cv2.imread(str(folder / "depth.png"), cv2.IMREAD_UNCHANGED).dtype == np.uint16
    occlusion = cv2.imread(str(folder / "occlusion.png"), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(occlusion > 0, result.occlusion)
    points = len(result.pointcloud())
    assert all(len(read_pointcloud(folder / f"cloud.{suffix}")) == points for suffix in ("ply", "glb", "pcd"))
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["width"] == 320
    assert report["calibration"]["baseline_m"] == 0.1
    result.save(folder)  # a second time over the first


def test_uncalibrated_result_has_no_metric_files(scene: Scene, tmp_path: Path) -> None:
    answer = predict_stereo(*scene[:2], model=Matcher(48))
    assert answer.depth is None
    with pytest.raises(InputError, match="calibration"):
        answer.pointcloud()
    written = answer.save(tmp_path)
    assert not {"depth.png", "depth.npy", "cloud.ply"} & set(written)
    assert "view.html" in written


def test_depth_beyond_the_png_is_told(tmp_path: Path) -> None:
    image = np.zeros((64, 64, 3), np.uint8)
    far = predict_stereo(image, image, model=Constant(0.3), calibration=rig_of(64, 64))
    for _ in range(2):
        far.save(tmp_path, view=False, cloud_formats=())
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    (warning,) = [text for text in report["warnings"] if "depth.png" in text]
    assert "100 % of the pixels are farther than 65.535 m" in warning
    assert np.isnan(read_depth_png16(tmp_path / "depth.png")).all()
    np.testing.assert_allclose(np.load(tmp_path / "depth.npy"), 100, rtol=1e-5)


def test_files_of_an_earlier_run_are_removed(result: StereoResult, scene: Scene, tmp_path: Path) -> None:
    result.save(tmp_path, cloud_formats=("ply", "pcd"), truth=scene[2])
    (tmp_path / "notes.txt").write_text("mine", encoding="ascii")
    plain = predict_stereo(*scene[:2], model=Constant(5.0), confidence=False)
    written = plain.save(tmp_path, view=False)
    assert sorted([*written, "notes.txt"]) == sorted(path.name for path in tmp_path.iterdir())
    assert sorted(written) == ["disparity.pfm", "disparity.png", "report.json"]


def test_failure_leaves_nothing_half_written(
    result: StereoResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disparity.pfm").write_text("old", encoding="ascii")

    def full(path: object, cloud: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vision3d.io.pointcloud.write_pointcloud", full)
    with pytest.raises(OutputError, match="No space left"):
        result.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["disparity.pfm"]
    assert (tmp_path / "disparity.pfm").read_text(encoding="ascii") == "old"
    with pytest.raises(InputError, match="cloud format"):
        result.save(tmp_path, cloud_formats=("stl",))
    with pytest.raises(InputError, match="truth"):
        result.save(tmp_path, truth=np.zeros((2, 2)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder(result: StereoResult, tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(OutputError):
        result.save(tmp_path)


def test_file_in_the_place_of_the_folder(result: StereoResult, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x", encoding="ascii")
    with pytest.raises(OutputError, match="is a file"):
        result.save(tmp_path / "out")


@pytest.mark.real
def test_network_of_the_zoo_runs_on_a_real_pair(shared: Path, tmp_path: Path) -> None:
    from vision3d.zoo import create_model

    folder = shared / "data" / "stereo" / "middlebury2014" / "motorcycle_quarter"
    torch.manual_seed(0)
    answer = predict_stereo(
        folder / "left.png",
        folder / "right.png",
        model=create_model("fadnetpp_micro"),
        calibration=folder / "calib.txt",
        scale=0.5,
    )
    assert answer.disparity.shape == (500, 741)
    assert answer.rig is not None
    assert answer.rig.baseline == pytest.approx(0.193001)
    assert "report.json" in answer.save(tmp_path, cloud_formats=())


@pytest.mark.real
def test_depth_of_a_real_pair_against_its_truth(shared: Path) -> None:
    folder = shared / "data" / "stereo" / "middlebury2014" / "motorcycle_quarter"
    truth = read_disparity(folder / "disp_left.npz")
    answer = predict_stereo(
        folder / "left.png", folder / "right.png", model=Matcher(), calibration=folder / "calib.txt"
    )
    true_depth = 994.978 * 0.193001 / (truth + 31.086)
    sure = (answer.confidence > 0.5) & np.isfinite(truth)
    error = np.abs(answer.depth - true_depth)[sure] / true_depth[sure]
    assert np.median(error) < 0.01
    wrong = np.abs(answer.disparity - truth) > 3
    known = np.isfinite(truth)
    assert wrong[known & (answer.confidence < 0.1)].mean() > 5 * wrong[known & (answer.confidence > 0.9)].mean()
