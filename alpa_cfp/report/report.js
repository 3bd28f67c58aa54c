"use strict";
// Points out, opens and shows; everything that it needs is in the page. When it is done, the root has `data-drawn` with
// the number of blocks; if anything fails, `data-error` with the message.
const page = document.documentElement;
addEventListener("error", (event) => { page.dataset.error = event.message; });

const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.tagName === "DETAILS") {
    target.open = true;
    target.querySelector("summary").focus({ preventScroll: true });
  }
  target.scrollIntoView({ block: "start" });
}

function followLinks() {
  addEventListener("hashchange", openTarget);
  // A link to where the page is already changes no hash.
  for (const link of all('a[href^="#"]'))
    link.addEventListener("click", () => { if (link.getAttribute("href") === location.hash) openTarget(); });
  openTarget();
}

function showTips(chart) {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);
  const hide = () => { tip.hidden = true; };
  const show = (link) => {
    tip.textContent = link.dataset.tip;
    tip.hidden = false;
    const bar = link.querySelector(".shape").getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, bar.left + bar.width / 2 - box.width / 2), innerWidth - box.width - 8);
    const above = bar.top - box.height - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : bar.bottom + 8}px`;
  };
  const bars = all("a[data-tip]", chart);
  bars.forEach((link, number) => {
    // It would show a second time.
    link.querySelector("title").remove();
    link.tabIndex = number === 0 ? 0 : -1;
    link.addEventListener("pointerenter", () => show(link));
    link.addEventListener("pointerleave", hide);
    link.addEventListener("focus", () => show(link));
    link.addEventListener("blur", hide);
    link.addEventListener("keydown", (event) => {
      const to = { ArrowRight: number + 1, ArrowLeft: number - 1, Home: 0, End: bars.length - 1 }[event.key];
      if (event.key === "Escape") hide();
      if (to === undefined || !bars[to]) return;
      event.preventDefault();
      link.tabIndex = -1;
      bars[to].tabIndex = 0;
      bars[to].focus();
    });
  });
}

function pointOut() {
  const buttons = all(".legend button");
  for (const button of buttons) {
    button.disabled = false;
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      for (const other of buttons) other.setAttribute("aria-pressed", String(on && other === button));
      for (const drawn of all("#timeline a, .block, .chip"))
        drawn.classList.toggle("dim", on && drawn.dataset.strategy !== button.dataset.strategy);
    });
  }
}

function openAll() {
  const heading = document.getElementById("model-title");
  if (!heading) return;
  const tools = document.createElement("span");
  tools.className = "tools";
  for (const [text, open] of [["Open all", true], ["Close all", false]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => { for (const each of all("#model details")) each.open = open; });
    tools.append(button);
  }
  heading.before(tools);
}

const chart = document.getElementById("timeline");
if (chart) showTips(chart);
pointOut();
openAll();
followLinks();
page.dataset.drawn = String(all("[data-block]").length);
