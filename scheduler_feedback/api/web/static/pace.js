// A job's drawings: own step time by rank as lines, and all ranks as a map, from the "pace" events of its page's stream.
// Both share a time axis, from the oldest row to now or to the job's end, and mark the times in which no step ended.

const MOST_ROWS = 600; // as many as the server keeps; older rows are dropped
const LEAST_SPAN = 60; // seconds of the time axis
const GUTTER = 76; // pixels left of both drawings, for their labels; as .map in page.css
const MARGIN = 10; // pixels right of both
const ARRIVAL = 3; // seconds until a row arrives here: until then a column is unknown, not empty
const LOGARITHMIC = 20; // the scale is logarithmic above this ratio of the longest to the median step

const pace = { at: [], step: [], whole: [], lines: [], bands: [], cells: [], attempt: 0, ranks: 0, gap: 3, ahead: 0, until: null };
let chart = null;
let logarithmic = false;
let cursor = null; // the cell described below the map: { column, band }
let columns = []; // of the map: { at, rows, state }; state: "rows", "none" (no step ended) or "unknown"

document.addEventListener("pace", (event) => addRows(event.detail));
document.addEventListener("theme", () => redraw(true));

function addRows(news) {
  const width = news.bands.length;
  if (news.whole) {
    Object.assign(pace, { at: [], step: [], whole: [], cells: [], bands: news.bands, attempt: news.attempt, ranks: news.ranks });
    pace.lines = news.lines.map(({ name }) => ({ name, values: [] }));
    cursor = null;
    chart?.destroy();
    chart = null;
  }
  pace.gap = news.gap;
  pace.until = news.until;
  pace.ahead = (news.now ?? Date.now() / 1000) - Date.now() / 1000; // seconds that the server's clock is ahead of this one
  const cells = Uint8Array.from(atob(news.cells), (character) => character.charCodeAt(0));
  news.at.forEach((at, row) => {
    pace.at.push(at);
    pace.step.push(news.step[row]);
    pace.whole.push(news.slowest_seconds[row]);
    pace.cells.push(cells.subarray(row * width, (row + 1) * width));
  });
  news.lines.forEach(({ values }, line) => pace.lines[line].values.push(...values));
  const over = pace.at.length - MOST_ROWS;
  if (over > 0) {
    const lists = [pace.at, pace.step, pace.whole, pace.cells, ...pace.lines.map((line) => line.values)];
    for (const list of lists) list.splice(0, over);
  }
  document.getElementById("pace").hidden = pace.at.length === 0;
  document.getElementById("pace-empty").hidden = pace.at.length > 0;
  redraw(false);
}

function redraw(fromScratch) {
  if (!pace.at.length) return;
  const scale = isWide();
  if ((fromScratch || scale !== logarithmic) && chart) {
    chart.destroy();
    chart = null;
  }
  logarithmic = scale;
  document.getElementById("pace-scale").hidden = !logarithmic;
  drawLines();
  drawMap();
  describeChart();
  if (cursor) describeCell();
}

// Extend the time axis while no step ends.
setInterval(() => {
  if (!document.hidden && pace.at.length && pace.until === null) redraw(false);
}, 1000);

// --- time ---------------------------------------------------------------------------------------------------------------

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

// Start and end of the time axis, in seconds since 1970.
function span() {
  const until = Math.max(pace.until ?? Date.now() / 1000 + pace.ahead, pace.at.at(-1) + 1);
  return [Math.min(pace.at[0], until - LEAST_SPAN), until];
}

// Times longer than a usual step in which no step ended: { from, until, seconds }. The last one may still continue. A row
// is a whole second: a gap is drawn between two rows, and lasts from the steps of one to the steps of the other.
function gaps() {
  const found = [];
  for (let row = 1; row < pace.at.length; row++) {
    const seconds = pace.at[row] - pace.at[row - 1];
    if (seconds > pace.gap) found.push({ from: pace.at[row - 1] + 1, until: pace.at[row], seconds });
  }
  const [, until] = span();
  const last = pace.at.at(-1) + 1;
  const known = pace.until ?? until - ARRIVAL;
  if (known - last > pace.gap) found.push({ from: last, until, seconds: until - last });
  return found;
}

const LENGTHS = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200];

