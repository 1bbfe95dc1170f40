"use strict";
// One run: its figures, its charts over time, its map of addresses.

/** Runs one task at a time; of the tasks requested meanwhile it keeps only the newest. */
class Latest {
  constructor(work, onError) { this._work = work; this._onError = onError; this._busy = false; this._wanted = null; }

  async ask(wanted) {
    this._wanted = wanted;
    if (this._busy) return;
    this._busy = true;
    try {
      while (this._wanted !== null) {
        const now = this._wanted;
        this._wanted = null;
        await this._work(now);
      }
    } catch (error) { this._onError(error); } finally { this._busy = false; }
  }

  get isIdle() { return !this._busy; }
}

class RunView {
  constructor(app, number, overview) {
    this.app = app;
    this.number = number;
    this.overview = overview;
    this.series = null;
    this.whole = null;
    this.at = null;
    this._hovered = -1;
    this._build();
    const onError = (error) => app.notice(error.message);
    this._seriesLoader = new Latest((wanted) => this._loadSeries(wanted), onError);
    this._momentLoader = new Latest((wanted) => this._loadMoment(wanted), onError);
  }

  get isIdle() { return this._seriesLoader.isIdle && this._momentLoader.isIdle; }

  // --- elements --------------------------------------------------------------------------------------------------------

  _build() {
    const card = (kind, title) => {
      const note = make("span", {class: "note"}), right = make("span", {class: "right"}), body = make("div", {class: "body"});
      const head = make("div", {class: "head"}, make("h2", {}, title), note, right);
      const element = make("div", {class: `card ${kind}`}, kind === "scrub" ? null : head, body);
      return {element, note, right, body};
    };
    this._title = make("div", {class: "title"});
    this._live = card("live", "In use");
    this._waste = card("waste", "Held and not in use");
    this._scrub = card("scrub", "");
    this._map = card("map", "Addresses");
    const parts = [this._title, this._live.element, this._waste.element, this._scrub.element, this._map.element];
    this.element = make("section", {class: this.overview.history ? "run" : "run only-map"}, ...parts);
    this.element.setAttribute("aria-label", this.app.runName(this.overview));
    this._live.note.append(make("span", {class: "key"}, make("i", {class: "line"}), "reserved"));
    this._map.note.append(make("span", {class: "keys"}, ...["free", "pinned", "waiting", "unmapped"].map((state) => {
      const looks = {
        free: themed("free"), waiting: "var(--waiting)", unmapped: "radial-gradient(var(--faint) 1px, transparent 1px) 0 0/4px 4px",
        pinned: "repeating-linear-gradient(135deg, var(--pinned) 0 1.5px, var(--free) 1.5px 4px)",
      };
      return make("span", {class: "key", title: STATE_NOTES[state]}, make("i", {style: {background: state === "free" ? "var(--free)" : looks[state]}}), STATE_WORDS[state]);
    })));
  }

  /** Called once the element is in the page: charts need the size of their place. */
  start() {
    const chartListeners = {
      onMoment: (column) => this._clickColumn(column),
      onWindow: (low, high) => this.app.setWindow(this._fraction(low), this._fraction(high)),
      onZoom: (at, factor) => this.app.zoom(at, factor),
      onPan: (by) => this.app.pan(by),
      onReset: () => this.app.setWindow(0, 1),
      onHover: (column) => this._hover(column),
    };
    this._liveChart = new StackChart(this._live.body, chartListeners);
    this._wasteChart = new StackChart(this._waste.body, {...chartListeners, onMoment: (column) => this._clickColumn(column, true)});
    this._addresses = new AddressMap(this._map.body, {
      onPick: (life) => this.app.pick(this, life),
      onHover: (piece, event) => this._hoverPiece(piece, event),
      onWindow: () => this.askMoment(),
    });
    this._addresses.setLength(this.app.addresses);
    this._scrubCanvas = make("canvas");
    this._scrub.body.append(this._scrubCanvas);
    const scrubTo = (event) => {
      const {left, width} = this._scrub.body.getBoundingClientRect();
      const fraction = Math.min(Math.max((event.clientX - left - gutter()) / (width - gutter() - rightEdge()), 0), 1);
      if (!this.whole) return;
      const {arrays} = this.whole, starts = this._starts(this.whole);
      let column = 0;
      while (column + 1 < arrays.moment.length && starts[column + 1] <= fraction * this.extent) column += 1;
      this.app.setMoment(arrays.moment[column], this);
    };
    // A slider, with the page's keys.
    this._scrub.body.tabIndex = 0;
    for (const [name, value] of Object.entries({role: "slider", "aria-label": "Moment", "aria-valuemin": "0", "aria-valuemax": String(this.overview.last)})) {
      this._scrub.body.setAttribute(name, value);
    }
    this._scrub.body.addEventListener("focus", () => { this.app.momentOf = this; });
    this._scrub.body.addEventListener("pointerdown", (event) => { this._scrub.body.setPointerCapture(event.pointerId); scrubTo(event); });
    this._scrub.body.addEventListener("pointermove", (event) => { if (event.buttons) scrubTo(event); });
  }

