// Charts by Vega-Lite: one call draws a chart or, where only its data changed, moves the one that is there.

const SHAPES = [
  "circle",
  "square",
  "triangle-up",
  "diamond",
  "cross",
  "triangle-down",
  "triangle-right",
  "triangle-left",
];
const DASHES = [
  [1, 0],
  [6, 3],
  [2, 2],
  [8, 3, 2, 3],
  [10, 4],
  [4, 1],
  [1, 3],
  [6, 2, 1, 2, 1, 2],
];
const HUES = {
  light: ["#0072b2", "#d55e00", "#008060", "#a0407f", "#6b5900", "#3b7ea1", "#8c3b00", "#444444"],
  dark: ["#56b4e9", "#f0913f", "#3dc79a", "#e08ac0", "#e5d04a", "#9ecae1", "#ffb38a", "#cccccc"],
};
const SVG_MARKS = 1500; // more are drawn on a canvas

const drawn = new WeakMap();
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const theme = () => document.documentElement.dataset.theme;

function style() {
  const [ink, soft, line] = ["--ink", "--soft", "--line"].map(variable);
  return {
    background: null,
    font: "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
    view: { stroke: null },
    axis: {
      labelColor: soft,
      titleColor: soft,
      tickColor: line,
      domainColor: line,
      gridColor: line,
      gridOpacity: 0.6,
      labelFontSize: 11,
      titleFontSize: 12,
      titleFontWeight: "normal",
      labelLimit: 140,
      titleLimit: 400,
    },
    legend: { labelColor: soft, titleColor: soft, titleFontWeight: "normal", titleFontSize: 12 },
    text: { color: ink },
    title: { color: ink },
  };
}

// `data` is {name: rows}; the layers of `spec` refer to it by name. Returns the view once it is drawn.
async function chart(container, description, spec, data) {
  const marks = Object.values(data).reduce((sum, rows) => sum + rows.length, 0);
  const renderer = marks > SVG_MARKS ? "canvas" : "svg";
  const key = JSON.stringify([spec, renderer, theme()]);
  const turn = (drawn.get(container)?.turn ?? 0) + 1;
  const before = drawn.get(container);
  if (before?.key === key && before.view) {
    for (const [name, rows] of Object.entries(data)) before.view.data(name, rows);
    before.view.description(description);
    await before.view.runAsync();
    performance.mark("chart");
    return before.view;
  }
  drawn.set(container, { turn });
  const room = element("div");
  const whole = {
    width: "container",
    autosize: { type: "fit-x", contains: "padding" },
    ...spec,
    description,
    datasets: data,
  };
  container.replaceChildren(room);
  const { view } = await vegaEmbed(room, whole, {
    mode: "vega-lite",
    actions: false,
    ast: true,
    renderer,
    config: style(),
  });
  if (drawn.get(container)?.turn === turn) drawn.set(container, { turn, key, view });
  performance.mark("chart");
  return view;
}
