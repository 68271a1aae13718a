// SPDX-License-Identifier: Apache-2.0
// Puts the page together: cloud, maps, pair, figures.

const element = (id) => document.getElementById(id);

function showCloud(data) {
  const canvas = element("cloud"), message = element("cloud-message");
  const refuse = (text) => { message.textContent = text; message.hidden = false; canvas.hidden = true; };
  if (!data.cloud) return refuse("No point passed the limits of depth and confidence, so there is no cloud to show.");
  let viewer;
  try {
    viewer = new CloudViewer(canvas, data.cloud);
  } catch (error) {
    return refuse(`The cloud cannot be drawn: ${error.message}. Open cloud.ply in MeshLab, CloudCompare or Blender instead.`);
  }
  element("point-size").value = viewer.size;
  element("point-size").addEventListener("input", (event) => { viewer.size = Number(event.target.value); viewer.request(); });
  element("reset-view").addEventListener("click", () => viewer.reset());
  const { count, total, metric } = data.cloud;
  const shown = count < total ? `${count.toLocaleString("en")} of ${total.toLocaleString("en")} points` : `${count.toLocaleString("en")} points`;
  const unit = metric ? "" : data.cloud.lines ? " - the scale is arbitrary" : " - no calibration: the scale is arbitrary";
  element("cloud-note").textContent = `${shown}${unit} - drag to turn, wheel to zoom, right drag to pan`;
}

function showMaps(data) {
  const canvas = element("map"), viewer = new MapViewer(data, canvas), kinds = viewer.kinds();
  const buttons = kinds.map((kind) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("role", "tab");
    button.textContent = kind.name;
    button.addEventListener("click", () => select(kind, button));
    element("tabs").append(button);
    return button;
  });
  function select(kind, chosen) {
    for (const button of buttons) button.setAttribute("aria-selected", String(button === chosen));
    viewer.paint(kind);
    element("legend").innerHTML = viewer.legend(kind);
  }
  select(kinds[0], buttons[0]);
  const point = (event) => readPixel(viewer, canvas, event);
  for (const name of ["pointermove", "pointerdown"]) canvas.addEventListener(name, point);
  canvas.addEventListener("pointerleave", () => { element("cursor").hidden = true; });
}

function readPixel(viewer, canvas, event) {
  // The picture may stand inside the canvas box with free borders (object-fit: contain).
  const box = canvas.getBoundingClientRect();
  const zoom = Math.min(box.width / viewer.width, box.height / viewer.height);
  const x = event.clientX - box.left - (box.width - zoom * viewer.width) / 2;
  const y = event.clientY - box.top - (box.height - zoom * viewer.height) / 2;
  const column = Math.floor(x / zoom), row = Math.floor(y / zoom);
  if (column < 0 || row < 0 || column >= viewer.width || row >= viewer.height) return;
  const cursor = element("cursor");
  cursor.hidden = false;
  cursor.style.left = `${event.clientX - box.left}px`;
  cursor.style.top = `${event.clientY - box.top}px`;
  element("readout").replaceChildren(...viewer.read(column, row).map(([name, text]) => {
    const item = document.createElement("span"), value = document.createElement("b");
    value.textContent = text;
    item.append(`${name} `, value);
    return item;
  }));
}

function showErrors(errors) {
  const table = document.createElement("table"), methods = Object.keys(errors);
  const names = [...new Set(methods.flatMap((method) => Object.keys(errors[method])))];
  const row = (cells, kind) => {
    const line = table.insertRow();
    for (const text of cells) { const cell = document.createElement(kind); cell.textContent = text; line.append(cell); }
  };
  row(["against the truth", ...names], "th");
  for (const method of methods)
    row([method, ...names.map((name) => typeof errors[method][name] === "number" ? errors[method][name].toFixed(2) : "-")], "td");
  element("errors").append(table);
}

function showFigures(report) {
  const list = element("figures");
  const add = (name, text) => {
    if (text === undefined || text === null || text === "") return;
    const term = document.createElement("dt"), value = document.createElement("dd");
    term.textContent = name;
    value.textContent = text;
    list.append(term, value);
  };
  const range = (entry) => entry && entry.median !== null
    ? `${entry.min} to ${entry.max} ${entry.unit}, median ${entry.median} ${entry.unit}` : null;
  if (report.errors) showErrors(report.errors);
  add("model", report.model);
  add("image size", report.width && `${report.width} x ${report.height} px`);
  add("scale", report.scale);
  add("time", report.seconds !== undefined ? `${report.seconds} s` : null);
  add("disparity", range(report.disparity));
  add("valid pixels", report.disparity ? `${report.disparity.valid_percent} %` : null);
  add("depth", range(report.depth));
  const sources = { network: "of the network", disparity: "planes fitted to the disparity" };
  add("normals", report.normals && sources[report.normals.source]);
  add("mesh level", report.mesh_level);
  add("mean confidence", report.confidence_mean);
  add("occluded", typeof report.occluded_percent === "number" ? `${report.occluded_percent} %` : null);
  const rig = report.calibration;
  add("calibration", rig && `focal length ${rig.fx.toFixed(2)} px, baseline ${(1000 * rig.baseline_m).toFixed(2)} mm, cx offset ${rig.doffs.toFixed(2)} px`);
  add("points", report.points);
  add("cameras", report.cameras);
  add("focal length", report.focal_length);
  for (const [name, path] of Object.entries(report.files || {})) add(name, path);
}

function start() {
  const data = JSON.parse(element("data").textContent), report = data.report;
  element("title").textContent = data.title;
  const facts = [report.model, report.width && `${report.width} x ${report.height}`, report.vision3d && `vision3d ${report.vision3d}`];
  element("subtitle").textContent = facts.filter(Boolean).join(" - ");
  if (report.warnings.length) {
    element("warnings").hidden = false;
    element("warnings").replaceChildren(...report.warnings.map((text) => {
      const line = document.createElement("p");
      line.textContent = text;
      return line;
    }));
  }
  showCloud(data);
  showFigures(report);
  if (!data.images) {
    document.body.classList.add("cloud-only");
    element("map-panel").hidden = element("pair-panel").hidden = true;
    return;
  }
  element("left").src = data.images.left;
  if (data.images.right) element("right").src = data.images.right;
  else { // a panorama
    element("right").closest("figure").hidden = true;
    element("pair-panel").querySelector("h2").textContent = element("left").alt = "Panorama";
    element("left").nextElementSibling.textContent = "";
  }
  showMaps(data);
}

start();