  /** `other` is the run that this one is compared with. */
  setTitle(other) {
    const {overview} = this;
    const figure = (name, value, title, isBad) => make("span", {class: isBad ? "figure bad" : "figure", title: title || ""}, `${name} `, make("b", {}, value));
    const waste = Object.values(overview.waste_at_peak).reduce((a, b) => a + b, 0);
    const reserved = overview.peak_reserved.bytes, there = overview.peak_reserved.bytes_there;
    const near = there === reserved ? "" : `; most in use, with nearly as much reserved (${count(there)} bytes),`;
    const figures = [
      figure("peak", bytes(reserved), `${count(reserved)} bytes reserved${near} at ${entryName(overview.peak_reserved.entry)}`),
      figure("in use at most", bytes(overview.peak_live.bytes), `${count(overview.peak_live.bytes)} bytes at ${entryName(overview.peak_live.entry)}`),
      figure(this.app.views.length > 1 ? "wasted" : "wasted at the peak", `${bytes(waste)}, ${there ? ((100 * waste) / there).toFixed(1) : 0} %`,
        `reserved and not in use at ${entryName(overview.peak_reserved.entry)}, of ${count(there)} bytes reserved then`),
    ];
    if (overview.ooms) figures.push(figure("out of memory", `${overview.ooms}×`, "", true));
    if (overview.driver_ms !== undefined) figures.push(figure("driver", `${overview.driver_ms.toFixed(1)} ms`, "what the driver's calls cost, by a table measured on an H200"));
    if (other) {
      const change = reserved - other.overview.peak_reserved.bytes;
      const word = `${change > 0 ? "+" : "−"}${bytes(Math.abs(change))}`;
      if (change) figures[0].append(" ", make("span", {class: change < 0 ? "better" : "worse"}, word));
    }
    const isCompared = this.app.views.length > 1;
    const label = isCompared ? this.app.runName(overview) : null;
    if (isCompared) figures.splice(1, 1);
    const about = make("span", {class: "about", title: overview.reason || ""}, isCompared ? "" : this._identity().join(" · "));
    fill(this._title, label ? make("div", {class: "label", title: label}, label) : null, make("div", {class: "figures"}, ...figures, about));
  }

  _identity() {
    const {overview} = this;
    const others = overview.devices.length > 1 ? ` of ${overview.devices.join(", ")}` : "";
    const parts = [deviceName(overview.device) + others];
    if (overview.history) {
      parts.push(`${count(overview.events)} entries`);
      if (overview.compat) parts.push(`PyTorch ${overview.compat}`);
      if (overview.matches) parts.push("every decision made again");
      else if (overview.matches === false) parts.push("the replay differs from the recording");
    }
    if (overview.stills) parts.push(`map at ${count(overview.stills)} moments`);
    return parts;
  }

  // --- time ------------------------------------------------------------------------------------------------------------

  get isTime() { return this.app.axis === "time" && this.overview.last_time > this.overview.first_time; }
  get extent() { return this.isTime ? this.overview.last_time - this.overview.first_time : this.overview.last_entry + 1; }
  _fraction(x) { return x / this.extent; }

  get window() { return this.app.window.map((fraction) => fraction * this.extent); }

  /** Draw the data at hand in the new window at once, then fetch finer columns. */
  showWindow() {
    if (!this.overview.history) return;
    const [low, high] = this.window;
    const known = this.series;
    if (known && this.whole && (known.low > low + 1e-9 || known.high < high - 1e-9)) this._show(this.whole);
    this._liveChart.setWindow(low, high);
    this._wasteChart.setWindow(low, high);
    this._drawScrub();
    this.askSeries();
  }

