"use strict";
// Bytes over time, one on top of the other. uPlot draws; stacking, the moment and the marks are our own.

const STEPPED = uPlot.paths.stepped({align: 1});
const BINARY_STEPS = Array.from({length: 52}, (_, power) => 2 ** power);

class StackChart {
  /**
   * `onMoment(x)`, `onWindow(low, high)` and `onReset()` report a click, a drag and a double click;
   * `onHover(column)` reports the column under the pointer, -1 for none.
   */
  constructor(body, listeners) {
    this._body = body;
    this._listeners = listeners;
    this._layers = [];
    this._top = 1;
    this._window = [0, 1];
    this._moment = null;
    this._marks = [];
    this._plot = null;
    this._isTime = false;
  }

  /**
   * `layers` from the bottom up: {values, color, dim}; `lines` are drawn over them: {values, color, width, fill}. `starts`
   * has the start of each column, then the end of the last one.
   */
  setData(starts, layers, lines, top, isTime) {
    const size = starts.length;
    const stretched = (values) => { const longer = new Float64Array(size); longer.set(values); longer[size - 1] = values[size - 2] || 0; return longer; };
    const sums = [];
    let below = new Float64Array(size);
    for (const layer of layers) {
      const sum = stretched(layer.values);
      for (let i = 0; i < size; i++) sum[i] += below[i];
      sums.push(sum);
      below = sum;
    }
    this._top = Math.max(top, 1);
    this._isTime = isTime;
    this.starts = starts;
    const looks = [...layers.map((layer) => layer.color + (layer.dim ? "!" : "")), ...lines.map((line) => line.color + line.fill), isTime, unit()].join();
    const data = [starts, ...sums.reverse(), ...lines.map((line) => stretched(line.values))];
    if (this._plot && this._looks === looks) {
      this._plot.setData(data, false);
      this._rescale();
      return;
    }
    this._looks = looks;
    if (this._plot) this._plot.destroy();
    const series = [
      {},
      ...layers.map((layer) => ({fill: layer.dim ? layer.color + "38" : layer.color, width: 0, paths: STEPPED, points: {show: false}})).reverse(),
      ...lines.map((line) => ({stroke: line.color, width: line.width, fill: line.fill, paths: STEPPED, points: {show: false}})),
    ];
    this._plot = new uPlot(this._options(series), data, this._body);
    this._listenOn(this._plot.over);
  }

  _options(series) {
    const axis = {
      stroke: () => themed("muted"), grid: {stroke: () => themed("grid"), width: 1}, ticks: {show: false},
      font: canvasFont(),
    };
    return {
      width: Math.max(this._body.clientWidth, 50), height: Math.max(this._body.clientHeight, 40), series,
      legend: {show: false}, padding: [8, rightEdge(), 0, 0],
      cursor: {y: false, points: {show: false}, drag: {x: true, y: false, setScale: false}, sync: {key: "time", setSeries: false, scales: ["x", null]}},
      scales: {x: {time: false, range: () => this._window}, y: {range: () => [0, this._top * 1.06]}},
      axes: [
        {...axis, size: Math.round(24 * unit()), gap: 3, space: Math.round(90 * unit()), values: (_, splits) => splits.map((value) => (this._isTime ? duration(value) : count(value)))},
        {...axis, size: gutter(), gap: 6, space: Math.round(26 * unit()), incrs: BINARY_STEPS, values: (_, splits) => splits.map((value) => bytesOnAxis(value, splits[1] - splits[0]))},
      ],
      hooks: {
        draw: [(plot) => this._drawOver(plot)],
        setSelect: [(plot) => {
          const {left, width} = plot.select;
          if (width < 3) return;
          this._listeners.onWindow(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
          plot.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
        }],
        setCursor: [(plot) => {
          const {left} = plot.cursor;
          this._listeners.onHover(left >= 0 ? this.columnAt(plot.posToVal(left, "x")) : -1);
        }],
      },
    };
  }

  _listenOn(over) {
    let downAt = null;
    over.addEventListener("mousedown", (event) => { downAt = event.clientX; });
    over.addEventListener("mouseup", (event) => {
      if (downAt !== null && Math.abs(event.clientX - downAt) < 3) {
        this._listeners.onMoment(this.columnAt(this._plot.posToVal(event.offsetX, "x")));
      }
      downAt = null;
    });
    over.addEventListener("dblclick", () => this._listeners.onReset());
    over.addEventListener("wheel", (event) => {
      event.preventDefault();
      const {width} = over.getBoundingClientRect();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) this._listeners.onPan((event.deltaX || event.deltaY) / width);
      else this._listeners.onZoom(event.offsetX / width, Math.exp(Math.max(-0.5, Math.min(0.5, event.deltaY * 0.0022))));
    }, {passive: false});
  }

  /** Return the column that contains a value of x. */
  columnAt(x) {
    let low = 0, high = this.starts.length - 2;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= x) low = middle; else high = middle - 1;
    }
    return low;
  }

  setWindow(low, high) {
    this._window = [low, high];
    this._rescale();
  }

  _rescale() {
    if (this._plot) this._plot.setScale("x", {min: this._window[0], max: this._window[1]});
  }

  setMoment(x) {
    if (this._moment === x) return;
    this._moment = x;
    if (this._plot) this._plot.redraw(false, false);
  }

  setMarks(marks) { this._marks = marks; }

  label(text) {
    this._body.setAttribute("role", "img");
    this._body.setAttribute("aria-label", text);
  }

  /** Return what is drawn, for a picture of the page. */
  get canvas() { return this._plot && this._plot.ctx.canvas; }

  resize() {
    if (this._plot) this._plot.setSize({width: Math.max(this._body.clientWidth, 50), height: Math.max(this._body.clientHeight, 40)});
  }

  restyle() { if (this._plot) this._plot.redraw(true, true); }

  /** The moment, and marks such as requests that ran out of memory. */
  _drawOver(plot) {
    const {ctx} = plot, {left, top, width, height} = plot.bbox, ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top - 6 * ratio, width, height + 6 * ratio);
    ctx.clip();
    if (this._moment !== null) {
      const x = Math.round(plot.valToPos(this._moment, "x", true));
      ctx.fillStyle = themed("accent");
      ctx.fillRect(x - ratio, top, 2 * ratio, height);
      ctx.beginPath();
      ctx.arc(x, top, 4.5 * ratio, 0, 2 * Math.PI);
      ctx.fill();
    }
    for (const mark of this._marks) {
      const x = Math.round(plot.valToPos(mark.x, "x", true));
      if (x < left - 5 || x > left + width + 5) continue;
      ctx.fillStyle = mark.kind === "oom" ? themed("bad") : themed("faint");
      if (mark.kind === "oom") {
        ctx.fillRect(x, top, Math.max(1, ratio), height);
        ctx.beginPath();
        ctx.moveTo(x - 5 * ratio, top - 5 * ratio); ctx.lineTo(x + 5 * ratio, top - 5 * ratio); ctx.lineTo(x, top + 4 * ratio);
        ctx.fill();
      } else {
        ctx.fillRect(x, top + height - 5 * ratio, Math.max(1, ratio), 5 * ratio);
      }
    }
    ctx.restore();
  }
}
