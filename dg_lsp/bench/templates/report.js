(() => {
  "use strict";
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // the data of a replay is on the page; the controls choose the moment
  const LINES = { before: 12, after: 5 };
  const span = (kind, text) => { const one = document.createElement("span"); one.className = kind; one.textContent = text; return one; };
  for (const timeline of all(".timeline")) {
    const { head, text, tail, moments, signs } = JSON.parse(timeline.querySelector("script").textContent);
    if (!moments.length) continue;
    const [code, marks, controls, slider, play, select, output] =
      [".screen code", ".marks", ".controls", "input", "[data-do=play]", "select", "output"].map((one) => timeline.querySelector(one));
    const requests = moments.flatMap(([, , , , verdict], i) => (verdict ? [i] : []));
    const end = moments[moments.length - 1][0];
    let timer = 0, current = 0;

    const show = (number) => {
      current = Math.max(0, Math.min(moments.length - 1, number));
      const [ms, typed, ghost, event, verdict] = moments[current];
      const before = (head + text.slice(0, typed)).split("\n").slice(-LINES.before).join("\n");
      const after = tail.split("\n").slice(0, LINES.after).join("\n");
      code.replaceChildren(before, span("caret", ""), span("ghost", ghost), after);
      output.textContent = `${(ms / 1000).toFixed(1)} of ${(end / 1000).toFixed(1)} s · ${event}${verdict ? ` Verdict: ${verdict}.` : ""}`;
      slider.value = String(current);
      slider.setAttribute("aria-valuetext", output.textContent);
      for (const mark of marks.querySelectorAll(".now")) mark.setAttribute("x", String((1000 * current) / moments.length));
    };
    const stop = () => { clearTimeout(timer); timer = 0; play.textContent = "Play"; };
    const later = () => {
      if (current === moments.length - 1) { stop(); return; }
      const pause = (moments[current + 1][0] - moments[current][0]) / Number(select.value);
      timer = setTimeout(() => { show(current + 1); later(); }, Math.min(1500, Math.max(0, pause)));
    };
    const start = () => {
      if (current === moments.length - 1) show(0);
      play.textContent = "Pause";
      later();
    };
    const go = (chosen) => { stop(); if (chosen !== undefined) show(chosen); };
    const following = (list) => list.find((i) => i > current) ?? list[0];

    const mark = (kind, x, width, y, height) => {
      const one = document.createElementNS(marks.namespaceURI, "rect");
      Object.entries({ class: kind, x, width, y, height }).forEach(([name, value]) => one.setAttribute(name, String(value)));
      marks.append(one);
    };
    mark("axis", 0, 1000, 14.5, 1);
    const places = { hit: [0, 15], quiet: [8, 7], partly: [15, 7], miss: [15, 15], missed: [15, 5], cancelled: [13, 4] };
    const width = Math.max(1.5, 700 / moments.length);
    for (const i of requests) {
      const sign = signs[moments[i][4]];
      mark(sign, (1000 * i) / moments.length, width, ...places[sign]);
    }
    mark("now", 0, 1, 0, 30);

    play.addEventListener("click", () => (timer ? stop() : start()));
    slider.addEventListener("input", () => go(Number(slider.value)));
    timeline.querySelector("[data-do=next]").addEventListener("click", () => go(following(requests)));
    timeline.querySelector("[data-do=back]").addEventListener("click", () => go(requests.findLast((i) => i < current) ?? requests.at(-1)));
    marks.addEventListener("click", (event) => {
      const { left, width: wide } = marks.getBoundingClientRect();
      go(Math.floor(((event.clientX - left) / wide) * moments.length));
    });
    for (const button of all(".verdicts button", timeline)) {
      const list = requests.filter((i) => moments[i][4] === button.dataset.verdict);
      button.addEventListener("click", () => go(following(list)));
      button.hidden = false;
    }
    for (const one of [marks, controls]) one.removeAttribute("hidden");
    show(requests.find((i) => signs[moments[i][4]] === "hit") ?? 0);
  }

  // closed details cannot be opened on paper
  addEventListener("beforeprint", () => all("details").forEach((one) => { one.open = true; }));
})();