  askSeries() {
    if (!this.overview.history) return;
    const [low, high] = this.window;
    const {by, axis, query} = this.app;
    this._seriesLoader.ask({low, high, by: this._by(by), axis: this.isTime ? axis : "event", query});
  }

  _by(by) { return by in this.overview.groupings ? by : Object.keys(this.overview.groupings)[0]; }

  /** Fetch the whole run first, unless it is there with the same grouping: the bar below and the scale of waste need it.
     */
  async _loadSeries(wanted) {
    const {whole} = this;
    const isWhole = wanted.low <= 0 && wanted.high >= this.extent;
    if (!isWhole && (!whole || whole.by !== wanted.by || whole.axis !== wanted.axis || whole.query !== wanted.query)) {
      await this._loadStretch({...wanted, low: 0, high: this.extent});
    }
    await this._loadStretch(wanted);
  }

  async _loadStretch({low, high, by, axis, query}) {
    const columns = Math.max(200, Math.min(2400, Math.round(this._live.body.clientWidth - gutter() - rightEdge())));
    // A little more than is visible, so that a small move needs no new data.
    const margin = (high - low) / 4, start = Math.max(0, low - margin), end = Math.min(this.extent, high + margin);
    const factor = (end - start) / Math.max(high - low, 1e-9);
    const found = await this.app.source.series(this.number, {start, end: Math.max(start, end - (axis === "time" ? 0 : 1)), columns: Math.round(columns * factor), by, axis, query});
    Object.assign(found, {low: start, high: end, axis, query});
    if (start <= 0 && end >= this.extent) {
      this.whole = found;
      this._nameCauses();
    }
    if (axis !== (this.isTime ? this.app.axis : "event") || by !== this._by(this.app.by)) return;
    this._show(found);
    // The scale of waste is common to all runs.
    if (found === this.whole) this.app.views.forEach((view) => { if (view !== this && view.series) view._show(view.series); });
  }

  _show(found) {
    this.series = found;
    const {arrays} = found, size = arrays.moment.length, isTime = found.axis === "time";
    const starts = this._starts(found);
    const names = this.overview.groupings[found.by];
    const layers = names.map((_, band) => ({
      values: arrays.bands.subarray(band * size, (band + 1) * size), color: this.app.bandColor(this.overview, found.by, band),
      dim: (this.app.lit !== null && this.app.lit !== names[band]) || Boolean(found.query),
    }));
    const lines = [{values: arrays.reserved, color: themed("reserved"), width: 1.4, fill: ""}];
    if (arrays.found) lines.push({values: arrays.found, color: themed("hit"), width: 1, fill: themed("hit") + "88"});
    const [low, high] = this.window;
    this._liveChart._window = this._wasteChart._window = [low, high];
    this._liveChart.setData(starts, layers, lines, this.app.top, isTime);
    const causes = this.overview.causes.map((cause, i) => ({values: arrays.waste.subarray(i * size, (i + 1) * size), color: CAUSE_COLORS[cause], dim: false}));
    this._wasteChart.setData(starts, causes, [], this.app.wasteTop, isTime);
    const marks = this.overview.marks.map(([, kind, , time, entry]) => ({x: isTime ? time : entry, kind}));
    this._liveChart.setMarks(marks);
    this._wasteChart.setMarks(marks.filter((mark) => mark.kind === "oom"));
    this._markMoment();
    this._drawScrub();
    this._labelCharts(found.by);
    this.app.drawn();
  }

  /** The content of a chart as text, for screen readers. */
  _labelCharts(by) {
    const {peak_live, peak_reserved} = this.overview;
    this._liveChart.label(`Memory in use over time, by ${GROUPING_WORDS[by]}: at most ${bytes(peak_live.bytes)}, at ${entryName(peak_live.entry)}; reserved at most ${bytes(peak_reserved.bytes)}`);
    this._wasteChart.label(`Memory held and not in use over time, by cause: at most ${bytes(this.mostWaste)}`);
  }

  /** Return where the columns begin, and where the last one ends. */
  _starts(found) {
    const {arrays} = found, size = arrays.moment.length, isTime = found.axis === "time";
    const starts = new Float64Array(size + 1);
    starts.set(isTime ? arrays.start_time : arrays.start_entry);
    starts[size] = Math.max(found.high, starts[size - 1] + 1);
    for (let i = 1; i <= size; i++) if (starts[i] <= starts[i - 1]) starts[i] = starts[i - 1] + 1e-3;
    return starts;
  }

