// Draws the page map and the timeline of a memory snapshot page. Text from the
// snapshot enters the document as text nodes only.
"use strict";
(() => {
const snapshot = JSON.parse(document.getElementById("snapshot").textContent);
const kColours = 8;
const kPatterns = ["solid", "diagonal", "dots", "horizontal", "back", "cross"];
const kSvg = "http://www.w3.org/2000/svg";

// Owners carry a letter and a pattern beside their colour, so that none of
// them rests on colour alone.
const owners = new Map();
function addOwner(id, name) {
  const index = owners.size;
  owners.set(id, {
    name,
    letter: String.fromCharCode(65 + index % 26),
    colour: `--c${index % kColours}`,
    pattern: kPatterns[index % kPatterns.length],
    index,
  });
}
const largestFirst = [...snapshot.owners].sort((a, b) => b.live - a.live);
for (const owner of largestFirst) addOwner(owner.id, owner.name);
function ownerOf(id) {
  if (!owners.has(id)) addOwner(id, `owner ${id}`);
  return owners.get(id);
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
function formatBytes(bytes) {
  const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < names.length) {
    bytes /= 1024;
    ++unit;
  }
  return `${unit === 0 ? bytes : bytes.toFixed(2)} ${names[unit]}`;
}
function formatTime(nanoseconds) {
  const seconds = nanoseconds / 1e9;
  if (seconds === 0) return "0";
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toFixed(2)} ms`;
  return `${(seconds * 1e6).toFixed(1)} µs`;
}
function svg(tag, attributes, text) {
  const element = document.createElementNS(kSvg, tag);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, value);
  }
  if (text !== undefined) element.textContent = text;
  return element;
}

// The lines of a pattern in a square of `size`, as [x1, y1, x2, y2] or dots.
function patternLines(pattern, size) {
  const half = size / 2;
  switch (pattern) {
    case "diagonal": return [[0, size, size, 0]];
    case "back": return [[0, 0, size, size]];
    case "horizontal": return [[0, half, size, half]];
    case "cross": return [[0, half, size, half], [half, 0, half, size]];
    case "dots": return [[half - 0.8, half, half + 0.8, half]];
    default: return [];
  }
}
function defineFill(defs, prefix, owner) {
  const size = 8;
  const pattern = svg("pattern", {
    id: `${prefix}${owner.index}`, width: size, height: size,
    patternUnits: "userSpaceOnUse",
  });
  pattern.append(svg("rect", {
    width: size, height: size, style: `fill: var(${owner.colour})`,
  }));
  for (const [x1, y1, x2, y2] of patternLines(owner.pattern, size)) {
    pattern.append(svg("line", {
      x1, y1, x2, y2, "stroke-width": 1.4,
      style: "stroke: var(--pattern)",
    }));
  }
  defs.append(pattern);
  return `url(#${prefix}${owner.index})`;
}
function addLegend(list, prefix, owner, label) {
  const item = document.createElement("li");
  const swatch = svg("svg", {
    width: 22, height: 22, viewBox: "0 0 22 22", "aria-hidden": "true",
  });
  const defs = svg("defs", {});
  const fill = defineFill(defs, prefix, owner);
  swatch.append(defs, svg("rect", { width: 22, height: 22, rx: 3, fill }));
  item.append(swatch, `${owner.letter}: ${label}`);
  list.append(item);
}

// ---- Page map ---------------------------------------------------------------

function drawPageMap() {
  const holder = document.getElementById("map");
  const detail = document.getElementById("map-detail");
  const legend = document.getElementById("map-legend");
  const pages = snapshot.pages;
  holder.replaceChildren();
  if (pages.length === 0) {
    holder.textContent = "No page is mapped.";
    return;
  }
  const counts = new Map();
  let cooling = 0;
  for (const page of pages) {
    counts.set(page.owner, (counts.get(page.owner) || 0) + 1);
    if (page.state === "cooling") ++cooling;
  }
  for (const [id, count] of [...counts].sort((a, b) => b[1] - a[1])) {
    addLegend(legend, "map-swatch", ownerOf(id),
              `${ownerOf(id).name} (${count} ${count === 1 ? "page" : "pages"})`);
  }
  if (cooling > 0) {
    const item = document.createElement("li");
    const swatch = svg("svg", {
      width: 22, height: 22, viewBox: "0 0 22 22", "aria-hidden": "true",
    });
    swatch.append(svg("rect", {
      x: 2, y: 2, width: 18, height: 18, fill: "none", "stroke-width": 3,
      style: "stroke: var(--soft)",
    }));
    item.append(swatch, `hollow: cooling (${cooling})`);
    legend.append(item);
  }

  const canvas = document.createElement("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label",
      `Page map of ${pages.length} pages in order of address. ` +
      "Arrow keys, Home and End move between pages.");
  canvas.setAttribute("aria-describedby", "map-detail");
  holder.append(canvas);

  const cell = pages.length <= 600 ? 20 : pages.length <= 4000 ? 13
             : pages.length <= 20000 ? 8 : 5;
  const gap = cell >= 8 ? 2 : 1;
  let columns = 1;
  let current = -1;

  function drawCell(context, i) {
    const page = pages[i];
    const owner = ownerOf(page.owner);
    const x = (i % columns) * cell;
    const y = Math.floor(i / columns) * cell;
    const size = cell - gap;
    const colour = css(owner.colour);
    if (page.state === "cooling") {
      const stroke = Math.max(1, size / 6);
      context.strokeStyle = colour;
      context.lineWidth = stroke;
      context.strokeRect(x + stroke / 2, y + stroke / 2, size - stroke, size - stroke);
    } else {
      context.fillStyle = colour;
      context.fillRect(x, y, size, size);
    }
    if (cell >= 20) {
      context.fillStyle = page.state === "cooling" ? css("--ink") : css("--pattern");
      context.fillText(owner.letter, x + size / 2, y + size / 2 + 1);
    } else if (cell >= 8 && page.state !== "cooling") {
      context.strokeStyle = css("--pattern");
      context.lineWidth = 1.2;
      for (const [x1, y1, x2, y2] of patternLines(owner.pattern, size)) {
        context.beginPath();
        context.moveTo(x + x1, y + y1);
        context.lineTo(x + x2, y + y2);
        context.stroke();
      }
    }
  }
  function draw() {
    const width = holder.clientWidth;
    columns = Math.max(1, Math.floor(width / cell));
    const height = Math.ceil(pages.length / columns) * cell;
    // Browsers refuse canvases beyond some 32,000 pixels.
    const ratio = Math.min(window.devicePixelRatio || 1, 30000 / height);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "600 11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let i = 0; i < pages.length; ++i) drawCell(context, i);
    if (current >= 0) {
      context.strokeStyle = css("--ink");
      context.lineWidth = 2;
      context.strokeRect((current % columns) * cell - gap / 2,
                         Math.floor(current / columns) * cell - gap / 2,
                         cell, cell);
    }
  }
  function select(i) {
    if (i < 0 || i >= pages.length || i === current) return;
    current = i;
    const page = pages[i];
    detail.textContent =
        `Page ${i + 1} of ${pages.length}: ${ownerOf(page.owner).name}, ` +
        `${page.state}, at ${page.address}`;
    draw();
  }
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / cell);
    const row = Math.floor((event.clientY - box.top) / cell);
    if (column >= 0 && column < columns) select(row * columns + column);
  });
  canvas.addEventListener("focus", () => { if (current < 0) select(0); });
  canvas.addEventListener("keydown", (event) => {
    const last = pages.length - 1;
    const at = Math.max(0, current);
    const target = {
      ArrowRight: at + 1, ArrowLeft: at - 1,
      ArrowDown: at + columns, ArrowUp: at - columns,
      PageDown: Math.min(last, at + 10 * columns),
      PageUp: Math.max(0, at - 10 * columns),
      Home: 0, End: last,
    }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    select(target);
  });
  detail.textContent =
      "Point at a page, or focus the map and use the arrow keys.";
  draw();
  new ResizeObserver(draw).observe(holder);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// ---- Timeline ---------------------------------------------------------------

