// A member: turns, fields, images, and tokens, of which only those near the window are in the page.
import { picture } from "./image.js";
import { ask, copyJson, go, make, number, place, visible } from "./util.js";

const blockTokens = 512;
const guessed = 190; // pixels of a block that was not laid out yet
const margin = "1200px";
const fillsOfFrame = 4; // more of them would hold a frame up

export class MemberView {
  constructor(id, member, sequence, report) {
    this.query = { group: id, member, ...(sequence ? { sequence } : {}) };
    this.stale = false; // another record took the place of this one
    this.report = (error) => {
      report(error);
      if (error.status !== 404 || this.stale) return;
      this.stale = true;
      dispatchEvent(new HashChangeEvent("hashchange")); // opens the other one
    };
    this.blocks = [];
    this.found = [];
    this.marked = new Set();
    this.fills = 0; // of the present frame
  }

  async open() {
    this.facts = await ask("turns", this.query);
    // From here on this record, and no other one of the member.
    this.query = { ...this.query, sequence: this.facts.sequence, serial: this.facts.serial };
    this.count = this.facts.tokens;
    this.starts = new Map(this.facts.turns.map(([begin, , mask]) => [begin, mask]));
    this.columns = ["", "turn", "advantage", ...Object.keys(this.facts.ranges)];
    this.text = make("div", { class: "tokens", tabindex: "0", id: "tokens" });
    this.seen = new IntersectionObserver((entries) => this.turnOver(entries),
      { root: this.text, rootMargin: margin });
    this.text.onmouseover = ({ target }) => {
      const { tokens } = target.parentNode;
      if (tokens && target.dataset.at) this.tell(tokens, Number(target.dataset.at) - tokens.from);
    };
    for (let begin = 0; begin < this.count; begin += blockTokens) {
      const block = make("div", { data: { begin: String(begin) } });
      block.style.minHeight = `${guessed}px`;
      this.blocks.push(block);
      this.text.append(block);
      this.seen.observe(block);
    }
    this.element = make("section", { class: "detail", id: "member" }, this.head(), this.tools(),
      this.fields(), this.images(), this.strip(), this.text);
    return this.element;
  }

  close() { this.seen?.disconnect(); }

  head() {
    const back = make("button", { type: "button", id: "back", text: "← group",
      onclick: () => go({ member: "", seq: "", at: "", find: "" }) });
    const { group, member } = this.query;
    const copy = make("button", { type: "button", id: "copy", text: "Copy as JSON",
      onclick: () => copyJson({ group, member }, copy).catch(this.report) });
    const { fields } = this.facts;
    return make("div", { class: "title" }, back,
      make("b", { text: `member ${member}` }),
      this.sequences(),
      make("span", { class: "soft", text: [`reward ${number(fields.reward)}`,
        `advantage ${number(this.facts.advantage)}`, `${number(this.count)} tokens`,
        `${number(this.facts.all_turns)} turns`, fields.status].join(" · ") }), copy);
  }

  // One button each, for a member of several sequences.
  sequences() {
    const { sequences, sequence: here } = this.facts;
    if (sequences.length < 2) return null;
    return make("span", { id: "sequences" }, "sequence ", ...sequences.map((one) => make("button", {
      type: "button", text: String(one), "aria-current": String(one === here),
      onclick: () => go({ seq: String(one), at: "", find: "" }) })));
  }

  images() {
    if (!this.facts.images) return null;
    const row = make("div", { class: "images", id: "images" });
    const all = Array.from({ length: Math.min(this.facts.images, 64) }, (_, index) => index);
    Promise.all(all.map((index) => ask("image", { ...this.query, index }).then(picture)))
      .then((made) => row.replaceChildren(...made)).catch(this.report);
    return row;
  }

  tools() {
    this.color = make("select", { id: "color", "aria-label": "Colour by",
      onchange: () => go({ color: this.color.value }, { replace: true }) },
    ...this.columns.map((name) => make("option", { value: name,
      text: name === "" ? "no colour" : `colour by ${name}` })));
    this.legend = make("span", { class: "legend" });
    this.range = make("span", { class: "soft" });
    this.search = make("input", { type: "search", id: "find", placeholder: "Find in this member",
      "aria-label": "Find in this member", onchange: () => this.find(this.search.value).catch(this.report) });
    this.hits = make("span", { class: "soft", role: "status" });
    this.under = make("span", { class: "soft", id: "under" });
    return make("div", { class: "tools" }, this.color, this.legend, this.range, this.search,
      this.hits, this.under);
  }

  fields() {
    const line = ([name, value]) => [make("dt", { text: name }), make("dd", { text: String(value) })];
    return make("details", {}, make("summary", { text: "Fields and columns" }),
      make("dl", {}, ...Object.entries({ ...this.facts.fields, ...this.facts.columns }).flatMap(line)));
  }

  strip() {
    const turns = this.facts.turns;
    const strip = make("div", { class: "turns", title: "turns: given, generated",
      onclick: (event) => {
        const box = strip.getBoundingClientRect();
        this.show(Math.floor((event.clientX - box.left) / box.width * this.count));
      } });
    for (const [begin, end, mask] of turns.slice(0, 1000)) {
      const part = make("i", { class: mask ? "made" : "" });
      part.style.flex = String(end - begin);
      strip.append(part);
    }
    return strip;
  }

