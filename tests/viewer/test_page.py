# SPDX-License-Identifier: Apache-2.0
"""The viewer page: its data, that it needs nothing from outside, and how a real browser shows it."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from vision3d.pipelines import StereoResult
from vision3d.types import Camera, PointCloud, StereoRig
from vision3d.viewer import cloud_payload, write_cloud_view, write_view

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = shlex.split(
    "--headless --no-sandbox --disable-gpu --use-gl=angle --use-angle=swiftshader --enable-unsafe-swiftshader "
    "--disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync "
    "--hide-scrollbars --enable-logging=stderr --v=0 --window-size=1300,900 --virtual-time-budget=4000"
)


def make_result(height: int = 120, width: int = 160, calibrated: bool = True) -> StereoResult:
    generator = np.random.default_rng(0)
    image = cv2.resize(generator.integers(0, 255, (12, 16, 3), dtype=np.uint8), (width, height))
    disparity = np.linspace(5, 20, width * height, dtype=np.float32).reshape(height, width)
    camera = Camera(np.array([[200.0, 0, width / 2], [0, 200, height / 2], [0, 0, 1]]), width, height)
    rig = StereoRig(camera, camera, 0.1) if calibrated else None
    return StereoResult(
        disparity=disparity,
        image=image,
        right=image,
        confidence=np.ones_like(disparity),
        occlusion=disparity > 19,
        depth=20 / disparity if calibrated else None,
        rig=rig,
        model="test </script> & more",
        files={"left": "left <b>.png"},
    )


def data_of(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    match = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    return json.loads(match.group(1))


def test_page_holds_the_maps_exactly(tmp_path: Path) -> None:
    result = make_result()
    truth = np.where(result.disparity > 10, result.disparity + 0.5, np.nan)
    write_view(tmp_path / "view.html", result, truth=truth, figures={"errors": {"x": {"EPE px": 0.5}}})
    data = data_of(tmp_path / "view.html")
    assert data["report"]["model"] == "test </script> & more"
    for name, expected in (("disparity", result.disparity), ("truth", truth)):
        entry = data["maps"][name]
        codes = np.frombuffer(base64.b64decode(entry["data"]), "<u2").reshape(120, 160)
        values = np.where(codes == 65535, np.nan, entry["low"] + codes * entry["step"])
        np.testing.assert_allclose(values, expected, atol=2e-4)
    occlusion = np.frombuffer(base64.b64decode(data["maps"]["occlusion"]), np.uint8)
    assert occlusion.sum() == result.occlusion.sum()
    assert data["rig"] == {"fx": 200.0, "baseline": 0.1, "doffs": 0.0, "unit": "m"}


def test_page_asks_for_nothing_from_outside(tmp_path: Path) -> None:
    write_view(tmp_path / "view.html", make_result())
    text = (tmp_path / "view.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", text)
    assert "http://" not in text
    assert "https://" not in text
    assert "{{" not in re.sub(r"<script id=.data.*?</script>", "", text, flags=re.DOTALL)


def test_cloud_positions_come_back() -> None:
    points = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32) * [1, 2, 5]
    points[7] = np.nan
    payload = cloud_payload(PointCloud(points=points))
    assert payload is not None
    assert payload["count"] == payload["total"] == 499
    codes = np.frombuffer(base64.b64decode(payload["positions"]), "<u2").reshape(-1, 4)[:, :3]
    restored = np.array(payload["low"]) + codes / 65535 * np.array(payload["extent"])
    np.testing.assert_allclose(restored, np.delete(points, 7, axis=0), atol=1e-3)
    thinned = cloud_payload(PointCloud(points=points), max_points=100)
    assert thinned is not None
    assert (thinned["count"], thinned["total"]) == (100, 499)
    assert cloud_payload(PointCloud(points=np.zeros((0, 3)))) is None


def test_large_maps_are_thinned(tmp_path: Path) -> None:
    write_view(tmp_path / "view.html", make_result(1500, 2000))
    maps = data_of(tmp_path / "view.html")["maps"]
    assert maps["step"] == 2
    assert maps["width"] * maps["height"] <= 1_000_000
    assert (tmp_path / "view.html").stat().st_size < 12e6


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (40, 3)])
def test_tiny_results(tmp_path: Path, size: tuple[int, int]) -> None:
    write_view(tmp_path / "view.html", make_result(*size))
    assert data_of(tmp_path / "view.html")["size"] == [size[1], size[0]]


def screenshot(page: Path, folder: Path, *extra: str) -> tuple[np.ndarray, str]:
    """The picture [H, W, 3] BGR of the page and the browser's log."""
    assert BROWSER is not None
    target = folder / "shot.png"
    call = [BROWSER, *FLAGS, *extra, f"--user-data-dir={folder / 'profile'}", f"--screenshot={target}", page.as_uri()]
    done = subprocess.run(call, capture_output=True, text=True, timeout=90, check=False)
    picture = cv2.imread(str(target))
    assert picture is not None, done.stderr[-500:]
    return picture, done.stderr


