// Elements, text that may be hostile, numbers, the server, and the address of the page.

// Text of a record reaches the page through textContent alone. Controls and characters that change
// the direction of a line are shown by their numbers, so that a text cannot pose as another one, and so
// are halves of surrogate pairs, which are no text.
const unseen = /(?![\t\n])[\p{Cc}\p{Cf}\p{Cs}\p{Default_Ignorable_Code_Point}\u2028\u2029]/gu;

export function visible(text) {
  return String(text).replace(unseen, (c) => `⟨${c.codePointAt(0).toString(16).padStart(4, "0")}⟩`);
}

export function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name === "text") element.textContent = visible(value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, visible(value));
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value === "string") return value;
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1000 ? Math.round(value).toLocaleString("en") : value.toPrecision(digits);
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

export function versions([low, high]) {
  if (low === null || low < 0) return "";
  return low === high ? `v${low}` : `v${low}–${high}`;
}

// --- the server ---

const tokenKey = "rollring-token";

// An integer that a number of JavaScript cannot hold, as text.
function exact(name, value, context) {
  const rounded = Number.isInteger(value) && !Number.isSafeInteger(value);
  return rounded && /^-?\d+$/.test(context?.source) ? context.source : value;
}

export async function ask(path, query = {}) {
  const words = new URLSearchParams(query);
  const token = sessionStorage.getItem(tokenKey);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch(`/api/${path}?${words}`, { headers });
  } catch {
    throw new Error("the server does not answer: was rollring view ended?");
  }
  const found = JSON.parse(await answer.text(), exact);
  if (!answer.ok) throw Object.assign(new Error(found.error), { status: answer.status });
  return found;
}

// --- the address: all that is shown, as #name=value&… ---

export function place() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

export function go(changes, { replace = false } = {}) {
  const words = { ...place(), ...changes };
  for (const [name, value] of Object.entries(words)) {
    if (value === "" || value === null || value === undefined) delete words[name];
  }
  const hash = `#${new URLSearchParams(words)}`;
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = hash;
  }
}

export function keepToken() {
  const { token, ...rest } = place();
  if (token === undefined) return;
  sessionStorage.setItem(tokenKey, token);
  history.replaceState(null, "", `#${new URLSearchParams(rest)}`);
}

export async function copyJson(query, button) {
  const { text: lines, left_out: missing } = await ask("copy", query);
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(lines);
    button.textContent = "Copied";
  } catch {
    const link = make("a", { href: URL.createObjectURL(new Blob([lines])), download: "rollouts.jsonl" });
    link.click();
    URL.revokeObjectURL(link.href);
    button.textContent = "Saved";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
  if (missing.length) throw new Error(`copied without ${missing.join(", ")}: JSON has no form for it`);
}
