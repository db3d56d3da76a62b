// The page: what the address names is shown, and looked at again once a second.
import { distributionsView, waitingView } from "./charts.js";
import { groupView } from "./group.js";
import { GroupList } from "./groups.js";
import { MemberView } from "./member.js";
import { ask, go, keepToken, make, number, place, visible } from "./util.js";

const byId = (id) => document.getElementById(id);
const main = byId("main");
let state = null;
let member = null;
let shown = ""; // what the detail shows, and of which revision
let failure = "";
let drawn = 0; // when distributions were, in milliseconds

function report(error) {
  failure = error.message;
  tellProblem();
}

function tellProblem() {
  const text = failure || state?.problem || "";
  byId("problem").hidden = !text;
  byId("problem").textContent = visible(text);
}

const list = new GroupList(report);

function tellState() {
  const name = visible(state.name);
  byId("source").textContent = `${state.kind} ${name}`;
  byId("source").title = name;
  document.title = `${name} – rollring view`;
  const parts = [`${number(state.seen)} groups`, `${number(state.rollouts)} rollouts`];
  if (state.kept < state.seen) parts.push(`the latest ${number(state.kept)} are kept`);
  if (state.latest_version >= 0) parts.push(`version ${state.latest_version}`);
  if (state.tap?.missed) parts.push(`${number(state.tap.missed)} missed`);
  byId("counts").textContent = parts.join(" · ");
}

function replaceDetail(element) {
  main.querySelector(".detail")?.remove();
  if (element) main.append(element);
}

// What was asked for, unless something else is to be shown by now. The place of a group or a record
// that is gone says so, until a later look finds it.
async function arrived(wanted, coming) {
  shown = wanted;
  try {
    const element = await coming;
    return shown === wanted ? element : null;
  } catch (error) {
    if (shown !== wanted) return null;
    shown = "";
    if (error.status !== 404) throw error;
    replaceDetail(make("section", { class: "detail soft", id: "gone", text: error.message }));
    return null;
  }
}

async function showMember({ group, member: number_, seq = "" }) {
  const wanted = `member ${group} ${number_} ${seq}`;
  if (shown !== wanted || member?.stale) {
    const opened = new MemberView(group, number_, seq, report);
    const element = await arrived(wanted, opened.open());
    if (!element) opened.close();
    if (element || shown === "") {
      member?.close();
      member = element ? opened : null;
    }
    if (!element) return;
    replaceDetail(element);
  }
  await member?.follow();
}

async function showGroup(group) {
  const wanted = `group ${group} ${state?.revision}`;
  if (shown === wanted) return;
  const top = main.querySelector("#group")?.scrollTop ?? 0;
  const same = shown.startsWith(`group ${group} `);
  const element = await arrived(wanted, groupView(group, report));
  if (!element) return;
  replaceDetail(element);
  if (same) element.scrollTop = top;
}

async function showGroups() {
  if (!list.element.isConnected) {
    main.replaceChildren(list.element);
    shown = "";
  }
  await list.refresh();
  const words = place();
  if (!(words.group && words.member)) {
    member?.close();
    member = null;
  }
  if (words.group && words.member) await showMember(words);
  else if (words.group) await showGroup(words.group);
  else if (shown !== "none") {
    shown = "none";
    replaceDetail(make("section", { class: "detail soft", text: "Choose a group: j, k or an arrow, or a click." }));
  }
  list.paint();
}

async function show() {
  const { view = "groups" } = place();
  for (const button of document.querySelectorAll("[data-view]")) {
    button.setAttribute("aria-current", String(button.dataset.view === view));
  }
  if (view === "groups") return showGroups();
  if (view === "distributions" && main.querySelector("#distributions svg:hover")) return undefined;
  drawn = performance.now();
  const element = view === "waiting" ? waitingView(state) : await distributionsView();
  if ((place().view ?? "groups") === view) {
    const top = main.firstElementChild?.scrollTop ?? 0;
    main.replaceChildren(element);
    element.scrollTop = top;
  }
}

async function look() {
  try {
    const before = state;
    state = await ask("state");
    tellState();
    const { view } = place();
    const changed = before === null || state.revision !== before.revision;
    // Ages pass in "waiting"; distributions are sums of up to 50,000 records.
    const due = view === "waiting" || (view && performance.now() - drawn > (changed ? 2000 : 10000));
    if (due || (changed && !view)) await show();
    failure = "";
  } catch (error) {
    failure = error.message;
  }
  tellProblem();
}

async function forever() {
  await look();
  setTimeout(forever, document.hidden ? 5000 : 1000);
}

// --- theme and keys ---

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

function changeTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("rollring-theme", theme);
  setTheme(theme);
}

const toView = (view) => go({ view: view === "groups" ? "" : view });
const back = () => {
  const words = place();
  go(words.member ? { member: "", seq: "", at: "", find: "" } : { group: "" });
};
const keys = {
  j: () => list.move(1), k: () => list.move(-1),
  ArrowDown: () => list.move(1), ArrowUp: () => list.move(-1),
  Escape: back, g: () => toView("groups"), d: () => toView("distributions"),
  w: () => toView("waiting"), Enter: () => main.querySelector("#group .member[data-member]")?.click(), t: changeTheme, c: () => member?.cycle(),
  n: () => member?.next(1), p: () => member?.next(-1),
  l: () => member?.move(1), h: () => member?.move(-1),
  ArrowRight: () => member?.move(1), ArrowLeft: () => member?.move(-1),
  "/": () => (member ? member.search : list.inputs.q).focus(),
  "?": () => byId("help").showModal(),
};

addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea");
  if (typing && event.key === "Escape") return event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const inTokens = event.target.id === "tokens" && event.key.startsWith("Arrow");
  const pressed = event.key === "Enter" && event.target.matches("button, summary, a");
  if (inTokens || pressed) return;
  const card = document.querySelectorAll("#group .member[data-member]")[Number(event.key) - 1];
  const act = card ? () => card.click() : keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

keepToken();
setTheme(localStorage.getItem("rollring-theme")
  ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
byId("theme").addEventListener("click", changeTheme);
byId("keys").addEventListener("click", () => byId("help").showModal());
for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => toView(button.dataset.view));
}
addEventListener("hashchange", () => {
  keepToken(); // a new address of the same page
  if (state) show().then(tellProblem, report);
});
if (!place().view) {
  // The rows come with the state, not after it; `look` tells what fails.
  main.replaceChildren(list.element);
  list.refresh().catch(() => {});
}
forever();
