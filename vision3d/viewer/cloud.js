// SPDX-License-Identifier: Apache-2.0
// Shows a point cloud with WebGL: drag turns, wheel or pinch zooms, right drag or two fingers pan.

function decode(text, Kind) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Kind(bytes.buffer);
}

// Column-major 4x4 matrices, as WebGL takes them.
function multiply(a, b) {
  const out = new Float32Array(16);
  for (let c = 0; c < 4; c++)
    for (let r = 0; r < 4; r++) {
      let sum = 0;
      for (let k = 0; k < 4; k++) sum += a[k * 4 + r] * b[c * 4 + k];
      out[c * 4 + r] = sum;
    }
  return out;
}

function perspective(angle, aspect, near, far) {
  const f = Math.min(1, aspect) / Math.tan(angle / 2); // the angle belongs to the shorter side
  return new Float32Array([f / aspect, 0, 0, 0, 0, f, 0, 0,
    0, 0, (far + near) / (near - far), -1, 0, 0, 2 * far * near / (near - far), 0]);
}

const VERTEX = `
attribute vec3 position; attribute vec3 color;
uniform mat4 view; uniform mat4 projection; uniform vec3 low; uniform vec3 extent; uniform float size; uniform float reach;
varying vec3 shade;
void main() {
  vec4 place = view * vec4(low + position * extent, 1.0);
  gl_Position = projection * place;
  gl_PointSize = clamp(size * reach / max(-place.z, 0.0001), 1.0, 24.0);
  shade = color;
}`;
const FRAGMENT = `
precision mediump float; varying vec3 shade;
void main() { gl_FragColor = vec4(shade, 1.0); }`;

class CloudViewer {
  constructor(canvas, cloud) {
    this.canvas = canvas;
    this.cloud = cloud;
    this.pointers = new Map();
    this.gl = canvas.getContext("webgl", { antialias: true, preserveDrawingBuffer: true });
    if (!this.gl) throw new Error("this browser shows no WebGL");
    // from inside, neighbouring points shall touch
    this.size = cloud.inside ? Math.min(8, Math.max(2, 500 * Math.sqrt(4 * Math.PI / cloud.count))) : 2;
    this.reset();
    this.prepare();
    this.listen();
    new ResizeObserver(() => this.request()).observe(canvas);
    this.request();
  }

  reset() {
    if (this.cloud.inside) { // a panorama: the eye turns at the place of its camera
      Object.assign(this, { target: [0, 0, 0], distance: 0.02 * this.cloud.radius, home: this.cloud.radius, yaw: 0, pitch: 0 });
      return this.request();
    }
    // The camera starts where the left camera stood, moved a little to the side so that the depth is seen.
    this.target = [...this.cloud.center];
    // A little behind and beside the camera that took the picture: nothing can stand in the way there.
    this.distance = (this.cloud.lines ? 1.8 : 1.2) * Math.max(Math.hypot(...this.target), 0.3 * this.cloud.radius);
    if (this.distance > 8 * this.cloud.radius) this.distance = 2.6 * this.cloud.radius;
    this.home = this.distance;
    this.yaw = -0.16;
    this.pitch = 0.07;
    this.request();
  }

  prepare() {
    const gl = this.gl;
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
    gl.useProgram(program);
    this.place = (name) => gl.getUniformLocation(program, name);
    const { lines } = this.cloud;
    this.points = [
      this.attribute(program, "position", decode(this.cloud.positions, Uint16Array), gl.UNSIGNED_SHORT, 8),
      this.attribute(program, "color", decode(this.cloud.colors, Uint8Array), gl.UNSIGNED_BYTE, 4)];
    this.lines = lines && [
      this.attribute(program, "position", decode(lines.positions, Float32Array), gl.FLOAT, 12),
      this.attribute(program, "color", decode(lines.colors, Uint8Array), gl.UNSIGNED_BYTE, 4)];
    gl.enable(gl.DEPTH_TEST);
    gl.clearColor(0.047, 0.055, 0.063, 1);
  }

  // Stores the values of an attribute; the function that it returns selects them for drawing.
  attribute(program, name, values, kind, stride) {
    const gl = this.gl, index = gl.getAttribLocation(program, name), buffer = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(index);
    return () => {
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.vertexAttribPointer(index, 3, kind, true, stride, 0);
    };
  }

