"use strict";
// The side panel: the moment, the selected block, the results of the search, and which code holds memory.

// Files of libraries and of compiled code, as in `lab.explain.holders`.
const LIBRARIES = /[/\\](site|dist)-packages[/\\]|\/torch\/|\/lib(64)?\/python3\.\d+\/|^<frozen |^<string>/;
const COMPILED = /\.(c|cc|cpp|cxx|cu|cuh|h|hh|hpp|hxx|inl|ipp|tcc|rs|s|asm|dll|pyd|dylib|so(\.[\d.]+)?)$|(^|\/)python[\d.]*$|\/include\/c\+\+\/|^$|^\?\?$/i;

class Panel {
  constructor(app) {
    this._app = app;
    this._moment = document.getElementById("moment");
    this._block = document.getElementById("block");
    this._found = document.getElementById("found");
    this._holders = document.getElementById("holders");
  }

  draw(views) {
    const shown = views.filter((view) => view.at);
    if (!shown.length) return;
    this._drawMoment(shown);
    this._drawHolders(shown);
  }

  _drawMoment(views) {
    const {at, overview} = views[0];
    const when = !overview.history ? "The end" : at.entry < 0 ? "Before the history" : `Entry ${count(at.entry)}`;
    const aside = overview.history && overview.last_time > overview.first_time ? duration(at.time) : "";
    const facts = make("dl", {class: views.length > 1 ? "facts two" : "facts"});
    const row = (name, value, color, title) => {
      facts.append(make("dt", {title: title || ""}, color ? make("i", {style: {background: color}}) : null, name));
      for (const view of views) { const size = value(view); facts.append(make("dd", {title: `${count(size)} bytes`}, bytes(size))); }
    };
    const reserved = (view) => view.reserved;
    row("in use", (view) => view.at.live);
    row("reserved", reserved);
    overview.causes.forEach((cause, i) => {
      if (views.some((view) => view.at.waste[i])) row(CAUSE_WORDS[cause], (view) => view.at.waste[i], CAUSE_COLORS[cause], CAUSE_NOTES[cause]);
    });
    const bars = views.map((view) => {
      const total = Math.max(...views.map(reserved), 1);
      return make("div", {class: "bar"}, make("i", {style: {width: `${(100 * view.at.live) / total}%`, background: "var(--accent)"}}),
        ...overview.causes.map((cause, i) => make("i", {style: {width: `${(100 * view.at.waste[i]) / total}%`, background: CAUSE_COLORS[cause]}})));
    });
    const refused = overview.marks.filter(([moment, kind]) => kind === "oom" && moment === at.moment)
      .map(([, , size]) => make("p", {class: "refused"}, `A request for ${bytes(size)} ran out of memory here.`));
    const isExplained = overview.history && at.moment === overview.peak_reserved.moment;
    const note = isExplained ? make("p", {class: "muted"}, "The moment that allotment explain explains.") : null;
    fill(this._moment, make("h2", {}, when, make("span", {class: "aside"}, aside)), ...refused, note, ...bars, facts);
  }

  /** Names, colors and bytes; for two runs side by side, all names of either. */
  _drawHolders(views) {
    const by = views[0].at.by, held = new Map();
    views.forEach((view, place) => view.overview.groupings[view.at.by].forEach((name, band) => {
      if (!held.has(name)) held.set(name, {view, band, amounts: views.map(() => [0, 0])});
      held.get(name).amounts[place] = [view.at.held[band], view.at.counts[band]];
    }));
    const most = (each) => Math.max(...each.amounts.map(([size]) => size));
    const rows = [...held].sort(([, a], [, b]) => most(b) - most(a)).map(([name, each]) => {
      const {short, folder} = shortName(name), isLit = this._app.lit === name;
      const title = `${name}\n${each.amounts.map(([size]) => `${count(size)} bytes`).join(", ")}`;
      const row = make("button", {class: `row${most(each) ? "" : " none"}${isLit ? " lit" : ""}`, type: "button", title},
        make("span", {class: "swatch", style: {background: this._app.bandColor(each.view.overview, each.view.at.by, each.band)}}),
        make("span", {class: "name"}, short, folder ? make("small", {}, ` ${folder}`) : null),
        make("span", {class: "amount"}, ...each.amounts.map(([size, blocks]) => make("span", {}, bytes(size), make("small", {}, ` ${count(blocks)}`)))));
      for (const event of ["pointerenter", "focus"]) row.addEventListener(event, () => this._app.light(name));
      for (const event of ["pointerleave", "blur"]) row.addEventListener(event, () => this._app.light(null));
      row.addEventListener("click", () => this._app.find(folder || short.includes(":") ? (folder + short).split(" ")[0] : ""));
      return row;
    });
    const focused = this._holders.contains(document.activeElement) ? document.activeElement.title : null;
    fill(this._holders, make("h2", {}, "What holds it", make("span", {class: "aside"}, `by ${GROUPING_WORDS[by]} · blocks`)), make("div", {class: "rows"}, ...rows));
    const again = focused && rows.find((row) => row.title.split("\n")[0] === focused.split("\n")[0]);
    if (again) again.focus({preventScroll: true});
  }

