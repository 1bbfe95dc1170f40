"use strict";
// Where answers come from: a server, or the document itself. Both have the same methods.

/** Unpacks the message of packed.py: its object, with the arrays by name. */
function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const about = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const kinds = {Uint8Array, Int32Array, Float64Array};
  let at = 4 + length;
  const arrays = {};
  for (const [name, kind, size] of about.arrays) {
    arrays[name] = new kinds[kind](buffer, at, size);
    at += Math.ceil(arrays[name].byteLength / 8) * 8;
  }
  return {...about, arrays};
}

class ServerSource {
  canTry = true;

  /** Where the flame graph of a run is. */
  flame(run) { return `flame?run=${run}`; }

  async _get(what, fields) {
    const answer = await fetch(`api/${what}?${new URLSearchParams(fields || {})}`);
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error || `the server answered ${answer.status}`);
    return answer;
  }

  async runs() { return (await this._get("runs")).json(); }

  async tryOut(settings, source) {
    const answer = await fetch("api/try", {
      method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({settings, source}),
    });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return found;
  }

  /** Return the moment that many moments later. */
  neighbour(run, moment, step) { return moment + step; }

  async series(run, fields) { return unpack(await (await this._get("series", {run, ...fields})).arrayBuffer()); }
  async moment(run, fields) { return unpack(await (await this._get("moment", {run, ...fields})).arrayBuffer()); }
  async block(run, life, moment) { return (await this._get("block", {run, life, moment})).json(); }
  async search(run, query, moment) { return (await this._get("search", {run, query, moment})).json(); }
}

/** The output of `stills`: all columns of time, and the pieces of memory at some of its moments. */
class FileSource {
  canTry = false;

  flame() { return null; }

  constructor(data) { this._data = data; }

  async runs() {
    this._arrays = await Promise.all(this._data.packed.map(async (text) => {
      const raw = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
      const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
      return unpack(await new Response(stream).arrayBuffer()).arrays;
    }));
    this._runs = this._data.about.runs;
    this._data = null;
    return this._runs;
  }

  async series(run, {by, query}) {
    const all = this._arrays[run];
    const arrays = {...all, bands: all[`${by}.bands`]};
    if (query) arrays.found = this._foundOverTime(run, query);
    return {end: this._runs[run].last + 1, by, arrays};
  }

  async moment(run, {moment, start, end, by, query}) {
    const all = this._arrays[run], overview = this._runs[run];
    const still = this._still(run, moment);
    const there = [];
    for (let i = 0; i < all.first.length; i++) if (all.first[i] <= still && still <= all.last_still[i]) there.push(i);
    there.sort((a, b) => all.place[a] - all.place[b]);
    const found = query ? this._find(run, query) : null;
    const states = overview.states.map(() => 0);
    const names = overview.groupings[by];
    const held = names.map(() => 0), counts = names.map(() => 0);
    let live = 0, foundBlocks = 0, foundBytes = 0, segments = new Set();
    for (const i of there) {
      states[all.state[i]] += all.size[i];
      if (all.segment[i] >= 0) segments.add(all.segment[i]);
      if (all.state[i] !== 0) continue;
      const life = all.life[i], band = all[`${by}.band`][life], size = all.life_requested[life];
      held[band] += size; counts[band] += 1; live += size;
      if (found && found[life]) { foundBlocks += 1; foundBytes += size; }
    }
    const shown = there.filter((i) => all.place[i] + all.size[i] > start && all.place[i] < end);
    const pick = (kind, value) => kind.from(shown, value);
    return {
      moment: all.still[still], entry: all.still_entry[still], time: all.still_time[still],
      live, blocks: counts.reduce((a, b) => a + b, 0), segments: segments.size, states,
      waste: overview.waste_at_stills[still], held, counts,
      ...(found ? {found: {blocks: foundBlocks, bytes: foundBytes}} : {}),
      arrays: {
        place: pick(Float64Array, (i) => all.place[i]), size: pick(Float64Array, (i) => all.size[i]),
        state: pick(Uint8Array, (i) => all.state[i]), life: pick(Int32Array, (i) => all.life[i]),
        band: pick(Uint8Array, (i) => (all.life[i] < 0 ? 0 : all[`${by}.band`][all.life[i]])),
        segment: pick(Float64Array, (i) => all.segment[i]), mixed: pick(Uint8Array, () => 0),
        hit: pick(Uint8Array, (i) => (found && all.life[i] >= 0 && found[all.life[i]] ? 1 : 0)),
      },
    };
  }