  turnOver(entries) {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      target.near = isIntersecting;
      if (isIntersecting) {
        this.fill(target).catch(this.report);
      } else if (target.childNodes.length && boundingClientRect.height > 0) {
        target.style.minHeight = `${boundingClientRect.height}px`;
        target.replaceChildren();
        target.spans = target.tokens = null;
      }
    }
  }

  // Of blocks that were scrolled past meanwhile, none is filled.
  async fill(block, { anyway = false } = {}) {
    if (block.childNodes.length || (block.dataset.asked && !anyway)) return;
    block.dataset.asked = "1";
    const begin = Number(block.dataset.begin);
    try {
      const slice = await ask("slice", { ...this.query, from: begin, to: begin + blockTokens });
      if (!anyway) await this.turn();
      if (block.childNodes.length || !(block.near || anyway)) return;
      block.tokens = slice;
      block.spans = [];
      const made = this.spans(slice, block.spans);
      this.paintBlock(block);
      block.replaceChildren(...made);
      block.style.minHeight = "";
    } finally {
      delete block.dataset.asked;
    }
    if (block.near && !block.childNodes.length) await this.fill(block);
  }

  async turn() {
    while (this.fills >= fillsOfFrame && !document.hidden) {
      await new Promise(requestAnimationFrame);
    }
    if (this.fills++ === 0) requestAnimationFrame(() => { this.fills = 0; });
  }

  spans(slice, tokens) {
    const made = [];
    slice.ids.forEach((id, index) => {
      const at = slice.from + index;
      const mask = this.starts.get(at);
      if (mask !== undefined && this.facts.all_turns > 1) {
        made.push(make("span", { class: "turn", text: mask ? `generated, from ${at}` : `given, from ${at}` }));
      }
      const text = slice.texts ? visible(slice.texts[index]) : `${id} `;
      const token = make("span", { data: { at: String(at) } });
      token.textContent = text;
      tokens.push(token);
      made.push(token);
    });
    return made;
  }

  tell(slice, index) {
    const values = Object.entries(slice.values).map(([name, column]) => `${name} ${number(column[index], 4)}`);
    this.under.textContent = [`token ${slice.from + index}: id ${slice.ids[index]}`, ...values].join(" · ");
  }

  // The colour, and the token of the address.
  async follow() {
    const { color = "", at } = place();
    this.color.value = this.columns.includes(color) ? color : "";
    const range = this.facts.ranges[this.color.value];
    this.range.textContent = range ? `${number(range[0])} to ${number(range[1])}` : "";
    this.legend.style.background = range
      ? `linear-gradient(to right, ${shade(0)}, ${shade(0.5)}, ${shade(1)})` : "none";
    for (const block of this.blocks) if (block.childNodes.length) this.paintBlock(block);
    if (at !== undefined && at !== this.shown) await this.show(Number(at));
  }

  paintBlock(block) {
    const slice = block.tokens;
    const name = this.color.value;
    const values = slice.values[name];
    const mask = slice.values.loss_mask;
    const [low, high] = this.facts.ranges[name] ?? [0, 0];
    for (const [index, token] of block.spans.entries()) {
      const at = slice.from + index;
      const made = mask ? mask[index] === 1 : at >= this.facts.n_prompt;
      token.className = [made ? "" : "given", this.marked.has(at) ? "found" : ""].join(" ").trim();
      let color = "";
      if (values && values[index] !== null) color = shade(high > low ? (values[index] - low) / (high - low) : 0.5);
      else if (name === "turn" && made) color = "color-mix(in srgb, var(--bar) 40%, transparent)";
      else if (name === "advantage" && made) {
        color = shade(0.5 + Math.max(-2, Math.min(2, this.facts.advantage)) / 4);
      }
      token.style.backgroundColor = color;
    }
  }

  async find(text) {
    const { at } = text ? await ask("find", { ...this.query, text }) : { at: [] };
    this.found = at;
    this.marked = new Set(at);
    this.hit = -1;
    this.hits.textContent = text ? `${number(at.length)} found` : "";
    for (const block of this.blocks) if (block.childNodes.length) this.paintBlock(block);
    this.next(1);
  }

  next(step) {
    if (!this.found.length) return;
    this.hit = (this.hit + step + this.found.length) % this.found.length;
    this.hits.textContent = `${this.hit + 1} of ${number(this.found.length)}`;
    go({ at: String(this.found[this.hit]) }, { replace: true });
  }

  cycle() {
    const next = (this.columns.indexOf(this.color.value) + 1) % this.columns.length;
    go({ color: this.columns[next] }, { replace: true });
  }

  async show(at) {
    this.shown = String(at);
    const block = this.blocks[Math.floor(at / blockTokens)];
    if (!block) return;
    block.scrollIntoView({ block: "center" });
    await this.fill(block, { anyway: true });
    const token = block.querySelector(`[data-at="${at}"]`);
    token?.scrollIntoView({ block: "center" });
    this.marked.add(at);
    if (token) this.paintBlock(block);
  }
}

// From red (low) over nothing to green (high), on either background.
function shade(share) {
  const distance = Math.abs(share - 0.5) * 2;
  const hue = share < 0.5 ? 8 : 150;
  return `hsl(${hue} 75% 50% / ${(distance * 0.55).toFixed(3)})`;
}