  drawBlock(block, view) {
    this._block.hidden = !block;
    if (!block) return;
    const {overview} = view;
    const facts = make("dl", {class: "facts"});
    const row = (name, value, title) => facts.append(make("dt", {}, name), make("dd", {title: title || ""}, value));
    row("size", `${bytes(block.size)}`, `${count(block.size)} bytes`);
    row("asked for", `${bytes(block.requested)}`, `${count(block.requested)} bytes`);
    row("address", block.address);
    row("stream, pool", `${block.stream}, ${block.pool[0] || block.pool[1] ? `(${block.pool.join(", ")})` : "default"}`);
    if (overview.history) {
      row("allocated", block.was_there ? "before the history" : entryName(block.begin_entry));
      row("freed", block.freed === null ? "not in the history" : entryName(block.freed_entry));
      if (block.freed !== null && block.end !== block.freed) row("waited for streams until", block.end === null ? "the end" : entryName(block.end_entry));
      const lived = (block.end === null ? overview.last_entry : block.end_entry) - Math.max(block.begin_entry, 0);
      row("lived", `${count(lived)} entries${block.lived_us ? `, ${duration(block.lived_us)}` : ""}`);
    }
    row("pins", block.pins ? `${bytes(block.pins)} free${block.pins_with ? `, with ${plural(block.pins_with, "other block")}` : ", alone"}` : "nothing",
      "free memory that cannot be released to the device because of this block");
    const frames = block.stack.map(([name, file, line]) => {
      const isOwn = !COMPILED.test(file || "") && !LIBRARIES.test(file);
      return make("li", {class: isOwn ? "own" : ""}, make("b", {}, name), file ? ` ${file}:${line}` : "");
    });
    const close = make("button", {class: "close", type: "button", title: "Esc"}, "✕");
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => this._app.pick(view, -1));
    fill(this._block, make("h2", {}, "Block", close), facts,
      frames.length ? make("ol", {class: "stack"}, ...frames) : make("p", {class: "muted"}, "No stack was recorded."));
  }

  drawFound(found, view) {
    this._found.hidden = !found;
    if (!found) return;
    const rows = found.listed.map((block) => {
      const {short, folder} = shortName(block.line);
      const row = make("button", {class: `row${block.is_live ? "" : " none"}`, type: "button", title: block.line},
        make("span", {class: "swatch", style: {background: block.is_live ? "var(--accent)" : "var(--line)"}}),
        make("span", {class: "name"}, short || "no stack", folder ? make("small", {}, ` ${folder}`) : null, make("small", {}, `  ${count(Math.max(block.begin_entry, 0))}–${count(block.end_entry)}`)),
        make("span", {class: "amount"}, bytes(block.size)));
      row.addEventListener("click", () => this._app.goTo(view, block));
      return row;
    });
    const close = make("button", {class: "close", type: "button", title: "Esc"}, "✕");
    close.setAttribute("aria-label", "Forget the search");
    close.addEventListener("click", () => this._app.find(""));
    const more = found.blocks > found.listed.length ? make("p", {class: "muted"}, `The largest ${found.listed.length} of ${count(found.blocks)}.`) : null;
    fill(this._found, make("h2", {}, `“${found.query}”`, close),
      make("p", {class: "muted"}, `${plural(found.blocks, "block")}; ${count(found.live_blocks)} in use now, ${bytes(found.live_bytes)}`),
      make("div", {class: "rows"}, ...rows), more);
  }
}