  async block(run, life, moment) {
    const all = this._arrays[run], overview = this._runs[run], last = overview.last;
    const still = this._still(run, moment);
    const own = all.life.findIndex((other, i) => other === life && all.first[i] <= still && still <= all.last_still[i]);
    let pins = 0, pinsWith = 0;
    if (own >= 0) {
      // `unit` is the size of the pages, or of a plain segment: the unit in which memory is released.
      const base = all.segment[own], unit = all.unit[own];
      const low = base + Math.floor((all.place[own] - base) / unit) * unit;
      const high = base + Math.ceil((all.place[own] + all.size[own] - base) / unit) * unit;
      for (let i = 0; i < all.first.length; i++) {
        if (all.first[i] > still || still > all.last_still[i]) continue;
        const inside = Math.min(all.place[i] + all.size[i], high) - Math.max(all.place[i], low);
        if (inside <= 0) continue;
        if (overview.states[all.state[i]] === "pinned") pins += inside;
        if (all.life[i] >= 0 && i !== own) pinsWith += 1;
      }
    }
    return {
      life, address: "0x" + all.life_address[life].toString(16), size: all.life_size[life],
      requested: all.life_requested[life], stream: overview.streams[all.life_stream[life]],
      pool: overview.pools[all.life_pool[life]], begin: all.life_begin[life], was_there: all.life_begin[life] === 0,
      begin_entry: all.life_begin_entry[life], end_entry: all.life_end_entry[life],
      freed: all.life_freed[life] <= last ? all.life_freed[life] : null,
      freed_entry: all.life_freed[life] <= last ? all.life_freed_entry[life] : null,
      end: all.life_end[life] <= last ? all.life_end[life] : null,
      lived_us: all.life_end_time[life] - all.life_begin_time[life], stack: overview.stacks[all.life_stack[life]] || [],
      place: own >= 0 ? all.place[own] : 0, pins, pins_with: pinsWith, moment,
    };
  }

  async search(run, query, moment) {
    const all = this._arrays[run], overview = this._runs[run];
    const hits = this._find(run, query);
    const found = [];
    hits.forEach((hit, life) => hit && found.push(life));
    const isLive = (life) => all.life_begin[life] <= moment && all.life_freed[life] > moment;
    const live = found.filter(isLive);
    found.sort((a, b) => isLive(b) - isLive(a) || all.life_size[b] - all.life_size[a]);
    return {
      query, blocks: found.length, live_blocks: live.length,
      live_bytes: live.reduce((total, life) => total + all.life_requested[life], 0),
      listed: found.slice(0, 100).map((life) => ({
        life, size: all.life_size[life], begin: all.life_begin[life], end: Math.min(all.life_end[life], overview.last),
        begin_entry: all.life_begin_entry[life], end_entry: all.life_end_entry[life],
        is_live: isLive(life), line: overview.lines[all.life_stack[life]] || "",
      })),
    };
  }

  /** Return the moment that many moments later, or the next one that has a map. */
  neighbour(run, moment, step) {
    const stills = this._arrays[run].still, now = this._still(run, moment), wanted = this._still(run, moment + step);
    const next = wanted === now ? now + Math.sign(step) : wanted;
    return stills[Math.min(Math.max(next, 0), stills.length - 1)];
  }

  /** The still nearest to a moment. */
  _still(run, moment) {
    const moments = this._arrays[run].still;
    let low = 0, high = moments.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (moments[middle] < moment) low = middle + 1; else high = middle;
    }
    return low > 0 && moment - moments[low - 1] < moments[low] - moment ? low - 1 : low;
  }

  /** Return by life whether a query matches it; understands the same words as search.py. */
  _find(run, query) {
    const all = this._arrays[run], overview = this._runs[run];
    const units = {"": 1, b: 1, k: 2 ** 10, kib: 2 ** 10, m: 2 ** 20, mib: 2 ** 20, g: 2 ** 30, gib: 2 ** 30, kb: 1e3, mb: 1e6, gb: 1e9};
    const holds = {">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, "=": (a, b) => a === b};
    const columns = {
      size: (life) => all.life_size[life], life: (life) => all.life_end[life] - all.life_begin[life],
      stream: (life) => Number(overview.streams[all.life_stream[life]]), pool: (life) => all.life_pool[life],
    };
    let texts = null;
    const tests = query.split(/\s+/).filter(Boolean).map((part) => {
      const compared = part.match(/^(size|life|stream|pool)?(>=|<=|>|<|=|:)([\d.]+)([a-z]*)$/i);
      if (compared && compared[4].toLowerCase() in units) {
        const value = Number(compared[3]) * units[compared[4].toLowerCase()];
        const column = columns[compared[1] || "size"], relation = holds[compared[2].replace(":", "=")];
        return (life) => relation(column(life), value);
      }
      texts ||= overview.stacks.map((stack) => stack.map(([name, file, line]) => `${file}:${line} ${name}`).join("\n").toLowerCase());
      return (life) => (texts[all.life_stack[life]] || "").includes(part.toLowerCase());
    });
    return Array.from(all.life_number, (_, life) => tests.every((test) => test(life)));
  }

  /** Bytes that match a query, at the columns' moments. */
  _foundOverTime(run, query) {
    const all = this._arrays[run], hits = this._find(run, query);
    const total = new Float64Array(all.moment.length);
    const column = (moment) => { let low = 0, high = total.length; while (low < high) { const middle = (low + high) >> 1; if (all.moment[middle] < moment) low = middle + 1; else high = middle; } return low; };
    hits.forEach((hit, life) => {
      if (!hit) return;
      const end = column(all.life_freed[life]);
      for (let i = column(all.life_begin[life]); i < end; i++) total[i] += all.life_requested[life];
    });
    return total;
  }
}

function sourceOfPage() {
  const data = document.getElementById("data");
  return data ? new FileSource(JSON.parse(data.textContent)) : new ServerSource();
}
