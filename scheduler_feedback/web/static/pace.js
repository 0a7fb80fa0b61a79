// A job's drawings: own step time by rank as lines, and all ranks as a map, from the "pace" events of its page's stream.

const MOST_ROWS = 600; // as many as the server keeps; a page that stays open keeps no more

const pace = { at: [], step: [], lines: [], bands: [], cells: [], attempt: 0, ranks: 0 };
let chart = null;
let cursor = null; // the map's cell that is told of: { row, band }

document.addEventListener("pace", (event) => take(event.detail));
document.addEventListener("theme", () => redraw(true));

function take(news) {
  const width = news.bands.length;
  if (news.whole) {
    Object.assign(pace, { at: [], step: [], cells: [], bands: news.bands, attempt: news.attempt, ranks: news.ranks });
    pace.lines = news.lines.map(({ name }) => ({ name, values: [] }));
    cursor = null;
    chart?.destroy();
    chart = null;
  }
  const cells = Uint8Array.from(atob(news.cells), (character) => character.charCodeAt(0));
  news.at.forEach((at, row) => {
    pace.at.push(at);
    pace.step.push(news.step[row]);
    pace.cells.push(cells.subarray(row * width, (row + 1) * width));
  });
  news.lines.forEach(({ values }, line) => pace.lines[line].values.push(...values));
  const over = pace.at.length - MOST_ROWS;
  if (over > 0) {
    for (const list of [pace.at, pace.step, pace.cells, ...pace.lines.map((line) => line.values)]) list.splice(0, over);
    if (cursor) cursor.row = Math.max(0, cursor.row - over);
  }
  document.getElementById("pace").hidden = pace.at.length === 0;
  document.getElementById("pace-empty").hidden = pace.at.length > 0;
  redraw(false);
}

function redraw(anew) {
  if (!pace.at.length) return;
  if (anew && chart) {
    chart.destroy();
    chart = null;
  }
  drawLines();
  drawMap();
  if (cursor) tellCell();
}

// --- lines --------------------------------------------------------------------------------------------------------------

// A canvas knows no light-dark(): the sheet's colours are asked of an element that has them.
const probe = document.getElementById("pace-told");

function colour(name) {
  probe.style.color = `var(${name})`;
  const resolved = getComputedStyle(probe).color;
  probe.style.color = "";
  return resolved;
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

function shown(seconds) {
  if (seconds == null) return "–";
  return seconds < 1 ? `${Number((seconds * 1000).toPrecision(3))} ms` : `${seconds.toFixed(2)} s`;
}

function colourOf(line) {
  return colour(`--line-${line % 8}`);
}

function drawLines() {
  const place = document.getElementById("pace-chart");
  const data = [pace.at, ...pace.lines.map((line) => line.values)];
  if (chart) {
    chart.setData(data);
    return;
  }
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--hair"), width: 1 }, ticks: { show: false } };
  chart = new uPlot(
    {
      width: Math.max(place.clientWidth, 240),
      height: 240,
      padding: [8, 8, 0, 0],
      scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, low * 1.2, 1e-3)] } },
      axes: [
        { ...axis, size: 28, space: 90, values: (_, ticks) => ticks.map(clock) },
        { ...axis, size: 64, values: (_, ticks) => ticks.map(shown) },
      ],
      legend: { show: false },
      cursor: { y: false },
      series: [
        {},
        ...pace.lines.map((line, number) => ({
          label: line.name,
          stroke: colourOf(number),
          width: 1.5,
          dash: number >= 8 ? [4, 3] : undefined,
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [tellLines] },
    },
    data,
    place,
  );
  drawLegend();
}

function drawLegend() {
  const items = pace.lines.map((line, number) => {
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

function tellLines(plot) {
  const at = plot.cursor.idx ?? pace.at.length - 1;
  document.querySelectorAll("#pace-legend small").forEach((value, number) => {
    value.textContent = shown(pace.lines[number]?.values[at]);
  });
}

new ResizeObserver(([entry]) => {
  if (chart && entry.contentRect.width > 0) chart.setSize({ width: Math.max(entry.contentRect.width, 240), height: 240 });
}).observe(document.getElementById("pace-chart"));

// --- the map ------------------------------------------------------------------------------------------------------------

const STOPS = [1.0, 1.1, 1.3, 2.0]; // of the peers' time; page.css has a colour for each: --heat-0 to --heat-3
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

function drawMap() {
  const bands = pace.bands.length;
  const rows = pace.cells.length;
  map.width = rows;
  map.height = bands;
  map.style.height = `${Math.max(48, Math.min(480, bands * 22))}px`;
  const context = map.getContext("2d");
  const image = context.createImageData(rows, bands);
  const colours = palette();
  pace.cells.forEach((cells, row) => {
    for (let band = 0; band < bands; band++) {
      image.data.set(colours.subarray(4 * cells[band], 4 * cells[band] + 4), 4 * (band * rows + row));
    }
  });
  context.putImageData(image, 0, 0);
}

function tellCell() {
  const { row, band } = cursor;
  const cell = pace.cells[row]?.[band];
  if (cell === undefined) return;
  const when = clock(pace.at[row]);
  const more = cell === 255 ? " or more" : "";
  const told = `${pace.bands[band]}, step ${pace.step[row].toLocaleString("en")} (${when}): ${(cell / 100).toFixed(2)}${more} times its peers`;
  document.getElementById("pace-told").textContent = told;
}

map.addEventListener("pointermove", (event) => {
  const box = map.getBoundingClientRect();
  const within = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
  cursor = {
    row: within((event.clientX - box.left) / box.width, pace.cells.length),
    band: within((event.clientY - box.top) / box.height, pace.bands.length),
  };
  tellCell();
});

map.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!step || !pace.cells.length) return;
  event.preventDefault();
  cursor ??= { row: pace.cells.length - 1, band: 0 };
  cursor.row = Math.max(0, Math.min(pace.cells.length - 1, cursor.row + step[0] * (event.shiftKey ? 10 : 1)));
  cursor.band = Math.max(0, Math.min(pace.bands.length - 1, cursor.band + step[1] * (event.shiftKey ? 10 : 1)));
  tellCell();
});

map.addEventListener("pointerleave", () => {
  cursor = null;
  document.getElementById("pace-told").textContent = "";
});