function words(seconds) {
  const whole = Math.round(seconds);
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min` + (whole % 60 ? ` ${whole % 60} s` : "");
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

// --- lines --------------------------------------------------------------------------------------------------------------

// A canvas does not support light-dark(): read the style sheet's colours from an element.
const probe = document.getElementById("pace-cell");

function colour(name) {
  probe.style.color = `var(${name})`;
  const resolved = getComputedStyle(probe).color;
  probe.style.color = "";
  return resolved;
}

function shown(seconds) {
  if (seconds == null) return "–";
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  return seconds < 10 ? `${Number(seconds.toFixed(2))} s` : `${Math.round(seconds)} s`;
}

function colourOf(line) {
  return line === pace.lines.length ? colour("--dim") : colour(`--line-${line % 8}`);
}

// All lines; the whole step is the last one.
const allLines = () => [...pace.lines, { name: "whole step", values: pace.whole }];

function isWide() {
  const known = pace.whole.filter((value) => value > 0).sort((one, other) => one - other);
  return known.length > 0 && known.at(-1) > LOGARITHMIC * known[known.length >> 1];
}

// Rows, with an empty row in each gap to interrupt the lines.
function lineData() {
  const lines = allLines();
  const data = [[], ...lines.map(() => [])];
  const put = (at, row) => {
    data[0].push(at);
    lines.forEach((line, number) => {
      const value = row === null ? null : line.values[row];
      data[number + 1].push(logarithmic && !(value > 0) ? null : value);
    });
  };
  pace.at.forEach((at, row) => {
    if (row && at - pace.at[row - 1] > pace.gap) put((at + pace.at[row - 1]) / 2, null);
    put(at, row);
  });
  return data;
}

function drawLines() {
  const place = document.getElementById("pace-chart");
  const data = lineData();
  if (chart) {
    chart.setData(data);
    return;
  }
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--hair"), width: 1 }, ticks: { show: false } };
  const linear = (_, low, high) => [0, Math.max(high * 1.1, low * 1.2, 1e-3)];
  const powers = (_, low, high) => [10 ** Math.floor(Math.log10(low * 0.9)), high * 1.5];
  const isPower = (value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-6;
  const filter = (_, ticks) => ticks.map((tick) => (logarithmic && !isPower(tick) ? null : tick));
  chart = new uPlot(
    {
      width: Math.max(place.clientWidth, 240),
      height: 260,
      padding: [8, MARGIN, 0, 0],
      scales: {
        x: { range: () => span() },
        y: logarithmic ? { distr: 3, range: powers } : { range: linear },
      },
      axes: [
        { ...axis, size: 28, space: 90, values: (_, ticks) => ticks.map(clock) },
        {
          ...axis,
          size: GUTTER,
          filter,
          grid: { ...axis.grid, filter },
          values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : shown(tick))),
        },
      ],
      legend: { show: false },
      cursor: { y: false },
      series: [
        {},
        ...allLines().map((line, number) => ({
          label: line.name,
          stroke: colourOf(number),
          width: 1.5,
          dash: number === pace.lines.length ? [2, 3] : number >= 8 ? [4, 3] : undefined,
          points: { show: true, filter: alone, size: 5 },
          spanGaps: false,
        })),
      ],
      hooks: { setCursor: [describeLines], drawClear: [drawGaps], draw: [labelGaps] },
    },
    data,
    place,
  );
  drawLegend();
}

// A row between two gaps is drawn as a point.
function alone(plot, series) {
  const values = plot.data[series];
  return values.flatMap((value, at) => (value != null && values[at - 1] == null && values[at + 1] == null ? [at] : []));
}

function drawGaps(plot) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.fillStyle = hatch(ctx, ratio);
  for (const { from, until } of gaps()) {
    const left = plot.valToPos(from, "x", true);
    ctx.fillRect(left, bbox.top, Math.max(plot.valToPos(until, "x", true) - left, 1), bbox.height);
  }
  ctx.restore();
}

function labelGaps(plot) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  for (const { from, until, seconds } of gaps()) {
    const left = plot.valToPos(from, "x", true);
    const right = plot.valToPos(until, "x", true);
    const label = `no step for ${words(seconds)}`;
    const width = ctx.measureText(label).width + 12 * ratio;
    if (width > right - left) continue;
    const [x, y] = [(left + right) / 2, bbox.top + bbox.height / 2];
    ctx.fillStyle = colour("--raised");
    ctx.fillRect(x - width / 2, y - 10 * ratio, width, 20 * ratio);
    ctx.fillStyle = colour("--text");
    ctx.fillText(label, x, y);
  }
  ctx.restore();
}

function hatch(ctx, ratio) {
  const size = 6 * ratio;
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colour("--hatch");
  pen.lineWidth = ratio;
  pen.beginPath();
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
  }
  pen.stroke();
  return ctx.createPattern(tile, "repeat");
}

function drawLegend() {
  const items = allLines().map((line, number) => {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    const value = document.createElement("small");
    swatch.className = "swatch line";
    swatch.style.background = colourOf(number);
    item.append(swatch, line.name, " ", value);
    return item;
  });
  document.getElementById("pace-legend").replaceChildren(...items);
}

// The chart in words: the longest step, and the longest times without a step.
const MOST_GAPS = 3;

function describeChart() {
  const row = pace.whole.reduce((most, value, here) => (value > pace.whole[most] ? here : most), 0);
  const longest = `Longest step: ${shown(pace.whole[row])}, ended ${clock(pace.at[row])}.`;
  const all = gaps();
  const long = [...all].sort((one, other) => other.seconds - one.seconds).slice(0, MOST_GAPS);
  const said = long
    .sort((one, other) => one.from - other.from)
    .map(({ from, seconds }) => `${words(seconds)} from ${clock(from)}`)
    .join(", ");
  const more = all.length > long.length ? `, and ${all.length - long.length} shorter times` : "";
  const none = all.length ? ` No step ended for ${said}${more}.` : "";
  document.getElementById("pace-said").textContent = longest + none;
}

function describeLines(plot) {
  const data = plot.data;
  const at = plot.cursor.idx ?? data[0].length - 1;
  document.querySelectorAll("#pace-legend small").forEach((value, number) => {
    value.textContent = shown(data[number + 1]?.[at]);
  });
}

new ResizeObserver(([entry]) => {
  if (!chart || entry.contentRect.width <= 0) return;
  chart.setSize({ width: Math.max(entry.contentRect.width, 240), height: 260 });
  drawMap();
}).observe(document.getElementById("pace-chart"));

// --- the map ------------------------------------------------------------------------------------------------------------

const MOST_COLUMNS = 600;
const LABEL = 15; // height of a label of the map in pixels
const STOPS = [1.05, 1.1, 1.3, 2.0]; // ratios to the peers' time; page.css defines a colour for each: --heat-0 to --heat-3
const map = document.getElementById("pace-map");

function palette() {
  const stops = STOPS.map((_, number) => colour(`--heat-${number}`).match(/\d+/g).map(Number));
  const colours = new Uint8ClampedArray(256 * 4);
  for (let cell = 0; cell < 256; cell++) {
    const ratio = cell / 100;
    let above = STOPS.findIndex((stop) => ratio < stop);
    if (above < 0) above = STOPS.length;
    const share = above === 0 || above === STOPS.length ? 0 : (ratio - STOPS[above - 1]) / (STOPS[above] - STOPS[above - 1]);
    const low = stops[Math.max(above - 1, 0)];
    const high = stops[Math.min(above, STOPS.length - 1)];
    colours.set([...low.map((part, at) => part + share * (high[at] - part)), 255], 4 * cell);
  }
  return colours;
}

// Columns of the map. Each covers the same number of whole seconds, and shows the worst row of each rank.
function layOut() {
  const [from, until] = span();
  const seconds = Math.max(1, Math.ceil((until - from) / MOST_COLUMNS));
  const first = Math.floor(from / seconds) * seconds;
  const found = Array.from({ length: Math.max(1, Math.ceil((until - first) / seconds)) }, (_, column) => ({
    at: first + column * seconds,
    rows: [],
    state: "none",
  }));
  const column = (at) => Math.max(0, Math.min(found.length - 1, Math.floor((at - first) / seconds)));
  pace.at.forEach((at, row) => {
    // A step longer than a column fills all columns that it lasted for, unless they are a gap.
    const before = row && at - pace.at[row - 1] <= pace.gap ? column(pace.at[row - 1]) + 1 : column(at);
    for (let here = Math.min(before, column(at)); here <= column(at); here++) {
      found[here].rows.push(row);
      found[here].state = "rows";
    }
  });
  for (let here = 0; here < column(pace.at[0]); here++) found[here].state = "unknown";
  const last = pace.at.at(-1) + 1;
  if (pace.until === null && until - ARRIVAL - last <= pace.gap) {
    for (let here = column(last); here < found.length; here++) if (!found[here].rows.length) found[here].state = "unknown";
  }
  return found;
}

// The longest own time in a column relative to the peers', in hundredths; undefined if no step ended.
function cellOf(column, band) {
  let most;
  for (const row of column.rows) most = Math.max(most ?? 0, pace.cells[row][band]);
  return most;
}

function drawMap() {
  const bands = pace.bands.length;
  if (!bands) return;
  columns = layOut();
  map.width = columns.length;
  map.height = bands;
  const height = Math.max(48, Math.min(480, bands * 22));
  map.style.height = `${height}px`;
  const context = map.getContext("2d");
  const image = context.createImageData(columns.length, bands);
  const colours = palette();
  const unknown = [...colour("--sunken").match(/\d+/g).slice(0, 3).map(Number), 255];
  columns.forEach((column, at) => {
    if (column.state === "none") return; // transparent: shows the hatched background
    for (let band = 0; band < bands; band++) {
      const cell = cellOf(column, band);
      image.data.set(cell === undefined ? unknown : colours.subarray(4 * cell, 4 * cell + 4), 4 * (band * columns.length + at));
    }
  });
  context.putImageData(image, 0, 0);
  labelRows(height / bands);
  labelTimes();
}

function labelRows(height) {
  const every = Math.max(1, Math.ceil(LABEL / height));
  const labels = [];
  for (let band = 0; band < pace.bands.length; band += every) {
    const label = document.createElement("span");
    label.textContent = pace.bands[band].split(" · ")[0].replace("ranks ", "");
    label.title = pace.bands[band];
    label.style.top = `${(band + 0.5) * height}px`;
    labels.push(label);
  }
  document.getElementById("pace-names").replaceChildren(...labels);
}

function labelTimes() {
  const first = columns[0].at;
  const until = columns.at(-1).at + (columns.length > 1 ? columns[1].at - first : 1);
  const most = Math.max(2, Math.floor(map.clientWidth / 90));
  const step = LENGTHS.find((seconds) => (until - first) / seconds <= most) ?? 86400;
  const labels = [];
  const put = (text, share, className) => {
    const label = document.createElement("span");
    label.textContent = text;
    label.className = className;
    label.style.left = `${100 * share}%`;
    labels.push(label);
  };
  put(pace.until === null ? "now" : "end", 1, "last");
  for (let at = Math.ceil(first / step) * step; at < until; at += step) {
    const share = (at - first) / (until - first);
    if (share * map.clientWidth > 24 && (1 - share) * map.clientWidth > 64) put(clock(at), share, "");
  }
  document.getElementById("pace-times").replaceChildren(...labels);
}

function describeCell() {
  const column = columns[Math.min(cursor.column, columns.length - 1)];
  const name = pace.bands[cursor.band];
  const cell = cellOf(column, cursor.band);
  if (cell === undefined) {
    const what = column.state === "none" ? "no step ended" : "unknown";
    probe.textContent = `${name}, ${clock(column.at)}: ${what}`;
    return;
  }
  const row = column.rows.find((one) => pace.cells[one][cursor.band] === cell);
  const more = cell === 255 ? " or more" : "";
  const step = pace.step[row].toLocaleString("en");
  probe.textContent = `${name}, step ${step} (${clock(pace.at[row])}): ${(cell / 100).toFixed(2)}${more} times its peers`;
}

map.addEventListener("pointermove", (event) => {
  const box = map.getBoundingClientRect();
  const within = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
  cursor = {
    column: within((event.clientX - box.left) / box.width, columns.length),
    band: within((event.clientY - box.top) / box.height, pace.bands.length),
  };
  describeCell();
});

map.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!step || !columns.length) return;
  event.preventDefault();
  // Start at the newest column in which a step ended.
  cursor ??= { column: Math.max(0, columns.findLastIndex((column) => column.rows.length)), band: 0 };
  cursor.column = Math.max(0, Math.min(columns.length - 1, cursor.column + step[0] * (event.shiftKey ? 10 : 1)));
  cursor.band = Math.max(0, Math.min(pace.bands.length - 1, cursor.band + step[1] * (event.shiftKey ? 10 : 1)));
  describeCell();
});

map.addEventListener("pointerleave", () => {
  cursor = null;
  probe.textContent = "";
});
