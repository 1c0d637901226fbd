// The first view: the accuracies or losses of the checkpoints, the effect of each hyperparameter, and a table.

function accuraciesView(page) {
  const { config, now } = page;
  const { label, more, span } = config.ranked;
  const [name, title] = [rankedBy(config), spaced(label)];
  const count = element("p", { class: "count", id: "count", role: "status", "aria-live": "polite" });
  const [histogram, marginal] = [
    element("div", { class: "chart", id: "histogram" }),
    element("div", { class: "chart", id: "marginal" }),
  ];
  const table = element("div", { class: "scroll" });
  const names = [
    ["checkpoint", "checkpoint"],
    ...config.hyperparameters.filter(({ values }) => values.length > 1).map(({ name }) => [name, spaced(name)]),
  ];
  const log = element("input", {
    type: "checkbox",
    id: "log",
    onchange: () => {
      now.log = log.checked;
      page.refresh();
    },
  });
  log.checked = now.log;

  page.refresh = () => {
    const { rows, runs } = passing(config, now.filters);
    now.offset = Math.min(now.offset, Math.max(0, Math.ceil(rows.length / PAGE_ROWS) - 1) * PAGE_ROWS);
    const values = rows.map((row) => config.rows[label][row]);
    const sorted = Float64Array.from(values).sort();
    const middle = sorted.length
      ? `; median ${name} ${fixed(quantile(sorted, 0.5))}, best ${fixed(sorted[more ? sorted.length - 1 : 0])}`
      : "";
    count.replaceChildren(
      element("strong", {}, plural(rows.length, "checkpoint")),
      ` of ${plural(runs, "run")}`,
      element(
        "span",
        { class: "soft" },
        ` (all: ${grouped(config.rows.run.length)} of ${grouped(config.runs.id.length)})${middle}`,
      ),
    );
    table.replaceChildren(checkpointTable(page, rows), pager(page, rows.length));
    const what = `Histogram of the ${title} of ${plural(rows.length, "checkpoint")}${middle}`;
    const groups = groupsOf(config, now.compare, rows);
    const compared = spaced(now.compare);
    return Promise.all([
      chart(histogram, what, histogramSpec(now.log, title, span), { bins: histogramOf(values, span) }),
      chart(
        marginal,
        `${capital(title)} by ${compared}: median, middle half and middle nine tenths`,
        marginalSpec(compared, groups, title, span),
        { groups },
      ),
    ]);
  };
  const changed = () => {
    now.offset = 0;
    page.refresh();
  };
  const reset = () => {
    now.filters = newFilters();
    now.offset = 0;
    page.show();
    document.getElementById("reset")?.focus();
  };
  page.view.append(
    element(
      "div",
      { class: "sides" },
      filterPanel(config, now.filters, changed, reset),
      element(
        "div",
        {},
        count,
        element(
          "div",
          { class: "two" },
          element(
            "section",
            {},
            element(
              "div",
              { class: "heading" },
              element("h2", {}, more ? "Accuracies" : "Losses"),
              element("label", {}, log, " logarithmic counts"),
            ),
            histogram,
          ),
          element(
            "section",
            {},
            element(
              "div",
              { class: "heading" },
              element("h2", {}, "By hyperparameter"),
              choice(
                "compare",
                names,
                now.compare,
                (value) => {
                  now.compare = value;
                  page.refresh();
                },
                { id: "compare" },
              ),
            ),
            marginal,
            element("p", { class: "soft" }, "Circle: median. Bar: middle half. Line: middle nine tenths."),
          ),
        ),
        element("section", {}, element("h2", {}, "Checkpoints"), table),
      ),
    ),
  );
  return page.refresh();
}
