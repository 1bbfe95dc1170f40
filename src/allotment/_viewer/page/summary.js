"use strict";
// The summary that users paste into an issue: the displayed moment as text (Markdown) and as a picture.

const MOST_NAMED = 10;

class Summary {
  constructor(app) {
    this._app = app;
    this._element = (name) => document.getElementById(name);
    this._element("copy-text").addEventListener("click", () => this._copyText());
    this._element("copy-picture").addEventListener("click", () => this._copyPicture());
    this._element("save-picture").addEventListener("click", () => this._savePicture());
    this._element("close-summary").addEventListener("click", () => this._element("summary").close());
  }

  open() {
    const box = this._element("summary-text");
    box.value = this.text();
    box.setSelectionRange(0, 0);
    this._draw(this._element("summary-picture"));
    this._element("summary").showModal();
    box.scrollTop = 0;
    this._element("copy-text").focus();
  }

  // --- text ------------------------------------------------------------------------------------------------------------

  text() {
    return this._app.views.map((view, place) => this._textOf(view, place && isSameKind(view, this._app.views[0]) ? this._app.views[0] : null)).join("\n\n");
  }

  _textOf(view, other) {
    const {overview, at} = view, {peak_reserved, peak_live} = overview;
    const change = other ? peak_reserved.bytes - other.overview.peak_reserved.bytes : 0;
    const against = change ? ` (${change > 0 ? "+" : "−"}${bytes(Math.abs(change))})` : "";
    const facts = [deviceName(overview.device)];
    if (overview.history) facts.push(`${count(overview.events)} entries`);
    if (overview.compat) facts.push(`rules of PyTorch ${overview.compat}`, `driver ${overview.driver_ms.toFixed(1)} ms`);
    if (overview.ooms) facts.push(`out of memory ${overview.ooms}×`);
    const lines = [
      `**${code(overview.name)}, ${overview.settings ? code(overview.settings) : overview.label}**: ${bytes(peak_reserved.bytes)} reserved at most${against}, ${bytes(peak_live.bytes)} in use at most`,
      `(${facts.join(", ")})`,
      "",
      `${overview.history ? sentence(entryName(at.entry)) : "When the snapshot was taken"}: ${bytes(at.live)} in use, ${bytes(view.reserved)} reserved. Not in use:`,
      "",
      ...overview.causes.map((cause, i) => [at.waste[i], `- ${bytes(at.waste[i])} ${CAUSE_NOTES[cause]}`]).filter(([size]) => size).sort((a, b) => b[0] - a[0]).map(([, line]) => line),
      "",
      `| in use | blocks | by ${GROUPING_WORDS[at.by]} |`,
      "|---:|---:|---|",
      ...this._held(view).map(({name, size, blocks}) => `| ${bytes(size)} | ${count(blocks)} | ${code(name)} |`),
    ];
    return lines.join("\n");
  }

  _held({overview, at}) {
    return overview.groupings[at.by].map((name, band) => ({name, band, size: at.held[band], blocks: at.counts[band]}))
      .filter(({size}) => size).sort((a, b) => b.size - a.size).slice(0, MOST_NAMED);
  }

  async _copyText() {
    const box = this._element("summary-text");
    try {
      await navigator.clipboard.writeText(box.value);
      this._app.notice("The text is in the clipboard.");
    } catch {
      box.focus();
      box.select();
      this._app.notice("Press Ctrl+C to copy it.");
    }
  }

  // --- picture ---------------------------------------------------------------------------------------------------------

  /** All runs side by side: figures, charts, map, and the legend of each. */
  _draw(picture) {
    const {views} = this._app, ratio = devicePixelRatio || 1, size = 13 * unit() * ratio, pad = size, line = 1.5 * size;
    const wide = views.map((view) => Math.max(...view.canvases.map(([, canvas]) => canvas.width), 34 * size));
    const held = views.map((view) => this._held(view));
    const tall = views.map((view, i) => line * (2.5 + held[i].length + 1.5 * view.canvases.length + (view.causesThere.length > 3 ? 1 : 0)) + view.canvases.reduce((sum, [, canvas]) => sum + canvas.height, 0));
    picture.width = wide.reduce((a, b) => a + b, 0) + pad * (views.length + 1);
    picture.height = Math.max(...tall) + 2 * pad;
    const context = picture.getContext("2d"), family = getComputedStyle(document.body).fontFamily;
    context.fillStyle = themed("panel");
    context.fillRect(0, 0, picture.width, picture.height);
    context.textBaseline = "middle";
    const write = (text, x, y, color, weight, across) => {
      context.font = `${weight || ""} ${size}px ${family}`;
      context.fillStyle = themed(color || "text");
      context.fillText(clipped(context, text, across), x, y);
    };
    let left = pad;
    views.forEach((view, i) => {
      const {overview, at} = view;
      let y = pad + line / 2;
      write(`${overview.name}, ${overview.label}`, left, y, "text", "600", wide[i]);
      write(sentence(view.said), left, y + line, "muted", "", wide[i]);
      y += 2.5 * line;
      for (const [title, canvas, causes] of view.canvases) {
        write(title, left, y, "text", "600", wide[i]);
        let x = left + context.measureText(title).width + size;
        for (const cause of causes || []) {
          if (x > left && x + 2.4 * size + context.measureText(CAUSE_WORDS[cause]).width > left + wide[i] + pad) { x = left; y += line; }
          context.fillStyle = CAUSE_COLORS[cause];
          context.fillRect(x, y - size / 2, size, size);
          write(CAUSE_WORDS[cause], x + 1.4 * size, y, "muted", "", wide[i]);
          x += context.measureText(CAUSE_WORDS[cause]).width + 2.4 * size;
        }
        context.drawImage(canvas, left, y + line / 2);
        y += canvas.height + 1.5 * line;
      }
      for (const {name, band, size: held_bytes} of held[i]) {
        context.fillStyle = this._app.bandColor(overview, at.by, band);
        context.fillRect(left, y - size / 2, size, size);
        write(bytes(held_bytes), left + 1.6 * size, y, "text", "", 8 * size);
        write(name, left + 9 * size, y, "muted", "", wide[i] - 9 * size);
        y += line;
      }
      left += wide[i] + pad;
    });
  }

  _blob() { return new Promise((resolve) => this._element("summary-picture").toBlob(resolve, "image/png")); }

  async _copyPicture() {
    try {
      await navigator.clipboard.write([new ClipboardItem({"image/png": this._blob()})]);
      this._app.notice("The picture is in the clipboard.");
    } catch { this._app.notice("The browser does not let a page copy pictures: save it instead."); }
  }

  _savePicture() {
    const link = make("a", {href: this._element("summary-picture").toDataURL("image/png"), download: "allotment.png"});
    link.click();
  }
}

/** Quote any text as code in Markdown, also in a cell of a table. */
function code(text) {
  const fence = "`".repeat(Math.max(0, ...(text.match(/`+/g) || []).map((ticks) => ticks.length)) + 1);
  const space = /^`|`$/.test(text) ? " " : "";
  return fence + space + text.replace(/\s+/g, " ").replaceAll("|", "\\|") + space + fence;
}

function sentence(text) {
  return text[0].toUpperCase() + text.slice(1);
}

/** As much of a text as there is room for. */
function clipped(context, text, across) {
  if (context.measureText(text).width <= across) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > across) length -= Math.ceil(length / 20);
  return `${text.slice(0, length)}…`;
}
