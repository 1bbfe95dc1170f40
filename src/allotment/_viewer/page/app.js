"use strict";
// What is shown, and what keys and controls do to it. A window is a pair of fractions of the whole, so that one window
// serves runs of different length.

const SETTINGS_TO_TRY = [
  "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8", "garbage_collection_threshold:0.8", "placement:dense",
];

class App {
  constructor(source) {
    this.source = source;
    this.overviews = [];
    this.views = [];
    this.window = [0, 1];
    this.moment = 0;
    this.momentOf = null;
    this.by = "";
    this.axis = "event";
    this.query = "";
    this.lit = null;
    this.frames = 0;
    this._picked = null;
    this._panel = new Panel(this);
    this._summary = new Summary(this);
    this._element = (name) => document.getElementById(name);
  }

  async start() {
    this._setTheme(this._keptTheme() || (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark"));
    this.overviews = await this.source.runs();
    const first = this.overviews[0];
    this.by = Object.keys(first.groupings)[0];
    const refused = first.marks.find(([, kind]) => kind === "oom");
    this.moment = first.opens_at ?? (refused ? refused[0] : first.peak_reserved.moment);
    this._listen();
    this._show(this.overviews.slice(0, 2).map((_, number) => number));
  }

  // --- runs ------------------------------------------------------------------------------------------------------------

  _show(numbers) {
    this.views = numbers.map((number) => new RunView(this, number, this.overviews[number]));
    this.momentOf = this.views[0];
    this._pick(null);
    this._arrange();
    fill(this._element("runs"), ...this.views.map((view) => view.element));
    this.views.forEach((view, place) => { view.start(); view.setTitle(place && isSameKind(view, this.views[0]) ? this.views[0] : null); });
    this._fillControls();
    this.views.forEach((view) => { view.askSeries(); view.askMoment(); });
    if (this.query) this.find(this.query);
  }

  /** Narrow windows show all parts one below the other, and scroll; two runs need more width than one. */
  _arrange() {
    const {classList} = document.body, width = innerWidth / unit();
    classList.toggle("compared", this.views.length > 1);
    classList.toggle("flowing", width <= (this.views.length > 1 ? 1180 : 760));
    classList.toggle("stacked", width <= 760);
  }

  bandColor(overview, by, band) {
    if (this._colorsOf !== `${by} ${this.overviews.length}`) {
      this._colorsOf = `${by} ${this.overviews.length}`;
      this._colors = bandColors(this.overviews, by);
    }
    return this._colors.get(overview.groupings[by][band]) || REST_COLOR;
  }

  /** One scale for all maps. */
  get addresses() { return Math.max(...this.views.map((view) => view.overview.addresses), 1); }
  get top() { return Math.max(...this.views.map((view) => view.overview.peak_reserved.bytes), 1); }
  get wasteTop() { return Math.max(...this.views.map((view) => view.mostWaste), 1); }

  _fillControls() {
    const {overview} = this.views[0];
    fill(this._element("by"), ...Object.keys(overview.groupings).map((by) => make("option", {value: by, selected: by === this.by}, GROUPING_WORDS[by])));
    const beside = this.views[1] ? String(this.views[1].number) : "";
    const shown = this.overviews.map((run, number) => ({run, number})).filter(({number}) => number !== this.views[0].number);
    const tried = new Set(this.overviews.map((run) => run.settings));
    const options = [make("option", {value: ""}, "nothing"), ...shown.map(({run, number}) => make("option", {value: String(number), selected: String(number) === beside}, this.runName(run)))];
    if (this.source.canTry && overview.history) {
      const untried = SETTINGS_TO_TRY.filter((settings) => !tried.has(settings));
      const group = make("optgroup", {label: "under other settings"}, ...untried.map((settings) => make("option", {value: `try ${settings}`}, settings)), make("option", {value: "ask"}, "other settings …"));
      options.push(group);
    }
    fill(this._element("compare"), ...options);
    const flame = overview.history ? this.source.flame(this.views[0].number) : null;
    this._element("flame").hidden = flame === null;
    this._element("flame").href = flame || "#";
    this._element("compare").parentElement.hidden = options.length === 1;
    const hasTimes = overview.last_time > overview.first_time;
    this._element("axis").parentElement.hidden = !hasTimes;
    this._element("by").parentElement.hidden = Object.keys(overview.groupings).length < 2;
    const other = this.views[1] && this.views[1].overview.name !== overview.name ? `, ${this.views[1].overview.name}` : "";
    fill(this._element("identity"), make("b", {}, overview.name + other));
    this._element("identity").title = overview.name + other;
    document.title = `${overview.name} · allotment view`;
  }

  runName(run) { return this.overviews.every((each) => each.name === run.name) ? run.label : `${run.name}, ${run.label}`; }

  async compare(value) {
    const first = this.views[0].number;
    if (value === "ask") {
      const typed = prompt("Settings, such as expandable_segments:True,max_split_size_mb:128");
      if (!typed) { this._fillControls(); return; }
      value = `try ${typed}`;
    }
    if (value.startsWith("try ")) {
      const settings = value.slice(4);
      this.notice("Replaying …");
      try {
        this.overviews = await this.source.tryOut(settings, Math.max(this.views[0].overview.source, 0));
        value = String(this.overviews.findIndex((run) => run.settings === settings));
        this.notice(null);
      } catch (error) { this.notice(error.message); this._fillControls(); return; }
    }
    this._show(value === "" ? [first] : [first, Number(value)]);
  }

  // --- window and moment -----------------------------------------------------------------------------------------------

  setWindow(low, high) {
    const least = Math.min(1, 16 / Math.max(this.views[0].extent, 1));
    const span = Math.min(1, Math.max(Math.abs(high - low), least));
    const start = Math.min(Math.max(Math.min(low, high), 0), 1 - span);
    this.window = [start, start + span];
    if (this._framed) return;
    this._framed = true;
    requestAnimationFrame(() => { this._framed = false; this.views.forEach((view) => view.showWindow()); });
  }

  zoom(at, factor) {
    const [low, high] = this.window, fixed = low + (high - low) * at;
    this.setWindow(fixed - (fixed - low) * factor, fixed + (high - fixed) * factor);
  }

  pan(by) {
    const [low, high] = this.window, shift = (high - low) * by;
    this.setWindow(Math.min(Math.max(low + shift, 0), 1 - (high - low)), Math.min(Math.max(low + shift, 0), 1 - (high - low)) + high - low);
  }

  setMoment(moment, view) {
    this.momentOf = view || this.views[0];
    this.moment = Math.min(Math.max(Math.round(moment), 0), this.momentOf.overview.last);
    this.views.forEach((each) => each.askMoment());
    if (this._picked) this._describePicked();
  }

  _showMomentInWindow() {
    const view = this.momentOf;
    if (this.axis === "time") return;
    // Moments and entries advance nearly alike; here it only matters that the moment becomes visible.
    const at = this.moment / Math.max(view.overview.last, 1), [low, high] = this.window;
    if (at < low || at > high) this.setWindow(at - (high - low) / 2, at + (high - low) / 2);
  }

  /** Where the moment is between the edges of the window; the middle if it is outside. */
  get _momentInWindow() {
    const at = this.momentOf._momentFraction, [low, high] = this.window;
    return at === null || at < low || at > high ? 0.5 : (at - low) / (high - low);
  }

  _stepTo(moment) {
    this.setMoment(moment, this.momentOf);
    this._showMomentInWindow();
  }

  // --- a block, a search -----------------------------------------------------------------------------------------------

  pick(view, life) {
    this._pick(life >= 0 ? {view, life} : null);
    if (this._picked) this._describePicked();
  }

  _pick(picked) {
    this._picked = picked;
    this.views.forEach((view) => view._addresses && view.setPicked(picked && picked.view === view ? picked.life : -1));
    if (!picked) this._panel.drawBlock(null);
  }

  async _describePicked() {
    const {view, life} = this._picked;
    const block = await this.source.block(view.number, life, view.wantedMoment);
    if (this._picked && this._picked.life === life && block.size !== undefined) this._panel.drawBlock(block, view);
    return block;
  }

  async _pickNext(view, step) {
    this.pick(view, view.neighbour(step));
    if (!this._picked) return;
    const block = await this._describePicked();
    if (block.size !== undefined) view.reveal(block.place, block.size);
  }

  async goTo(view, found) {
    const isThere = found.begin <= view.wantedMoment && view.wantedMoment < found.end;
    if (!isThere) this._stepTo(found.begin);
    this.pick(view, found.life);
    const block = await this._describePicked();
    view.reveal(block.place, block.size);
  }

  async find(query) {
    this.query = query.trim();
    const box = this._element("search");
    if (box.value.trim() !== this.query) box.value = this.query;
    if (!this.query) this._panel.drawFound(null);
    else {
      const view = this.views[0];
      try { this._panel.drawFound(await this.source.search(view.number, this.query, view.wantedMoment), view); } catch (error) { this.query = ""; this.notice(error.message); }
    }
    this.views.forEach((view) => { view.askSeries(); view.askMoment(); });
  }

  light(name) {
    if (this.lit === name) return;
    this.lit = name;
    this.views.forEach((view) => view.series && view._show(view.series));
  }

  drawPanel() {
    this._panel.draw(this.views);
    // Keys that are held down come too fast to be read aloud.
    clearTimeout(this._sayTimer);
    this._sayTimer = setTimeout(() => { this._element("said").textContent = this.momentOf.said; }, 300);
  }

  /** Called after drawing: code that waits for the first picture checks this. */
  drawn() {
    this.frames += 1;
    document.documentElement.dataset.drawn = String(this.frames);
  }

  get isIdle() { return this.views.length > 0 && this.views.every((view) => view.isIdle && view.at); }

  // --- controls --------------------------------------------------------------------------------------------------------

  tip(children, event) {
    const tip = this._element("tip");
    tip.hidden = !children;
    if (!children) return;
    fill(tip, ...children);
    const {offsetWidth, offsetHeight} = tip;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - offsetHeight - 8)}px`;
  }

  notice(text) {
    const notice = this._element("notice");
    (document.querySelector("dialog[open]") || document.body).append(notice); // an open dialog covers everything
    notice.hidden = !text;
    notice.textContent = text || "";
    clearTimeout(this._noticeTimer);
    if (text) this._noticeTimer = setTimeout(() => { notice.hidden = true; }, 6000);
  }

  _keptTheme() { try { return localStorage.getItem("allotment-theme"); } catch { return null; } }

  _setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("allotment-theme", theme); } catch { /* a page opened from a file may not store anything */ }
    this.views.forEach((view) => view.restyle());
  }

  toggleTheme() { this._setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); }

  setBy(by) {
    this.by = by;
    this.lit = null;
    this._element("by").value = by;
    this.views.forEach((view) => { view.whole = null; view.askSeries(); view.askMoment(); });
    this.setWindow(0, 1);
  }

  setAxis(axis) {
    this.axis = axis;
    this._element("axis").value = axis;
    this.views.forEach((view) => { view.whole = null; view.series = null; });
    this.setWindow(0, 1);
  }

  _listen() {
    this._element("by").addEventListener("change", (event) => this.setBy(event.target.value));
    this._element("axis").addEventListener("change", (event) => this.setAxis(event.target.value));
    this._element("compare").addEventListener("change", (event) => this.compare(event.target.value));
    this._element("theme").addEventListener("click", () => this.toggleTheme());
    this._element("help").addEventListener("click", () => this._element("keys").showModal());
    this._element("share").addEventListener("click", () => this._summary.open());
    this._element("keys").querySelector("button").addEventListener("click", () => this._element("keys").close());
    this._element("search-form").addEventListener("submit", (event) => { event.preventDefault(); this.find(this._element("search").value); this._element("search").blur(); });
    this._element("search").addEventListener("input", (event) => { if (!event.target.value) this.find(""); });
    addEventListener("resize", () => { this._arrange(); this.views.forEach((view) => { view.resize(); view.askSeries(); view.askMoment(); }); });
    addEventListener("keydown", (event) => this._key(event));
  }

  _key(event) {
    if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === "Escape" && event.target.matches("input")) { event.target.value = ""; this.find(""); }
      if (event.key === "Escape" && event.target.matches("input, select")) event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const view = this.momentOf, {last} = view.overview, span = this.window[1] - this.window[0];
    const step = event.shiftKey ? Math.max(1, Math.round((last * span) / 100)) : 1;
    const next = (list) => list.find(([moment]) => moment > this.moment) || list[0];
    const keys = {
      ArrowLeft: () => this._stepTo(this.source.neighbour(view.number, this.moment, -step)),
      ArrowRight: () => this._stepTo(this.source.neighbour(view.number, this.moment, step)),
      Home: () => this._stepTo(Math.round(this.window[0] * view.overview.last)),
      End: () => this._stepTo(Math.round(this.window[1] * view.overview.last)),
      p: () => this._stepTo(view.overview.peak_reserved.moment),
      P: () => this._stepTo(view.overview.peak_live.moment),
      o: () => { const mark = next(view.overview.marks.filter(([, kind]) => kind === "oom")); if (mark) this._stepTo(mark[0]); else this.notice("No request ran out of memory."); },
      "+": () => this.zoom(this._momentInWindow, 0.6), "=": () => this.zoom(this._momentInWindow, 0.6), "-": () => this.zoom(this._momentInWindow, 1 / 0.6), "0": () => this.setWindow(0, 1),
      "]": () => this.views.forEach((each) => each.zoomMap(0.6)), "[": () => this.views.forEach((each) => each.zoomMap(1 / 0.6)),
      "/": () => { this._element("search").focus(); this._element("search").select(); },
      n: () => this._pickNext(view, 1), N: () => this._pickNext(view, -1),
      s: () => this._summary.open(),
      f: () => { if (this._element("flame").hidden) this.notice("allotment explain --flame FILE.html writes a flame graph."); else this._element("flame").click(); },
      g: () => { const all = Object.keys(this.views[0].overview.groupings); this.setBy(all[(all.indexOf(this.by) + 1) % all.length]); },
      x: () => { if (!this._element("axis").parentElement.hidden) this.setAxis(this.axis === "time" ? "event" : "time"); },
      c: () => this._element("compare").focus(),
      t: () => this.toggleTheme(),
      "?": () => this._element("keys").showModal(),
      Escape: () => { if (this._picked) this.pick(view, -1); else if (this.query) this.find(""); },
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }
}

const app = new App(sourceOfPage());
app.start().catch((error) => app.notice(error.message));