def errors_in(log: str) -> list[str]:
    """The page's own errors (the driver's performance remarks are none)."""
    lines = [line for line in log.splitlines() if "CONSOLE" in line and "GL Driver Message" not in line]
    return [line for line in lines if "Error" in line or "refused" in line.lower() or "ERROR:CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("kind", ["calibrated", "uncalibrated", "cloud", "cameras"])
def test_browser_draws_the_cloud(tmp_path: Path, kind: str) -> None:
    page = tmp_path / "view.html"
    result = make_result(240, 320, calibrated=kind == "calibrated")
    if kind in ("cloud", "cameras"):
        cloud = make_result(240, 320).pointcloud()
        poses = np.tile(np.eye(4), (5, 1, 1))
        poses[:, 0, 3] = np.linspace(-0.4, 0.4, 5)
        lens = np.array([[200.0, 0, 80], [0, 200, 60], [0, 0, 1]])
        cameras = [Camera(lens, 160, 120, None, pose) for pose in poses] if kind == "cameras" else ()
        write_cloud_view(page, cloud, "cloud.ply", cameras=cameras)
    else:
        write_view(page, result)
    picture, log = screenshot(page, tmp_path)
    assert errors_in(log) == []
    cloud = picture[150:520, 60:560]
    drawn = cloud[np.abs(cloud.astype(int) - [16, 14, 12]).max(axis=2) > 24]
    assert len(drawn) > 0.15 * cloud.shape[0] * cloud.shape[1]
    assert len(np.unique(drawn // 32, axis=0)) > 20
    if kind == "cameras":
        for color in ((60, 170, 255), (255, 180, 90)):  # BGR of the pyramids and of the path
            assert (np.abs(picture.astype(int) - color).max(axis=2) < 40).sum() > 50


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_page_says_so_without_webgl(tmp_path: Path) -> None:
    page = tmp_path / "view.html"
    write_view(page, make_result())
    call = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-3d-apis", "--no-first-run"]
    call += ["--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000"]
    done = subprocess.run([*call, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=90, check=False)
    assert re.search(r'id="cloud-message">The cloud cannot be drawn: this browser shows no WebGL', done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_controls_work(tmp_path: Path) -> None:
    """Turning, zooming, panning and resetting change the picture or bring it back; hovering reads the pixel."""
    page = tmp_path / "view.html"
    write_view(page, make_result(240, 320))
    text = page.read_text(encoding="utf-8").replace("</body>", f"<script>{DRIVER}</script></body>")
    # a headless browser on virtual time may stop showing frames
    frames = "<script>window.requestAnimationFrame = (draw) => setTimeout(draw, 0);</script>"
    text = text.replace("<head>", "<head>" + frames)
    page.write_text(text, encoding="utf-8")
    call = [str(BROWSER), *FLAGS, "--virtual-time-budget=60000", f"--user-data-dir={tmp_path / 'profile'}"]
    call += ["--dump-dom", page.as_uri()]
    done = subprocess.run(call, capture_output=True, text=True, timeout=90, check=False)
    match = re.search(r'<pre id="outcome">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match is not None, done.stderr[-500:]
    outcome = json.loads(match.group(1))
    assert outcome["turned"]
    assert outcome["zoomed"]
    assert outcome["panned"]
    assert outcome["pinched"]
    assert outcome["reset"]
    assert outcome["tabs"] == ["disparity", "depth", "confidence", "occlusion"]
    assert outcome["readout"].startswith("pixel 160, 120 disparity 12.5")
    assert "depth 1.59" in outcome["readout"]


DRIVER = """
(async () => {
  const canvas = document.getElementById("cloud"), map = document.getElementById("map");
  const frame = () => new Promise((done) => setTimeout(done, 20));
  const shot = async () => { await frame(); return canvas.toDataURL(); };
  canvas.setPointerCapture = () => {};
  const send = (target, name, x, y, more) => target.dispatchEvent(
    new PointerEvent(name, { clientX: x, clientY: y, pointerId: 1, bubbles: true, ...more }));
  const drag = (more) => { send(canvas, "pointerdown", 200, 300, more); send(canvas, "pointermove", 260, 320, more);
    send(canvas, "pointerup", 260, 320, more); };
  const outcome = {}, first = await shot();
  drag({ buttons: 1 });
  const turned = await shot();
  outcome.turned = turned !== first;
  canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -200, bubbles: true, cancelable: true }));
  const zoomed = await shot();
  outcome.zoomed = zoomed !== turned;
  drag({ buttons: 2 });
  const panned = await shot();
  outcome.panned = panned !== zoomed;
  send(canvas, "pointerdown", 200, 300, { pointerId: 2 });
  send(canvas, "pointerdown", 300, 300, { pointerId: 3 });
  send(canvas, "pointermove", 380, 300, { pointerId: 3 });
  outcome.pinched = await shot() !== panned;
  document.getElementById("reset-view").click();
  outcome.reset = await shot() === first;
  outcome.tabs = [...document.querySelectorAll("#tabs button")].map((button) => button.textContent);
  for (const button of document.querySelectorAll("#tabs button")) button.click();
  const box = map.getBoundingClientRect();
  send(map, "pointermove", box.left + box.width / 2 + 0.5, box.top + box.height / 2 + 0.5, {});
  for (const span of document.querySelectorAll("#readout span")) span.append(" ");
  outcome.readout = document.getElementById("readout").textContent.trim();
  const pre = document.createElement("pre");
  pre.id = "outcome";
  pre.textContent = JSON.stringify(outcome);
  document.body.append(pre);
})();
"""
