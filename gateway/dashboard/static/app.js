// The frame: which page is shown, and the key.

import { failure, hasKey, useKey } from "./api.js";
import { announce, h, loading, replace } from "./dom.js";

const PAGES = [
  ["overview", "Overview", () => import("./overview.js")],
  ["decisions", "Decisions", () => import("./decisions.js")],
  ["policy", "Policy", () => import("./policy.js")],
  ["evidence", "Evidence", () => import("./evidence.js")],
  ["playground", "Playground", () => import("./playground.js")],
];
const main = document.getElementById("main");
const dialog = document.getElementById("key-dialog");
const keyButton = document.getElementById("key-button");
const keyInput = document.getElementById("key-input");
let leave = () => {};
let turn = 0;

/** A part of the address; what is not well escaped stays as it was written. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** "#/decisions/dec_1?mode=standard" → its page, the rest of its path, and its parameters. */
function address() {
  const [path, parameters = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decoded);
  return { name: name || "overview", rest, parameters: new URLSearchParams(parameters) };
}

function showNav(current) {
  const links = PAGES.map(([name, title]) =>
    h("li", {}, h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, title)),
  );
  replace(document.getElementById("nav"), links);
}

async function show({ moveFocus = true } = {}) {
  const mine = ++turn;
  leave();
  leave = () => {};
  const { name, rest, parameters } = address();
  const [known, title, load] = PAGES.find(([page]) => page === name) || PAGES[0];
  showNav(known);
  document.title = `${title} · Draftgate`;
  const root = h("div", { class: `page page-${known}` }, h("h1", {}, title), loading());
  replace(main, root);
  try {
    const page = await load();
    if (mine !== turn) return;
    // A page gives back what ends its timers and streams.
    leave = page.show(root, { rest, parameters, title }) || (() => {});
  } catch (error) {
    if (mine !== turn) return;
    // A browser may keep a script that failed to load, so that asking for it again would not help.
    const broken = new Error(`The script of this page did not load or failed (${error.message}). Loading all anew forgets the key.`);
    replace(root, h("h1", {}, title), failure(broken, { retry: () => location.reload() }));
  }
  if (moveFocus) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
    announce(`${title}`);
  }
}

function showKey() {
  keyButton.textContent = hasKey() ? "API key ✓" : "API key";
  keyButton.setAttribute("aria-label", hasKey() ? "API key: one is in use" : "API key: none is in use");
}

function askForKey() {
  keyInput.value = "";
  dialog.returnValue = "cancel";
  dialog.showModal();
  keyInput.focus();
}

keyButton.addEventListener("click", askForKey);
document.addEventListener("click", (event) => {
  if (event.target instanceof Element && event.target.closest("[data-opens=key]")) askForKey();
});
dialog.addEventListener("close", () => {
  const given = keyInput.value;
  keyInput.value = "";
  if (dialog.returnValue === "cancel" || (dialog.returnValue === "use" && !given.trim())) return;
  useKey(dialog.returnValue === "use" ? given : "");
  showKey();
  show({ moveFocus: false });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => show());
showKey();
show({ moveFocus: false });