  /** The causes of waste that occur. */
  get causesThere() {
    if (!this.whole) return [];
    const {waste, moment} = this.whole.arrays, size = moment.length;
    return this.overview.causes.filter((_, i) => waste.subarray(i * size, (i + 1) * size).some((value) => value > 0));
  }

  _nameCauses() {
    const keys = this.causesThere.map((cause) => make("span", {class: "key", title: CAUSE_NOTES[cause]}, make("i", {style: {background: CAUSE_COLORS[cause]}}), CAUSE_WORDS[cause]));
    fill(this._waste.note, make("span", {class: "keys"}, ...keys));
  }

  /** The most that was wasted at once, as far as the whole run is known. */
  get mostWaste() {
    if (!this.whole) return 0;
    const {waste, moment} = this.whole.arrays, size = moment.length;
    let most = 0;
    for (let i = 0; i < size; i++) {
      let sum = 0;
      for (let cause = 0; cause < this.overview.causes.length; cause++) sum += waste[cause * size + i];
      most = Math.max(most, sum);
    }
    return most;
  }

  _clickColumn(column, isWaste) {
    const {arrays} = this.series;
    this.app.setMoment((isWaste ? arrays.waste_moment : arrays.moment)[column], this);
  }

  _hover(column) {
    if (column === this._hovered || !this.series) return;
    this._hovered = column;
    const {arrays} = this.series, size = arrays.moment.length;
    if (column < 0 || column >= size) { this._live.right.textContent = this._waste.right.textContent = ""; return; }
    let live = 0, waste = 0;
    for (let band = 0; band < arrays.bands.length / size; band++) live += arrays.bands[band * size + column];
    for (let cause = 0; cause < arrays.waste.length / size; cause++) waste += arrays.waste[cause * size + column];
    this._live.right.textContent = `${bytes(live)} in use, ${bytes(arrays.reserved[column])} reserved · ${entryName(arrays.moment_entry[column])}`;
    this._waste.right.textContent = `${bytes(waste)} · ${entryName(arrays.waste_entry[column])}`;
  }