function drawTimeline() {
  const holder = document.getElementById("timeline");
  const detail = document.getElementById("timeline-detail");
  const legend = document.getElementById("timeline-legend");
  const timeline = snapshot.timeline;
  const times = timeline.nanoseconds;
  holder.replaceChildren();
  if (times.length === 0) {
    holder.textContent = "The trace holds no change of live memory.";
    return;
  }
  // In the units of the page, so that text keeps its size on narrow screens.
  const width = Math.max(420, holder.clientWidth);
  const height = 320;
  const left = 84;
  const right = 16;
  const top = 30;
  const bottom = 34;
  const instants = [...times, ...timeline.marks.map((mark) => mark.nanoseconds),
                    ...timeline.failures.map((failure) => failure.nanoseconds)];
  const begin = instants.reduce((a, b) => Math.min(a, b));
  const end = Math.max(begin + 1, instants.reduce((a, b) => Math.max(a, b)));
  const peak = Math.max(1, timeline.live.reduce((a, b) => Math.max(a, b)));
  const limit = snapshot.memory.limit;
  const showLimit = limit <= 2 * peak;
  const ceiling = (showLimit ? Math.max(limit, peak) : peak) * 1.05;
  const x = (t) => left + (t - begin) / (end - begin) * (width - left - right);
  const y = (b) => height - bottom - b / ceiling * (height - top - bottom);

  const chart = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "application",
    "aria-label": `Live memory from ${formatTime(begin)} to ${formatTime(end)}, ` +
        `at most ${formatBytes(peak)}. Left and right arrows move between points.`,
    "aria-describedby": "timeline-detail",
  });
  const defs = svg("defs", {});
  chart.append(defs);
  // A power of two that gives four to eight lines, so that labels are round.
  const step = 2 ** Math.max(0, Math.floor(Math.log2(ceiling / 4)));
  for (let bytes = 0; bytes <= ceiling; bytes += step) {
    chart.append(svg("line", {
      x1: left, x2: width - right, y1: y(bytes), y2: y(bytes),
      style: "stroke: var(--line)",
    }));
    chart.append(svg("text", {
      x: left - 8, y: y(bytes) + 4, "text-anchor": "end",
    }, formatBytes(bytes)));
  }
  for (let i = 0; i <= 4; ++i) {
    const t = begin + (end - begin) * i / 4;
    chart.append(svg("text", {
      x: x(t), y: height - 10,
      "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle",
    }, formatTime(t - begin)));
  }

  // Stacked, each owner holding its level until the next point.
  const base = new Array(times.length).fill(0);
  const stacked = timeline.owners.filter((o) => o.live.some((v) => v > 0))
      .sort((a, b) => ownerOf(a.owner).index - ownerOf(b.owner).index);
  for (const column of stacked) {
    const owner = ownerOf(column.owner);
    const fill = defineFill(defs, "area", owner);
    const upper = [];
    const lower = [];
    for (let i = 0; i < times.length; ++i) {
      const next = i + 1 < times.length ? times[i + 1] : end;
      const high = base[i] + column.live[i];
      upper.push(`${x(times[i])},${y(high)}`, `${x(next)},${y(high)}`);
      lower.push(`${x(times[i])},${y(base[i])}`, `${x(next)},${y(base[i])}`);
      base[i] = high;
    }
    chart.append(svg("polygon", {
      points: [...upper, ...lower.reverse()].join(" "), fill,
    }));
    addLegend(legend, "timeline-swatch", owner, owner.name);
  }
  function drawLine(values, attributes) {
    const points = [];
    for (let i = 0; i < times.length; ++i) {
      const next = i + 1 < times.length ? times[i + 1] : end;
      points.push(`${x(times[i])},${y(values[i])}`,
                  `${x(next)},${y(values[i])}`);
    }
    chart.append(svg("polyline", {
      points: points.join(" "), fill: "none", "stroke-width": 1.5,
      style: "stroke: var(--ink)", ...attributes,
    }));
  }
  drawLine(timeline.live, {});
  drawLine(timeline.requested.map((bytes) => Math.min(bytes, ceiling)),
           {"stroke-dasharray": "3 2"});
  const requestedItem = document.createElement("li");
  requestedItem.textContent = "dashed line: asked for";
  legend.append(requestedItem);
  // Where memory grew: the sentences above the chart say how.
  for (const growth of snapshot.growth.filter((g) => g.owner === null)) {
    const from = Math.max(begin, growth.from_nanoseconds);
    const to = Math.max(from, Math.min(end, growth.to_nanoseconds));
    chart.append(svg("line", {
      x1: x(from), y1: y(growth.held_from), x2: x(to), y2: y(growth.held_to),
      "stroke-width": 2.5, style: "stroke: var(--alarm)",
    }));
    chart.append(svg("text", {
      x: x(from) + 6, y: y(growth.held_from) - 6,
    }, growth.kind === "leak" ? "grows: a leak?" : `grows: ${growth.kind}`));
  }
  if (showLimit) {
    chart.append(svg("line", {
      x1: left, x2: width - right, y1: y(limit), y2: y(limit),
      "stroke-dasharray": "8 4", style: "stroke: var(--alarm)",
    }));
    chart.append(svg("text", {
      x: left + 6, y: y(limit) - 5,
    }, "limit"));
  }
  // Labels that would run into the one before are left to the table.
  let labelled = -Infinity;
  for (const mark of timeline.marks) {
    const at = x(mark.nanoseconds);
    chart.append(svg("line", {
      x1: at, x2: at, y1: top - 6, y2: height - bottom,
      "stroke-dasharray": "2 3", style: "stroke: var(--soft)",
    }));
    const label = svg("text", {
      x: at, y: top - 12, "text-anchor": at > width - 120 ? "end" : "start",
    }, mark.label);
    if (at - labelled > 7 * mark.label.length) {
      chart.append(label);
      labelled = at;
    }
  }
  for (const failure of timeline.failures) {
    const at = x(failure.nanoseconds);
    const cross = svg("path", {
      d: `M${at - 5} ${top - 5}l10 10m0 -10l-10 10`, fill: "none",
      "stroke-width": 2.5, style: "stroke: var(--alarm)",
    });
    cross.append(svg("title", {},
        `out of memory: ${ownerOf(failure.owner).name} wanted ` +
        formatBytes(failure.requested)));
    chart.append(cross);
  }
  if (timeline.failures.length > 0) {
    const item = document.createElement("li");
    item.textContent = `× out of memory (${timeline.failures.length})`;
    legend.append(item);
  }

  const cursor = svg("line", {
    y1: top, y2: height - bottom, visibility: "hidden", "stroke-width": 1.5,
    style: "stroke: var(--accent)",
  });
  chart.append(cursor);
  let current = -1;
  function select(i) {
    if (i < 0 || i >= times.length || i === current) return;
    current = i;
    cursor.setAttribute("x1", x(times[i]));
    cursor.setAttribute("x2", x(times[i]));
    cursor.setAttribute("visibility", "visible");
    const parts = stacked.filter((column) => column.live[i] > 0)
        .map((c) => `${ownerOf(c.owner).name} ${formatBytes(c.live[i])}`);
    detail.textContent = `${formatTime(times[i] - begin)}: ` +
        `${formatBytes(timeline.live[i])} live, ` +
        `${formatBytes(timeline.requested[i])} asked for` +
        (parts.length > 0 ? ` (${parts.join(", ")})` : "");
  }
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const t = begin + ((event.clientX - box.left) / box.width * width - left) /
        (width - left - right) * (end - begin);
    let low = 0;
    let high = times.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (times[middle] <= t) low = middle; else high = middle - 1;
    }
    select(low);
  });
  chart.addEventListener("focus", () => { if (current < 0) select(times.length - 1); });
  chart.addEventListener("keydown", (event) => {
    const at = Math.max(0, current);
    const target = {
      ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: times.length - 1,
    }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    select(target);
  });
  detail.textContent =
      "Point at the chart, or focus it and use the arrow keys.";
  holder.append(chart);
}

drawPageMap();
drawTimeline();
})();
