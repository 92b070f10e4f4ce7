"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const phone = () => window.innerWidth < 560;

  // Figures name colours as var(--x); plotly needs the value the theme gives them.
  const resolved = (value) => {
    const style = getComputedStyle(root);
    const walk = (v) => {
      if (typeof v === "string") return v.replace(/^var\((--[\w-]+)\)$/, (_, name) => style.getPropertyValue(name).trim());
      if (Array.isArray(v)) return v.map(walk);
      if (v && typeof v === "object") return Object.fromEntries(Object.entries(v).map(([k, x]) => [k, walk(x)]));
      return v;
    };
    return walk(value);
  };
  const axis = (own) => ({ gridcolor: "var(--line)", linecolor: "var(--line)", zeroline: false, automargin: true,
    tickfont: { size: 11, color: "var(--ink-2)" }, fixedrange: phone(), ...own,
    title: { standoff: 8, font: { size: 11, color: "var(--ink-2)" }, ...(own && own.title) } });

  const layoutOf = (spec) => {
    const { xaxis, yaxis, yaxis2, margin, ...own } = spec.layout;
    const noLegend = own.showlegend === false || spec.data.every((trace) => trace.showlegend === false);
    const layout = { height: spec.height, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "x unified",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: "var(--ink)" },
      hoverlabel: { bgcolor: "var(--card)", bordercolor: "var(--line)", font: { size: 12, color: "var(--ink)" } },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11, color: "var(--ink-2)" }, bgcolor: "rgba(0,0,0,0)", traceorder: "reversed" },
      margin: { l: 52, r: 12, t: noLegend ? 10 : 34, b: 26, ...margin }, dragmode: phone() ? false : "zoom", ...own,
      xaxis: axis({ showgrid: false, nticks: phone() ? 5 : undefined, ...xaxis }), yaxis: axis(yaxis) };
    if (yaxis2) layout.yaxis2 = axis(yaxis2);
    return layout;
  };
  const scales = {};  // what a reader chose survives a change of theme
  const draw = (key) => {
    const spec = specs[key];
    const layout = layoutOf(spec);
    if (scales[key]) layout.yaxis.type = scales[key];
    const data = phone() ? spec.data.map((t) => (t.type === "heatmap" ? { ...t, textfont: { size: 8 }, xgap: 1, ygap: 1 } : t)) : spec.data;
    return Plotly.react(key, resolved(data), resolved(layout), { displayModeBar: false, responsive: true });
  };
  const drawAll = () => Promise.all(Object.keys(specs).map(draw)).then(() => { root.dataset.drawn = String(Object.keys(specs).length); });

  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const named = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; named(); drawAll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { named(); drawAll(); });

  for (const group of document.querySelectorAll(".scales")) {
    group.addEventListener("click", (event) => {
      const chosen = event.target.dataset.scale;
      if (!chosen) return;
      scales[group.dataset.for] = chosen;
      for (const b of group.children) b.setAttribute("aria-pressed", String(b.dataset.scale === chosen));
      draw(group.dataset.for);
    });
  }
  named();
  drawAll();
})();
