(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  // colours: what the system says, unless the reader chooses; kept where the browser lets a local page keep anything
  const store = {
    get() { try { return localStorage.getItem("dg-lsp-theme") || ""; } catch { return ""; } },
    set(value) { try { localStorage.setItem("dg-lsp-theme", value); } catch { /* not allowed here */ } },
  };
  const paint = (theme) => { if (theme) root.dataset.theme = theme; else delete root.dataset.theme; };
  const chooser = document.querySelector(".theme");
  chooser.hidden = false;
  paint(store.get());
  for (const radio of all("input", chooser)) {
    radio.checked = radio.value === (root.dataset.theme || "");
    radio.addEventListener("change", () => { paint(radio.value); store.set(radio.value); });
  }

  // films: one step at a time; all steps are in the page already
  const SECONDS_PER_STEP = 0.7;
  const film = (panel) => {
    const last = Number(panel.dataset.steps);
    const controls = panel.querySelector(".controls");
    const slider = panel.querySelector("input[type=range]");
    const said = panel.querySelector("output");
    const play = panel.querySelector("[data-do=play]");
    let step = last, timer = 0;
    const show = (wanted) => {
      step = clamp(wanted, 1, last);
      slider.value = String(step);
      for (const code of all(".code", panel)) code.hidden = Number(code.dataset.step) !== step;
      for (const row of all("tr[data-step]", panel)) {
        row.classList.toggle("now", Number(row.dataset.step) === step);
        row.classList.toggle("later", Number(row.dataset.step) > step);
      }
      said.textContent = panel.querySelector(`.code[data-step="${step}"]`).dataset.said;
      slider.setAttribute("aria-valuetext", said.textContent);
    };
    const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play"; };
    const start = () => {
      if (step === last) show(1);
      play.textContent = "Pause";
      timer = setInterval(() => { show(step + 1); if (step === last) stop(); }, 1000 * SECONDS_PER_STEP);
    };
    const moves = {
      first: () => 1, back: () => step - 1, next: () => step + 1, last: () => last,
    };
    const go = (name) => { stop(); show(moves[name]()); };
    const toggle = () => (timer ? stop() : start());
    controls.addEventListener("click", (event) => {
      const name = event.target.dataset.do;
      if (name === "play") toggle(); else if (name) go(name);
    });
    slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
    panel.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-step]");
      if (row) { stop(); show(Number(row.dataset.step)); }
    });
    const keys = { ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last" };
    controls.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === " " && event.target === slider) { event.preventDefault(); toggle(); }
      // the slider moves itself
      if (event.target === slider || !keys[event.key]) return;
      event.preventDefault();
      go(keys[event.key]);
    });
    controls.hidden = false;
    show(last);
    return { stop };
  };

  // tabs as in the ARIA practices: one tab stop, arrow keys choose
  for (const group of all("[data-tabs]")) {
    const tabs = all("[role=tab]", group);
    const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
    const films = panels.map(film);
    const choose = (chosen) => tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === chosen));
      tab.tabIndex = i === chosen ? 0 : -1;
      panels[i].hidden = i !== chosen;
      if (i !== chosen) films[i].stop();
    });
    tabs.forEach((tab, i) => {
      panels[i].setAttribute("role", "tabpanel");
      panels[i].setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", () => choose(i));
      tab.addEventListener("keydown", (event) => {
        const next = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[event.key];
        if (next === undefined) return;
        event.preventDefault();
        const chosen = (next + tabs.length) % tabs.length;
        choose(chosen);
        tabs[chosen].focus();
      });
    });
    if (tabs.length > 1) group.querySelector("[role=tablist]").hidden = false;
    choose(0);
  }

  // on paper nothing can be opened
  addEventListener("beforeprint", () => all("details").forEach((one) => { one.open = true; }));
})();
