"use strict";
// All addresses that ever had memory, in rows like a text: equal areas are equal numbers of bytes, and an address keeps
// its place as time goes on.

const ROW_GAP = 4, MOST_ROW = 26;

class AddressMap {
  /** `onPick(life)`, `onHover(piece or null, event)`, `onWindow(start, end)` */
  constructor(body, listeners) {
    this._listeners = listeners;
    this._canvas = make("canvas", {tabIndex: 0});
    this._canvas.setAttribute("role", "img");
    body.append(this._canvas);
    this._body = body;
    this.window = [0, 1];
    this._length = 1;
    this._pieces = null;
    this._colors = [];
    this._picked = -1;
    this._searching = false;
    this._listen();
  }

  setLength(length) {
    this._length = Math.max(length, 1);
    this.window = [0, this._length];
  }

  get rows() {
    const height = this._body.clientHeight - 10;
    return Math.max(4, Math.min(40, Math.floor(height / ((height > 300 ? 19 : 15) * unit()))));
  }

  /** How many pieces the map can show apart. */
  get cells() { return Math.max(1, Math.floor((this._body.clientWidth - gutter() - rightEdge()) * this.rows)); }

  setPieces(pieces, colors, searching) {
    this._pieces = pieces;
    this._colors = colors;
    this._searching = searching;
    this.draw();
  }

  setPicked(life) {
    this._picked = life;
    this.draw();
  }

  label(text) { this._canvas.setAttribute("aria-label", text); }

  get _geometry() {
    const left = gutter(), width = this._body.clientWidth - left - rightEdge(), rows = this.rows, height = this._body.clientHeight - 10;
    const pitch = Math.min(height / rows, MOST_ROW * unit() + ROW_GAP);
    const perRow = (this.window[1] - this.window[0]) / rows;
    return {left, width, rows, pitch, bar: Math.max(pitch - ROW_GAP, 3), perRow, scale: width / perRow};
  }

  draw() {
    const canvas = this._canvas, ratio = devicePixelRatio || 1;
    const wide = this._body.clientWidth, high = this._body.clientHeight;
    if (!wide || !high) return;
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(high * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, wide, high);
    if (!this._pieces) return;
    const geometry = this._geometry;
    this._drawGutter(context, geometry);
    const paints = this._paints(context);
    const {place, size, state, band, life, segment, mixed, hit} = this._pieces;
    let picked = -1;
    for (let i = 0; i < place.length; i++) {
      const kind = state[i];
      const dim = this._searching && !hit[i];
      const paint = kind === 0 ? this._colors[band[i]] : paints[kind];
      context.globalAlpha = dim ? (kind === 0 ? 0.22 : 0.5) : mixed[i] && kind === 0 ? 0.75 : 1;
      context.fillStyle = paint;
      const edge = i > 0 && segment[i] !== segment[i - 1] ? 1.5 : kind === 0 || kind === 1 ? 0.5 : 0;
      this._eachPart(geometry, place[i], size[i], (x, y, width, isFirst) => {
        const inset = isFirst && width > 3 ? edge : 0;
        context.fillRect(x + inset, y, Math.max(width - inset, 0.6), geometry.bar);
      });
      if (life[i] >= 0 && life[i] === this._picked && !mixed[i]) picked = i;
    }
    context.globalAlpha = 1;
    if (picked >= 0) this._outline(context, geometry, place[picked], size[picked]);
  }

  _drawGutter(context, geometry) {
    context.font = canvasFont();
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = themed("muted");
    const every = Math.ceil((24 * unit()) / geometry.pitch);
    for (let row = 0; row < geometry.rows; row += every) {
      context.fillText(bytes(Math.round(this.window[0] + row * geometry.perRow)), geometry.left - 10, 5 + row * geometry.pitch + geometry.bar / 2);
    }
  }

  _outline(context, geometry, place, size) {
    context.lineWidth = 2;
    context.strokeStyle = themed("hit");
    this._eachPart(geometry, place, size, (x, y, width) => context.strokeRect(x - 1, y - 1, Math.max(width, 3) + 2, geometry.bar + 2));
  }

  /** The parts of an interval of addresses, one for each row that it touches. */
  _eachPart(geometry, place, size, draw) {
    let start = Math.max(place, this.window[0]) - this.window[0];
    const end = Math.min(place + size, this.window[1]) - this.window[0];
    let isFirst = place >= this.window[0];
    while (start < end) {
      const row = Math.min(Math.floor(start / geometry.perRow + 1e-9), geometry.rows - 1);
      const stop = row === geometry.rows - 1 ? end : Math.min(end, (row + 1) * geometry.perRow);
      draw(geometry.left + (start - row * geometry.perRow) * geometry.scale, 5 + row * geometry.pitch, (stop - start) * geometry.scale, isFirst);
      if (stop <= start) return;
      isFirst = false;
      start = stop;
    }
  }