  _drawScrub() {
    const canvas = this._scrubCanvas, body = this._scrub.body, ratio = devicePixelRatio || 1;
    const width = body.clientWidth, height = body.clientHeight;
    if (!canvas || !width || !this.whole) return;
    const left = gutter(), across = width - left - rightEdge(), context = canvas.getContext("2d");
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(this._wholeDrawn(canvas, left, across, height, ratio), 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const [low, high] = this.app.window;
    context.fillStyle = themed("shade");
    context.fillRect(left, 2, across * low, height - 4);
    context.fillRect(left + across * high, 2, across * (1 - high), height - 4);
    context.strokeStyle = themed("faint");
    context.strokeRect(left + across * low + 0.5, 2.5, Math.max(across * (high - low) - 1, 2), height - 5);
    const at = this._momentFraction;
    if (at === null) return;
    context.fillStyle = themed("accent");
    context.fillRect(left + across * at - 1, 0, 2, height);
    context.beginPath();
    context.arc(left + across * at, 5, 4.5, 0, 2 * Math.PI);
    context.fill();
  }

  /** The whole run as a picture, kept until its content changes: the window over it moves far more often. */
  _wholeDrawn({width, height}, left, across, tall, ratio) {
    const looks = [width, height, this.app.top, this.extent, document.documentElement.dataset.theme].join();
    if (this._drawnOf === this.whole && this._drawnLooks === looks) return this._drawnWhole;
    const picture = make("canvas", {width, height}), context = picture.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const {arrays} = this.whole, size = arrays.moment.length;
    const starts = this._starts(this.whole).map((start) => left + (across * start) / this.extent);
    const y = (value) => tall - 4 - (value / this.app.top) * (tall - 10);
    for (const part of ["reserved", "live"]) {
      context.fillStyle = part === "live" ? themed("accent") : themed("line");
      context.globalAlpha = part === "live" ? 0.55 : 1;
      context.beginPath();
      context.moveTo(left, tall - 4);
      for (let i = 0; i < size; i++) {
        let value = arrays.reserved[i];
        if (part === "live") { value = 0; for (let band = 0; band < arrays.bands.length / size; band++) value += arrays.bands[band * size + i]; }
        context.lineTo(starts[i], y(value));
        context.lineTo(starts[i + 1], y(value));
      }
      context.lineTo(left + across, tall - 4);
      context.fill();
    }
    Object.assign(this, {_drawnOf: this.whole, _drawnLooks: looks, _drawnWhole: picture});
    return picture;
  }

  // --- the moment ------------------------------------------------------------------------------------------------------

  get _momentFraction() {
    if (!this.at) return null;
    return this._x / Math.max(this.extent, 1);
  }

  /** Where the moment is on the horizontal axis. */
  get _x() { return this.isTime ? this.at.time : Math.max(this.at.entry, 0); }

  get wantedMoment() {
    const {moment, momentOf} = this.app;
    if (!momentOf || momentOf.overview.source === this.overview.source) return Math.min(moment, this.overview.last);
    return Math.round((moment / Math.max(momentOf.overview.last, 1)) * this.overview.last);
  }

  askMoment() {
    const {by, query} = this.app;
    const [start, end] = this._addresses.window;
    this._momentLoader.ask({moment: this.wantedMoment, start, end, cells: this._addresses.cells, by: this._by(by), query});
  }

  async _loadMoment(wanted) {
    this.at = await this.app.source.moment(this.number, wanted);
    this.at.by = wanted.by;
    this._showMoment();
    this._drawScrub();
    this.app.drawPanel();
    this.app.drawn();
  }

  _showMoment() {
    if (!this.at) return;
    const {at, overview} = this;
    const colors = overview.groupings[at.by].map((_, band) => this.app.bandColor(overview, at.by, band));
    this._addresses.setPieces(at.arrays, colors, Boolean(this.app.query));
    const when = !overview.history ? "when the snapshot was taken" : at.entry < 0 ? entryName(at.entry) : `after ${entryName(at.entry)}`;
    this._map.right.textContent = `${when} · ${plural(at.segments, "segment")} · ${plural(at.blocks, "block")}`;
    this._addresses.label(`Addresses ${when}: ${bytes(at.live)} in use in ${plural(at.blocks, "block")}; n and N go from block to block`);
    this._scrub.body.setAttribute("aria-valuenow", String(at.moment));
    this._scrub.body.setAttribute("aria-valuetext", this.said);
    this._markMoment();
  }

  /** Show where the moment is in time. This does not redraw the map, which does not change while time is zoomed. */
  _markMoment() {
    if (!this.at || !this.overview.history) return;
    this._liveChart.setMoment(this._x);
    this._wasteChart.setMoment(this._x);
  }

  get reserved() { return this.at.states.slice(0, 4).reduce((a, b) => a + b, 0); }

  /** The moment as text. */
  get said() { return `${entryName(this.at.entry)}: ${bytes(this.at.live)} in use, ${bytes(this.reserved)} reserved`; }

  zoomMap(factor) { this._addresses.zoom(factor); }

  /** Return what is drawn, from the top, for a picture of the page. */
  get canvases() {
    const charts = this.overview.history ? [["In use", this._liveChart.canvas], ["Held and not in use", this._wasteChart.canvas, this.causesThere]] : [];
    return [...charts, ["Addresses", this._addresses.canvas]].filter(([, canvas]) => canvas);
  }

  setPicked(life) { this._addresses.setPicked(life); }
  reveal(place, size) { this._addresses.reveal(place, size); }
  neighbour(step) { return this._addresses.neighbour(step); }

  _hoverPiece(piece, event) {
    if (piece === null || !this.at) { this.app.tip(null); return; }
    const {size, state, band, life, mixed} = this.at.arrays, kind = this.overview.states[state[piece]];
    const name = life[piece] >= 0 && kind === "live" ? this.overview.groupings[this.at.by][band[piece]] : null;
    const first = mixed[piece] ? `${bytes(size[piece])}, several pieces: zoom in` : `${bytes(size[piece])} ${STATE_WORDS[kind]}`;
    this.app.tip([make("b", {}, first), name ? make("span", {}, name) : null], event);
  }

  resize() {
    if (this.overview.history) { this._liveChart.resize(); this._wasteChart.resize(); this._drawScrub(); }
    this._addresses.draw();
  }

  restyle() {
    if (this.series) this._show(this.series);
    if (this.overview.history) { this._liveChart.restyle(); this._wasteChart.restyle(); }
    this._addresses.draw();
  }
}
