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

function makeTip() {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);
  return tip;
}

// Of these the tab key reaches one, and the arrow keys go to the others.
function showTips(bars, tip) {
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
  bars.forEach((link, number) => {
    // It would show a second time.
    const title = link.querySelector("title");
    title.remove();
    link.dataset.tip ??= title.textContent;
    if (!link.hasAttribute("aria-label")) link.setAttribute("aria-label", link.dataset.tip.replaceAll("\n", ", "));
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

function addTools(heading, named) {
  const tools = document.createElement("span");
  tools.className = "tools";
  const buttons = named.map(([text, act]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", act);
    return button;
  });
  tools.append(...buttons);
  heading.before(tools);
  return buttons;
}

function openAll() {
  const heading = document.getElementById("model-title");
  if (!heading) return;
  const set = (open) => { for (const each of all("#model details")) each.open = open; };
  addTools(heading, [["Open all", () => set(true)], ["Close all", () => set(false)]]);
}

function zoom() {
  const heading = document.getElementById("queues-title");
  if (!heading) return;
  const drawn = document.getElementById("lanes"), frame = drawn.parentElement;
  const buttons = addTools(heading, [
    ["Zoom in", () => show(2 * times)], ["Zoom out", () => show(times / 2)], ["Whole step", () => show(1)],
  ]);
  let times = 1;
  const show = (wanted) => {
    // What is in the middle stays there.
    const middle = (frame.scrollLeft + frame.clientWidth / 2) / times;
    times = Math.min(Math.max(wanted, 1), 64);
    drawn.style.width = `${100 * times}%`;
    drawn.dataset.zoom = `${times >= 4 ? "fine" : ""} ${times >= 16 ? "finest" : ""}`;
    frame.scrollLeft = middle * times - frame.clientWidth / 2;
    buttons.forEach((button, number) => { button.disabled = number ? times === 1 : times === 64; });
  };
  show(1);
}

const tip = makeTip();
showTips(all("#timeline a[data-tip]"), tip);
for (const lane of all("#lanes .lane")) showTips(all(".entry", lane), tip);
zoom();
pointOut();
openAll();
followLinks();
page.dataset.drawn = String(all("[data-block]").length);
