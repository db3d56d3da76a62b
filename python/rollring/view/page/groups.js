// The list of groups with its filters. Rows outside of the window are not in the page.
import { ask, go, make, number, place, versions } from "./util.js";

const rowHeight = 60;
const pageRows = 100;
const filters = ["q", "reward_min", "reward_max", "tokens_min", "tokens_max", "version", "status",
  "environment", "state", "flat", "sort"];

export class GroupList {
  constructor(onError) {
    this.onError = onError;
    this.pages = new Map(); // number of a page to its groups
    this.matched = 0;
    this.revision = -1;
    this.asked = "";
    this.inputs = {};
    this.rows = make("div", { class: "rows", role: "listbox", "aria-label": "Groups" });
    this.list = make("div", { class: "list", tabindex: "0", onscroll: () => this.paint() }, this.rows);
    this.count = make("div", { class: "matched" });
    this.element = make("section", { class: "side" }, this.form(), this.count, this.list);
    new ResizeObserver(() => this.paint()).observe(this.list);
  }

  form() {
    const field = (name, label, kind, { css = "", hint = label } = {}) => {
      this.inputs[name] = make("input", {
        type: kind === "number" ? "number" : "search", step: "any", placeholder: hint,
        "aria-label": label, title: label, class: css, name,
        oninput: () => this.filter(name),
      });
      return this.inputs[name];
    };
    const choice = (name, label, options, css = "") => {
      this.inputs[name] = make("select", { "aria-label": label, title: label, class: css, name,
        onchange: () => this.filter(name) });
      this.options(name, options);
      return this.inputs[name];
    };
    return make("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      field("q", "Search groups, environments, producers", "search", { css: "wide" }),
      field("reward_min", "Reward from", "number", { hint: "reward ≥" }),
      field("reward_max", "Reward to", "number", { hint: "reward ≤" }),
      field("tokens_min", "Tokens from", "number", { hint: "tokens ≥" }),
      field("tokens_max", "Tokens to", "number", { hint: "tokens ≤" }),
      choice("state", "State", [["", "any state"], ["open"], ["ready"], ["leased"], ["finished"]], "third"),
      choice("status", "Status", [["", "any status"]], "third"),
      choice("flat", "Variance", [["", "any rewards"], ["1", "all equal"], ["0", "not equal"]], "third"),
      field("version", "Version", "number", { hint: "version" }),
      choice("environment", "Environment", [["", "any environment"]], "more"),
      choice("sort", "Order", [["", "newest first"], ["old", "oldest first"], ["reward", "by reward"],
        ["spread", "by deviation"], ["tokens", "longest first"], ["name", "by name"]], "third"));
  }

  options(name, options) {
    const input = this.inputs[name];
    const wanted = JSON.stringify(options);
    if (input.dataset.options === wanted) return;
    input.dataset.options = wanted;
    const chosen = place()[name] ?? "";
    input.replaceChildren(...options.map(([value, label]) =>
      make("option", { value, text: label ?? value })));
    input.value = chosen;
  }

  filter(name) {
    go({ [name]: this.inputs[name].value }, { replace: true });
  }

  query() {
    const words = place();
    return Object.fromEntries(filters.filter((name) => words[name]).map((name) => [name, words[name]]));
  }

  // Called after each change of the address, and once a second.
  async refresh() {
    const query = this.query();
    for (const name of filters) {
      const input = this.inputs[name];
      if (document.activeElement !== input) input.value = query[name] ?? "";
    }
    const asked = JSON.stringify(query);
    if (asked !== this.asked) {
      this.asked = asked;
      this.revision = -1;
      this.list.scrollTop = 0;
    }
    if (this.looking?.asked !== asked) {
      const looking = { asked };
      this.looking = looking;
      looking.done = this.load(this.pageAt(this.list.scrollTop), true)
        .finally(() => { if (this.looking === looking) this.looking = null; });
    }
    await this.looking.done;
  }

