(() => {
  "use strict";
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // every step of a film is on the page; the controls choose the visible one
  for (const film of all(".film")) {
    const codes = all(".code", film);
    const [controls, play, slider, output] = [".controls", "button", "input", "output"].map((one) => film.querySelector(one));
    let timer = 0;
    const show = (step) => {
      codes.forEach((code, i) => { code.hidden = i + 1 !== step; });
      output.textContent = codes[step - 1].dataset.caption;
      slider.value = String(step);
      slider.setAttribute("aria-valuetext", output.textContent);
    };
    const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play"; };
    const next = () => { show(Number(slider.value) + 1); if (Number(slider.value) === codes.length) stop(); };
    const start = () => {
      if (Number(slider.value) === codes.length) show(1);
      play.textContent = "Pause";
      timer = setInterval(next, 700);
    };
    play.addEventListener("click", () => (timer ? stop() : start()));
    slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
    film.addEventListener("toggle", () => { if (!film.open) stop(); });
    controls.hidden = false;
    show(codes.length);
  }

  // closed details cannot be opened on paper; details of one name would close each other
  addEventListener("beforeprint", () => all("details").forEach((one) => { one.removeAttribute("name"); one.open = true; }));
})();