  request() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  // World to eye: points have y down and z forward (camera axes), the eye of WebGL y up and z backward.
  view() {
    const cy = Math.cos(this.yaw), sy = Math.sin(this.yaw), cp = Math.cos(this.pitch), sp = Math.sin(this.pitch);
    const right = [cy, 0, -sy];
    const forward = [sy * cp, sp, cy * cp];
    const down = [-sy * sp, cp, -cy * sp];
    const eye = this.target.map((value, i) => value - forward[i] * this.distance);
    const dot = (a) => a[0] * eye[0] + a[1] * eye[1] + a[2] * eye[2];
    this.axes = { right, down };
    return new Float32Array([right[0], -down[0], -forward[0], 0, right[1], -down[1], -forward[1], 0,
      right[2], -down[2], -forward[2], 0, -dot(right), dot(down), dot(forward), 1]);
  }

  draw() {
    const gl = this.gl, canvas = this.canvas, ratio = Math.min(window.devicePixelRatio || 1, 2);
    const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
    const height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    gl.viewport(0, 0, width, height);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    const span = this.distance + 50 * this.cloud.radius;
    gl.uniformMatrix4fv(this.place("view"), false, this.view());
    gl.uniformMatrix4fv(this.place("projection"), false,
      perspective(this.cloud.inside ? 1.2 : 0.85, width / height, Math.max(span * 1e-4, this.distance * 0.01), span));
    gl.uniform1f(this.place("size"), this.size * ratio);
    gl.uniform1f(this.place("reach"), this.home);
    this.show(this.points, this.cloud.low, this.cloud.extent, gl.POINTS, this.cloud.count);
    if (this.lines) this.show(this.lines, [0, 0, 0], [1, 1, 1], gl.LINES, this.cloud.lines.count);
  }

  show(attributes, low, extent, kind, count) {
    for (const select of attributes) select();
    this.gl.uniform3fv(this.place("low"), low);
    this.gl.uniform3fv(this.place("extent"), extent);
    this.gl.drawArrays(kind, 0, count);
  }

  turn(dx, dy) {
    this.yaw -= dx * 0.006;
    this.pitch = Math.max(-1.5, Math.min(1.5, this.pitch + dy * 0.006));
  }

  pan(dx, dy) {
    const reach = this.cloud.inside ? Math.max(this.distance, 0.3 * this.cloud.radius) : this.distance;
    const step = reach * 0.9 / Math.max(1, Math.min(this.canvas.clientWidth, this.canvas.clientHeight));
    this.view();
    for (let i = 0; i < 3; i++)
      this.target[i] -= (this.axes.right[i] * dx + this.axes.down[i] * dy) * step;
  }

  zoom(factor) {
    const { radius } = this.cloud;
    this.distance = Math.max(0.02 * radius, Math.min(60 * radius, this.distance * factor));
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    });
    for (const name of ["pointerup", "pointercancel"])
      canvas.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(0.25, Math.abs(event.deltaY) * 0.0015)));
      this.request();
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => { this.prepare(); this.request(); });
  }

  key(event) {
    const steps = { ArrowLeft: [-15, 0], ArrowRight: [15, 0], ArrowUp: [0, -15], ArrowDown: [0, 15] };
    if (event.key in steps) this.turn(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(0.9);
    else if (event.key === "-") this.zoom(1.1);
    else return;
    event.preventDefault();
    this.request();
  }

  move(event) {
    const last = this.pointers.get(event.pointerId);
    if (!last) return;
    const dx = event.clientX - last[0], dy = event.clientY - last[1];
    if (this.pointers.size >= 2) {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const before = Math.hypot(last[0] - other[0], last[1] - other[1]);
      const after = Math.hypot(event.clientX - other[0], event.clientY - other[1]);
      this.zoom(before / Math.max(after, 1));
      this.pan(dx / 2, dy / 2);
    } else if (event.buttons & 6 || event.shiftKey || event.ctrlKey) {
      this.pan(dx, dy);
    } else {
      this.turn(dx, dy);
    }
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.request();
  }
}
