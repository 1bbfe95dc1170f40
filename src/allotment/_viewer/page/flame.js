"use strict";
// Draws a tree of frames: each as wide as its bytes, below (or above) its caller. Names come from untrusted files, so
// they are only ever set as text.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const {parent, label, labels, own} = data, count = parent.length;
  const element = (id) => document.getElementById(id);
  const graph = element("graph"), ROW = 20, LEAST = 1;
  const children = Array.from({length: count}, () => []), depth = new Int32Array(count);
  for (let node = 1; node < count; node++) { children[parent[node]].push(node); depth[node] = depth[parent[node]] + 1; }
  let metric = "peak", zoomed = 0, chosen = 0, callersBelow = false, query = "", shown = [];

  const size = (bytes) => bytes >= 1048576 ? (bytes / 1048576).toLocaleString("en", {maximumFractionDigits: 1, minimumFractionDigits: 1}) + " MiB"
    : bytes >= 1024 ? (bytes / 1024).toFixed(1) + " KiB" : bytes + " B";
  const share = (node) => data[metric][0] ? (100 * data[metric][node] / data[metric][0]).toFixed(1) + " %" : "-";
  const text = (node) => `${labels[label[node]]}: ${size(data[metric][node])}, ${share(node)}`;
  const short = (node) => labels[label[node]].replace(/ \S*\//, " ");
  const isHit = (node) => query !== "" && node > 0 && labels[label[node]].toLowerCase().includes(query);
  const color = (node) => {
    const name = labels[label[node]];
    let hash = 0;
    for (let i = 0; i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) | 0;
    const [hue, strength] = own[node] ? [12 + Math.abs(hash) % 44, "78%"] : [200 + Math.abs(hash) % 30, name[0] === "(" ? "6%" : "24%"];
    return `hsl(${hue} ${strength} var(--light))`;
  };

  // The nodes to draw: those above the zoomed node, at full width, and those below it by their bytes.
  function layout() {
    const width = graph.clientWidth, values = data[metric], placed = [];
    const above = [];
    for (let node = zoomed; node >= 0; node = parent[node]) above.unshift(node);
    for (const node of above) placed.push({node, left: 0, width, above: node !== zoomed});
    const queue = [{node: zoomed, left: 0, width}];
    while (queue.length) {
      const at = queue.pop();
      let left = at.left;
      for (const child of [...children[at.node]].sort((a, b) => values[b] - values[a])) {
        const wide = values[at.node] ? at.width * values[child] / values[at.node] : 0;
        if (wide < LEAST) continue;
        const box = {node: child, left, width: wide, above: false};
        placed.push(box);
        queue.push(box);
        left += wide;
      }
    }
    return placed;
  }

  function draw() {
    shown = layout();
    const deepest = Math.max(...shown.map((box) => depth[box.node])), had = graph.contains(document.activeElement);
    graph.style.minHeight = `${(deepest + 2) * ROW}px`;
    graph.replaceChildren(...shown.map((box) => {
      const item = document.createElement("button");
      item.type = "button";
      item.className = "frame" + (box.above ? " above" : "") + (isHit(box.node) ? " hit" : "");
      item.tabIndex = box.node === chosen ? 0 : -1;
      item.setAttribute("role", "treeitem");
      item.setAttribute("aria-level", depth[box.node] + 1);
      item.setAttribute("aria-label", text(box.node));
      item.title = text(box.node);
      item.dataset.node = box.node;
      item.textContent = box.width > 30 ? short(box.node) : "";
      if (box.width > 7.5 * (item.textContent.length + 16)) {
        const bytes = document.createElement("span");
        bytes.className = "bytes";
        bytes.textContent = size(data[metric][box.node]);
        item.append(bytes);
      }
      item.style.left = `${box.left}px`;
      item.style.width = `${Math.max(box.width - 1, 1)}px`;
      item.style[callersBelow ? "bottom" : "top"] = `${4 + depth[box.node] * ROW}px`;
      item.style.background = color(box.node);
      return item;
    }));
    if (!shown.some((box) => box.node === chosen)) choose(zoomed, had); else if (had) focusChosen();
    tellFound();
  }

  function focusChosen() { graph.querySelector(`[data-node="${chosen}"]`)?.focus(); }
  function choose(node, focus) {
    graph.querySelector(`[data-node="${chosen}"]`)?.setAttribute("tabindex", "-1");
    chosen = node;
    graph.querySelector(`[data-node="${chosen}"]`)?.setAttribute("tabindex", "0");
    element("details").textContent = text(node);
    if (focus) focusChosen();
  }
  function zoom(node) { zoomed = node; chosen = node; draw(); choose(node, true); }

  // Bytes under frames that match. Each byte counts once: a match below a match adds nothing.
  function tellFound() {
    if (query === "") { element("found").textContent = ""; return; }
    const inside = new Uint8Array(count);
    let bytes = 0, frames = 0;
    for (let node = 1; node < count; node++) {
      const hit = isHit(node);
      if (hit) frames++;
      if (hit && !inside[parent[node]]) bytes += data[metric][node];
      inside[node] = inside[parent[node]] || hit ? 1 : 0;
    }
    const part = data[metric][0] ? (100 * bytes / data[metric][0]).toFixed(1) : "0";
    element("found").textContent = `${frames.toLocaleString("en")} frames match: ${size(bytes)}, ${part} %`;
  }

  function neighbour(key) {
    const inner = callersBelow ? "ArrowUp" : "ArrowDown", outer = callersBelow ? "ArrowDown" : "ArrowUp";
    const visible = new Set(shown.map((box) => box.node));
    if (key === outer) return parent[chosen];
    if (key === inner) return shown.find((box) => parent[box.node] === chosen)?.node ?? -1;
    const row = shown.filter((box) => depth[box.node] === depth[chosen]).sort((a, b) => a.left - b.left).map((box) => box.node);
    const next = row[row.indexOf(chosen) + (key === "ArrowRight" ? 1 : -1)];
    return next !== undefined && visible.has(next) ? next : -1;
  }

  graph.addEventListener("click", (event) => { const item = event.target.closest(".frame"); if (item) zoom(Number(item.dataset.node)); });
  graph.addEventListener("mouseover", (event) => { const item = event.target.closest(".frame"); if (item) element("details").textContent = text(Number(item.dataset.node)); });
  graph.addEventListener("focusin", (event) => { const item = event.target.closest(".frame"); if (item) choose(Number(item.dataset.node), false); });
  graph.addEventListener("keydown", (event) => {
    if (!event.key.startsWith("Arrow")) return;
    const node = neighbour(event.key);
    if (node >= 0) choose(node, true);
    event.preventDefault();
  });
  element("metric").addEventListener("change", (event) => { metric = event.target.value; zoomed = 0; draw(); choose(zoomed, false); });
  element("search").addEventListener("input", (event) => { query = event.target.value.trim().toLowerCase(); draw(); });
  element("turn").addEventListener("click", () => { callersBelow = !callersBelow; element("turn").setAttribute("aria-pressed", callersBelow); draw(); });
  element("reset").addEventListener("click", () => { element("search").value = query = ""; zoom(0); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { if (query) { element("search").value = query = ""; draw(); } else zoom(Math.max(parent[zoomed], 0)); }
    if (event.key === "/" && document.activeElement !== element("search")) { element("search").focus(); event.preventDefault(); }
  });
  new ResizeObserver(draw).observe(graph);
  element("about").textContent = data.about;
  document.title = `Memory by stack: ${data.about}`;
  draw();
})();