  _paints(context) {
    const theme = document.documentElement.dataset.theme;
    if (this._paintsOf === theme) return this._keptPaints;
    this._paintsOf = theme;
    const striped = (ground, stripe, step, weight) => {
      const tile = make("canvas", {width: step * 2, height: step * 2});
      const on = tile.getContext("2d");
      if (ground) { on.fillStyle = ground; on.fillRect(0, 0, step * 2, step * 2); }
      on.strokeStyle = stripe;
      on.lineWidth = weight * 2;
      for (const shift of [-step * 2, 0, step * 2]) { on.beginPath(); on.moveTo(shift - 2, step * 2 + 2); on.lineTo(shift + step * 2 + 2, -2); on.stroke(); }
      const pattern = context.createPattern(tile, "repeat");
      pattern.setTransform(new DOMMatrix([0.5, 0, 0, 0.5, 0, 0]));
      return pattern;
    };
    const dots = make("canvas", {width: 8, height: 8});
    const on = dots.getContext("2d");
    on.fillStyle = themed("unmapped");
    on.fillRect(3, 3, 2, 2);
    const dotted = context.createPattern(dots, "repeat");
    dotted.setTransform(new DOMMatrix([0.5, 0, 0, 0.5, 0, 0]));
    this._keptPaints = [null, striped(themed("waiting"), "rgba(0,0,0,.35)", 6, 1.6), themed("free"), striped(themed("free"), themed("pinned"), 6, 1.1), dotted];
    return this._keptPaints;
  }

  // --- pointer ---------------------------------------------------------------------------------------------------------

  /** The piece under a point; null for none. */
  _pieceAt(x, y) {
    if (!this._pieces) return null;
    const geometry = this._geometry;
    const row = Math.floor((y - 5) / geometry.pitch), across = (x - geometry.left) / geometry.scale;
    if (row < 0 || row >= geometry.rows || across < 0 || across > geometry.perRow) return null;
    return this._pieceOf(this.window[0] + row * geometry.perRow + across);
  }

  _pieceOf(at) {
    const {place, size} = this._pieces;
    let low = 0, high = place.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (place[middle] <= at) low = middle; else high = middle - 1;
    }
    return place.length && place[low] <= at && at < place[low] + size[low] ? low : null;
  }

  /** The next or previous block after the selected one. */
  neighbour(step) {
    if (!this._pieces) return -1;
    const {life, state, mixed} = this._pieces;
    let i = life.indexOf(this._picked);
    if (i < 0) i = step > 0 ? -1 : life.length;
    for (i += step; i >= 0 && i < life.length; i += step) if (life[i] >= 0 && state[i] < 2 && !mixed[i]) return life[i];
    return -1;
  }

  _listen() {
    const canvas = this._canvas;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = {x: event.offsetX, y: event.offsetY, window: [...this.window], moved: false};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) {
        const found = this._pieceAt(event.offsetX, event.offsetY);
        this._listeners.onHover(found, event);
        return;
      }
      const dx = event.offsetX - drag.x, dy = event.offsetY - drag.y;
      if (Math.abs(dx) + Math.abs(dy) < 4 && !drag.moved) return;
      drag.moved = true;
      const geometry = this._geometry;
      this._moveTo(drag.window[0] - dx / geometry.scale - (dy / geometry.pitch) * geometry.perRow, drag.window[1] - drag.window[0]);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) {
        const found = this._pieceAt(event.offsetX, event.offsetY);
        this._listeners.onPick(found === null || this._pieces.mixed[found] ? -1 : this._pieces.life[found], found);
      }
      drag = null;
    });
    canvas.addEventListener("pointerleave", (event) => this._listeners.onHover(null, event));
    canvas.addEventListener("dblclick", () => this._moveTo(0, this._length));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const geometry = this._geometry;
      const row = Math.min(Math.max(Math.floor((event.offsetY - 5) / geometry.pitch), 0), geometry.rows - 1);
      const at = this.window[0] + row * geometry.perRow + Math.max(0, (event.offsetX - geometry.left) / geometry.scale);
      const factor = Math.exp(Math.max(-0.5, Math.min(0.5, event.deltaY * 0.0022)));
      const span = Math.min(Math.max((this.window[1] - this.window[0]) * factor, 1 << 16), this._length);
      this._moveTo(at - ((at - this.window[0]) / (this.window[1] - this.window[0])) * span, span);
    }, {passive: false});
  }

  /** Move closer to the selected block, or to the middle. */
  zoom(factor) {
    const picked = this._pieces ? this._pieces.life.indexOf(this._picked) : -1;
    const middle = picked >= 0 && this._picked >= 0 ? this._pieces.place[picked] + this._pieces.size[picked] / 2 : (this.window[0] + this.window[1]) / 2;
    const span = Math.min(Math.max((this.window[1] - this.window[0]) * factor, 1 << 16), this._length);
    this._moveTo(middle - span / 2, span);
  }

  /** Return what is drawn, for a picture of the page. */
  get canvas() { return this._canvas; }

  /** Scroll to a place unless it is visible. */
  reveal(place, size) {
    const span = this.window[1] - this.window[0];
    if (place >= this.window[0] && place + size <= this.window[1]) return;
    this._moveTo(place + size / 2 - span / 2, span);
  }

  _moveTo(start, span) {
    const low = Math.max(0, Math.min(start, this._length - span));
    this.window = [low, low + span];
    this.draw();
    this._listeners.onWindow();
  }
}
