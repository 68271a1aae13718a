// SPDX-License-Identifier: Apache-2.0
// Paints the maps with their colour tables and reads single pixels.

class MapViewer {
  constructor(data, canvas) {
    this.data = data;
    this.canvas = canvas;
    const maps = data.maps;
    this.width = canvas.width = maps.width;
    this.height = canvas.height = maps.height;
    this.tables = Object.fromEntries(
      Object.entries(data.colors).map(([name, text]) => [name, decode(text, Uint8Array)]));
    this.disparity = maps.disparity ? this.unpack(maps.disparity) : null;
    this.distance = maps.distance ? this.unpack(maps.distance) : null; // of panoramas
    this.truth = maps.truth ? this.unpack(maps.truth) : null;
    this.confidence = maps.confidence ? decode(maps.confidence, Uint8Array) : null;
    this.occlusion = maps.occlusion ? decode(maps.occlusion, Uint8Array) : null;
    this.normals = maps.normals ? decode(maps.normals, Uint8Array) : null;
  }

  unpack(map) {
    const codes = decode(map.data, Uint16Array);
    const values = new Float32Array(codes.length);
    for (let i = 0; i < codes.length; i++) values[i] = codes[i] === 65535 ? NaN : map.low + codes[i] * map.step;
    return values;
  }

  depth(disparity) {
    const rig = this.data.rig;
    const shifted = rig ? disparity + rig.doffs : NaN;
    return shifted > 0 ? rig.fx * rig.baseline / shifted : NaN;
  }

  // The maps there are: name, what it shows, colour table, range and unit.
  kinds() {
    const [low, high] = this.data.maps.range;
    const kinds = this.distance
      ? [{ name: "distance", value: (i) => this.distance[i], table: "turbo", low, high, unit: "m" }]
      : [{ name: "disparity", value: (i) => this.disparity[i], table: "turbo", low, high, unit: "px" }];
    if (this.data.rig) {
      const depths = [];
      for (let i = 0; i < this.disparity.length; i += 97) {
        const z = this.depth(this.disparity[i]);
        if (Number.isFinite(z)) depths.push(z);
      }
      depths.sort((a, b) => a - b);
      const at = (share) => depths.length ? depths[Math.floor(share * (depths.length - 1))] : 1;
      const digits = (value, round) => { const p = 10 ** Math.floor(Math.log10(value) - 1); return round(value / p) * p; };
      kinds.push({ name: "depth", value: (i) => this.depth(this.disparity[i]), table: "turbo", reverse: true,
        low: digits(at(0.01), Math.floor), high: digits(at(0.98), Math.ceil), unit: "m" });
    }
    if (this.confidence)
      kinds.push({ name: "confidence", value: (i) => this.confidence[i] / 255, table: "viridis", low: 0, high: 1, unit: "" });
    if (this.normals) kinds.push({ name: "normals", paint: (i) => this.normals.subarray(3 * i, 3 * i + 3), swatches: [
      [[128, 128, 255], "faces the camera"], [[255, 128, 128], "faces right"], [[0, 128, 128], "faces left"],
      [[128, 255, 128], "faces up"], [[128, 0, 128], "faces down"], [[0, 0, 0], "unknown"]] });
    if (this.occlusion) kinds.push({ name: "occlusion", paint: (i) => this.occlusion[i] ? [232, 93, 93] : [58, 66, 77] });
    if (this.truth) {
      kinds.push({ name: "truth", value: (i) => this.truth[i], table: "turbo", low, high, unit: "px" });
      kinds.push({ name: "error", value: (i) => Math.abs(this.disparity[i] - this.truth[i]), table: "inferno",
        low: 0, high: 5, unit: "px", unknown: [40, 60, 90] });
    }
    return kinds;
  }

  paint(kind) {
    const context = this.canvas.getContext("2d");
    const image = context.createImageData(this.width, this.height);
    const table = this.tables[kind.table];
    for (let i = 0; i < this.width * this.height; i++) {
      let color;
      if (kind.paint) color = kind.paint(i);
      else {
        const value = kind.value(i);
        if (Number.isNaN(value)) color = kind.unknown || [0, 0, 0];
        else {
          let share = Math.min(1, Math.max(0, (value - kind.low) / (kind.high - kind.low)));
          if (kind.reverse) share = 1 - share;
          const at = 3 * Math.round(share * 255);
          color = [table[at], table[at + 1], table[at + 2]];
        }
      }
      image.data.set([color[0], color[1], color[2], 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
  }

  legend(kind) {
    const swatch = (color, text) => `<i class="swatch" style="background:rgb(${color})"></i><span>${text}</span>`;
    if (kind.swatches) return kind.swatches.map(([color, text]) => swatch(color, text)).join("");
    if (kind.paint) return swatch([58, 66, 77], "seen in both views") + swatch([232, 93, 93], "occluded or outside of the right view");
    const table = this.tables[kind.table], stops = [];
    for (let i = 0; i <= 16; i++) {
      const at = 3 * Math.round((kind.reverse ? 16 - i : i) / 16 * 255);
      stops.push(`rgb(${table[at]},${table[at + 1]},${table[at + 2]})`);
    }
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
      const text = Number((kind.low + share * (kind.high - kind.low)).toPrecision(3));
      return `<span>${text}${share === 1 && kind.unit ? " " + kind.unit : ""}</span>`;
    });
    const unknown = `<i class="swatch" style="background:rgb(${kind.unknown || [0, 0, 0]})"></i>unknown`;
    const note = kind.name === "confidence" ? "" : `<div class="ticks"><span>${unknown}</span></div>`;
    return `<div class="ramp" style="background:linear-gradient(90deg,${stops})"></div><div class="ticks">${ticks.join("")}</div>${note}`;
  }

  // Text of the pixel (column, row) of the map.
  read(column, row) {
    const i = row * this.width + column, step = this.data.maps.step;
    const show = (value, digits, unit) => Number.isFinite(value) ? `${value.toFixed(digits)} ${unit}` : "unknown";
    const half = Math.floor(step / 2);
    const parts = [["pixel", `${column * step + half}, ${row * step + half}`]];
    if (this.distance) parts.push(["distance", show(this.distance[i], 3, "m")]);
    if (this.disparity) parts.push(["disparity", show(this.disparity[i], 2, "px")]);
    if (this.data.rig) parts.push(["depth", show(this.depth(this.disparity[i]), 3, "m")]);
    if (this.confidence) parts.push(["confidence", (this.confidence[i] / 255).toFixed(2)]);
    if (this.occlusion) parts.push(["occluded", this.occlusion[i] ? "yes" : "no"]);
    if (this.normals) {
      const code = Array.from(this.normals.subarray(3 * i, 3 * i + 3)), signs = [1, -1, -1];
      const known = code.some((value) => value > 0);
      parts.push(["normal", known ? code.map((value, k) => (signs[k] * (value / 127.5 - 1)).toFixed(2)).join(", ") : "unknown"]);
    }
    if (this.truth) {
      parts.push(["truth", show(this.truth[i], 2, "px")]);
      parts.push(["error", show(Math.abs(this.disparity[i] - this.truth[i]), 2, "px")]);
    }
    return parts;
  }
}
