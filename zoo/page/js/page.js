// The frame: configs, views and colors, the current state, and the address that stores it.

const VIEWS = [
  ["accuracies", "Accuracies", accuraciesView],
  ["curves", "Learning curves", curvesView],
  ["predictors", "Predictors", predictorsView],
  ["checkpoint", "Checkpoint", checkpointView],
];

const page = {
  view: document.getElementById("view"),
  tab: "accuracies",
  configIndex: 0,
  config: null,
  states: new Map(),

  get now() {
    if (!this.states.has(this.configIndex)) {
      const compare = this.config.hyperparameters.find(({ values }) => values.length > 1)?.name ?? "checkpoint";
      this.states.set(this.configIndex, {
        filters: newFilters(),
        compare,
        log: false,
        sort: { key: this.config.ranked.label, down: this.config.ranked.more },
        offset: 0,
        chosen: [],
        touched: false,
        run: null,
        label: null,
        query: EVERY_TOKEN,
        source: null,
      });
    }
    return this.states.get(this.configIndex);
  },

  async show(focus) {
    this.config = await loadConfig(this.configIndex);
    document.getElementById("note").textContent = this.config.note
      ? `The transformers of ${this.config.name} were trained on ${this.config.note}.`
      : "";
    this.view.replaceChildren();
    document.getElementById("tab-accuracies").textContent = this.config.ranked.more ? "Accuracies" : "Losses";
    this.view.setAttribute("aria-labelledby", `tab-${this.tab}`);
    for (const [name] of VIEWS) {
      const tab = document.getElementById(`tab-${name}`);
      tab.setAttribute("aria-selected", String(name === this.tab));
      tab.tabIndex = name === this.tab ? 0 : -1;
    }
    document.querySelectorAll('[name="config"]').forEach((input, index) => {
      input.checked = index === this.configIndex;
    });
    this.view.setAttribute("aria-busy", "true");
    this.remember();
    const drawing = VIEWS.find(([name]) => name === this.tab)[2](this);
    if (focus) document.querySelector(focus)?.focus();
    await drawing;
    this.view.setAttribute("aria-busy", "false");
  },

  open(run, label, focus = "#run") {
    this.now.run = run;
    this.now.label = label;
    this.tab = "checkpoint";
    this.show(focus).then(() => {
      if (focus === "#run") scrollTo(0, 0);
    });
  },

  choose(run, wanted) {
    const others = this.now.chosen.filter((other) => other !== run);
    this.now.chosen = wanted ? [...others, run].slice(-MOST_CHOSEN) : others;
    this.now.touched = true;
  },

  remember() {
    const parts = [head.configs[this.configIndex], this.tab];
    if (this.tab === "checkpoint" && this.now.run !== null)
      parts.push(this.config.runs.id[this.now.run], this.now.label ?? "");
    const address = `#${parts.map(encodeURIComponent).join("/")}`;
    if (location.hash !== address) history.replaceState(null, "", address);
  },

  // The state in the address; an unknown name becomes the first one there is.
  async recall() {
    const [config, tab, run, label] = location.hash
      .slice(1)
      .split("/")
      .map((part) => {
        try {
          return decodeURIComponent(part);
        } catch {
          return "";
        }
      });
    this.configIndex = Math.max(0, head.configs.indexOf(config));
    this.tab = VIEWS.find(([name]) => name === tab)?.[0] ?? VIEWS[0][0];
    this.config = await loadConfig(this.configIndex);
    const number = run ? this.config.runs.id.indexOf(run) : -1;
    if (number >= 0) Object.assign(this.now, { run: number, label: label || null });
    return this.show();
  },
};

function makeTabs() {
  const list = document.getElementById("tabs");
  const go = (name) => {
    page.tab = name;
    page.show(`#tab-${name}`);
  };
  for (const [name, title] of VIEWS) {
    list.append(
      element(
        "button",
        { role: "tab", type: "button", id: `tab-${name}`, "aria-controls": "view", onclick: () => go(name) },
        title,
      ),
    );
  }
  list.addEventListener("keydown", (event) => {
    const at = VIEWS.findIndex(([name]) => name === page.tab);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: VIEWS.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(VIEWS[(to + VIEWS.length) % VIEWS.length][0]);
  });
}

function makeConfigs() {
  head.configs.forEach((name, index) => {
    document.getElementById("configs").append(
      chip("radio", "config", name, index === 0, () => {
        page.configIndex = index;
        page.show();
      }),
    );
  });
}

function remembered() {
  try {
    return localStorage.getItem("colors") ?? "auto";
  } catch {
    return "auto";
  }
}

function makeTheme() {
  const select = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const wanted = select.value === "auto" ? (system.matches ? "dark" : "light") : select.value;
    if (theme() === wanted) return;
    document.documentElement.dataset.theme = wanted;
    if (page.config) page.show();
  };
  select.value = remembered();
  select.addEventListener("change", () => {
    try {
      localStorage.setItem("colors", select.value);
    } catch {
      /* the page works without */
    }
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

function fail(error) {
  const message = document.getElementById("failure");
  message.textContent = `This page could not be drawn: ${error?.message ?? error}`;
  message.hidden = false;
}

window.addEventListener("unhandledrejection", (event) => fail(event.reason));
window.addEventListener("hashchange", () => page.recall());
document.getElementById("name").textContent = head.name;
document.getElementById("summary").textContent = head.summary;
makeTheme();
makeTabs();
makeConfigs();
document.getElementById("page").hidden = false;
page.recall();