  pageAt(top) { return Math.max(0, Math.floor(top / rowHeight / pageRows)); }

  async load(page, fresh = false) {
    const asked = this.asked;
    const found = await ask("groups", { ...this.query(), offset: page * pageRows, limit: pageRows,
      ...(fresh ? { revision: this.revision } : {}) });
    if (asked !== this.asked || found.same) return;
    if (fresh) {
      this.pages.clear();
      this.revision = found.revision;
    }
    this.pages.set(page, found.groups);
    this.matched = found.matched;
    this.count.textContent = `${number(found.matched)} of ${number(found.total)} groups`;
    this.options("status", [["", "any status"], ...found.statuses.map((one) => [one])]);
    this.options("environment", [["", "any environment"],
      ...found.environments.filter((one) => one).map((one) => [one])]);
    this.paint();
  }

  at(index) { return this.pages.get(Math.floor(index / pageRows))?.[index % pageRows]; }

  paint() {
    this.rows.style.height = `${this.matched * rowHeight}px`;
    const first = Math.max(0, Math.floor(this.list.scrollTop / rowHeight) - 3);
    const last = Math.min(this.matched, first + Math.ceil(this.list.clientHeight / rowHeight) + 6);
    const chosen = place().group;
    const rows = [];
    for (let index = first; index < last; index++) {
      const group = this.at(index);
      if (group) rows.push(row(group, index, group.id === chosen));
      else this.want(Math.floor(index / pageRows));
    }
    this.rows.replaceChildren(...rows);
  }

  want(page) {
    if (this.wanted === page) return;
    this.wanted = page;
    this.load(page).catch(this.onError).finally(() => { this.wanted = undefined; });
  }

  // The chosen group, and the one that a key leads to.
  move(step) {
    const chosen = place().group;
    let index = -1;
    for (const [page, groups] of this.pages) {
      const within = groups.findIndex((group) => group.id === chosen);
      if (within >= 0) index = page * pageRows + within;
    }
    const next = Math.max(0, Math.min(this.matched - 1, index + step));
    const group = this.at(next);
    if (!group) return;
    const top = next * rowHeight;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    const lowest = top + rowHeight - this.list.clientHeight;
    if (lowest > this.list.scrollTop) this.list.scrollTop = lowest;
    go({ group: group.id, member: "", seq: "", at: "", find: "" }, { replace: true });
  }
}

function row(group, index, chosen) {
  const element = make("div", {
    class: "row", role: "option", "aria-selected": String(chosen), data: { group: group.id },
    onclick: () => go({ group: group.id, member: "", seq: "", at: "", find: "" }),
  },
  make("div", { class: "top" },
    make("span", { class: "name", text: group.instance_id }),
    make("span", { class: `state ${group.state}`, text: stateText(group) })),
  make("div", { class: "facts" }, bars(group.rewards),
    make("span", { text: `reward ${number(group.reward)}` }),
    make("span", { text: `${number(group.longest)} tokens` }),
    make("span", { text: versions(group.version) }),
    make("span", { class: "name", text: group.environment })));
  element.style.top = `${index * rowHeight}px`;
  return element;
}

export function stateText(group) {
  const size = group.size || "?";
  const members = `${group.members}/${size}`;
  const text = group.state === "finished" && group.complete ? `${group.members}` : `${group.state} ${members}`;
  return group.step === undefined ? text : `${text} · step ${group.step}`;
}

function bars(rewards) {
  const known = rewards.filter((one) => one !== null);
  const low = Math.min(0, ...known);
  const range = Math.max(...known, 0) - low || 1;
  return make("span", { class: "rewards", title: rewards.map((one) => number(one)).join(", ") },
    ...rewards.slice(0, 16).map((one) => {
      const bar = make("i", { class: one === null ? "none" : "" });
      if (one !== null) bar.style.height = `${Math.round((one - low) / range * 14)}px`;
      return bar;
    }));
}
