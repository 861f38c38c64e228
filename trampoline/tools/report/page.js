"use strict";
// Flame graphs: labels where there is room for them, and a bar that is chosen takes the whole width.
for (const figure of document.querySelectorAll("figure.zoom")) {
  const flame = figure.querySelector(".flame");
  const caption = figure.querySelector("figcaption");
  const said = caption.textContent;
  const bars = [...flame.querySelectorAll(".bar")].map((element) => {
    const [first, total, depth] = element.dataset.at.split(",").map(Number);
    return { element, first, total, depth };
  });
  const widest = Number(flame.dataset.widest);
  let chosen = null;

  const draw = () => {
    const from = chosen ? chosen.first : 0;
    const width = chosen ? chosen.total : widest;
    const pixels = flame.getBoundingClientRect().width;
    for (const bar of bars) {
      const inside = bar.first >= from && bar.first + bar.total <= from + width;
      const around = chosen && bar.depth < chosen.depth && bar.first <= from && bar.first + bar.total >= from + width;
      const shown = inside && !(chosen && bar.depth < chosen.depth && !around);
      const share = around ? 1 : bar.total / width;
      const { element } = bar;
      element.classList.toggle("gone", !(shown || around));
      element.classList.toggle("faded", Boolean(around));
      element.classList.toggle("chosen", bar === chosen);
      element.classList.toggle("small", share * pixels < 34);
      element.setAttribute("x", `${around ? 0 : ((bar.first - from) / width) * 100}%`);
      element.setAttribute("width", `${share * 100}%`);
    }
  };

  flame.addEventListener("click", (event) => {
    const element = event.target.closest(".bar");
    const found = bars.find((bar) => bar.element === element) || null;
    chosen = found === chosen || (found && found.depth === 0) ? null : found;
    caption.textContent = found ? found.element.querySelector("title").textContent : said;
    draw();
  });
  addEventListener("resize", draw);
  draw();
}
