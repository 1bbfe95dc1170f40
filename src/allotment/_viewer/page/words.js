"use strict";
// Numbers and names for people, and elements made of text. Text from a file only ever becomes text: no script here
// parses strings as elements.

// Neither amber nor red: those are memory that waits, and memory that is pinned.
const BAND_COLORS = [
  "#4e79d6", "#4fb286", "#9a6fd0", "#46b3c4", "#d98cb3", "#a8b545", "#8fb0f0", "#2f8f6b",
  "#c07fe0", "#8a7564", "#6a8caf", "#7fd1a8", "#b7587f", "#7a6fe0", "#c2b280",
];
const REST_COLOR = "#7d8794";
const CAUSE_COLORS = {
  rounding: "#8fa3bf", pieces: "#d9596c", other_streams: "#9a6fd0", private_pools: "#46b3c4", waiting: "#e3a746",
  unreleased: "#55739c",
};
const CAUSE_WORDS = {
  rounding: "rounding", pieces: "pinned pieces", other_streams: "other streams", private_pools: "other pools",
  waiting: "waiting", unreleased: "could be released",
};
const CAUSE_NOTES = {
  rounding: "blocks in use are larger than requested",
  pieces: "free, beside blocks in use that keep it",
  other_streams: "free, for requests on other streams",
  private_pools: "free, in other pools",
  waiting: "freed, and other streams may still use it",
  unreleased: "free, and could be released to the device",
};
const STATE_WORDS = {
  live: "in use", waiting: "waiting for streams", free: "free", pinned: "free, pinned", unmapped: "no memory",
};
const STATE_NOTES = {
  waiting: "freed, and other streams may still use it", free: "could be released to the device",
  pinned: "a live block of its segment or page keeps it from being released", unmapped: "addresses without memory now",
};

function bytes(size) {
  const amount = Math.abs(size);
  if (amount < 1024) return `${size} B`;
  if (amount < 1048576) return `${(size / 1024).toFixed(1)} KiB`;
  if (amount < 1073741824) return `${(size / 1048576).toFixed(1)} MiB`;
  return `${(size / 1073741824).toFixed(3)} GiB`;
}

/** With as many digits as an axis needs whose marks are `step` apart. */
function bytesOnAxis(size, step) {
  if (size === 0) return "0";
  const [unit, scale] = size >= 1073741824 ? ["GiB", 1073741824] : size >= 1048576 ? ["MiB", 1048576] : size >= 1024 ? ["KiB", 1024] : ["B", 1];
  const digits = Math.min(4, Math.max(0, Math.ceil(Math.log2(scale / Math.max(step, 1)) / 3.3)));
  return `${(size / scale).toFixed(digits)} ${unit}`;
}

function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

/** An entry of the history by its number, as `allotment explain` prints it. */
function entryName(entry) {
  return entry < 0 ? "before the history" : `entry ${count(entry)}`;
}

function duration(us) {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1000).toFixed(us < 1e4 ? 2 : 1)} ms`;
  return us < 6e7 ? `${(us / 1e6).toFixed(3)} s` : `${Math.floor(us / 6e7)} min ${((us % 6e7) / 1e6).toFixed(1)} s`;
}

/** "a/b/file.py:33 name" as its short form and the folder before it. */
function shortName(name) {
  const place = name.match(/^(.*[\\/])?([^\\/]*:\d+)( .*)?$/);
  return place ? {short: place[2] + (place[3] || ""), folder: place[1] || ""} : {short: name, folder: ""};
}

function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** An element with properties and children; children that are strings become text. */
function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === "style") Object.assign(element.style, value);
    else if (name === "class") element.className = value;
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

/** A color of the theme that is shown. */
function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function isRest(overview, by, band) {
  return (overview.rest.includes(by) && band === overview.groupings[by].length - 1) || overview.groupings[by][band].startsWith("unknown");
}

/** Colors by name, for all runs together: a name has one color in all runs, and no two names of one run share one. */
function bandColors(overviews, by) {
  const colors = new Map();
  for (const overview of overviews) {
    const names = (overview.groupings[by] || []).filter((_, band) => !isRest(overview, by, band));
    const taken = new Set(names.map((name) => colors.get(name)));
    for (const name of names) {
      if (colors.has(name)) continue;
      const own = BAND_COLORS.findIndex((color) => !taken.has(color));
      const color = BAND_COLORS[own < 0 ? colors.size % BAND_COLORS.length : own];
      colors.set(name, color);
      taken.add(color);
    }
  }
  return colors;
}

/** How much larger letters are than on a screen of ordinary size, from the style sheet. */
function unit() {
  return parseFloat(getComputedStyle(document.body).fontSize) / 13;
}

/** Left of charts, bar and map: the width for the labels of bytes. */
function gutter() {
  return Math.round(74 * unit());
}

/** Right of them: half the width of the axis's last number. */
function rightEdge() {
  return Math.round(14 * unit());
}

function canvasFont() {
  return `${Math.round(11 * unit())}px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif`;
}

/** Pinned memory has no device of its own. */
function deviceName(device) {
  return device < 0 ? "pinned memory" : `device ${device}`;
}

/** Whether two runs can be compared: both must be of devices, or both of pinned memory. */
function isSameKind(view, other) {
  return (view.overview.device < 0) === (other.overview.device < 0);
}

/** Criteria for grouping blocks. */
const GROUPING_WORDS = {
  line: "line", frame: "innermost frame", stack: "stack", pool: "pool", stream: "stream", size: "size",
  annotation: "annotation", metadata: "metadata", tenant: "tenant", scope: "scope", compiled: "compiled region",
  kind: "kind of memory",
};
