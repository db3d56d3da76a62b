// A member: turns, fields, images, and its tokens.
import { picture } from "./image.js";
import { shade, Tokens } from "./tokens.js";
import { ask, copyJson, go, make, number, place } from "./util.js";

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
    this.found = [];
    this.wanted = ""; // the text that was searched for
  }

  async open() {
    this.facts = await ask("turns", this.query);
    // From here on this record, and no other one of the member.
    this.query = { ...this.query, sequence: this.facts.sequence, serial: this.facts.serial };
    this.count = this.facts.tokens;
    this.columns = ["", "turn", "advantage", ...Object.keys(this.facts.ranges)];
    this.tokens = new Tokens(this.query, this.facts, this.report, (text) => { this.under.textContent = text; });
    this.element = make("section", { class: "detail", id: "member" }, this.head(), this.tools(),
      this.fields(), this.images(), this.strip(), this.tokens.element);
    return this.element;
  }

  close() { this.tokens?.close(); }

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

  // Opens the next or the previous member of the group.
  move(step) {
    const { members } = this.facts;
    const other = members[members.indexOf(Number(this.query.member)) + step];
    if (other !== undefined) go({ member: String(other), seq: "", at: "" });
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
      "aria-label": "Find in this member", onchange: () => go({ find: this.search.value, at: "" }, { replace: true }) });
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
        this.tokens.show(Math.floor((event.clientX - box.left) / box.width * this.count)).catch(this.report);
      } });
    for (const [begin, end, mask] of turns.slice(0, 1000)) {
      const part = make("i", { class: mask ? "made" : "" });
      part.style.flex = String(end - begin);
      strip.append(part);
    }
    return strip;
  }

  // The colour, the search and the token of the address.
  async follow() {
    const { color = "", find = "", at } = place();
    this.color.value = this.columns.includes(color) ? color : "";
    const range = this.facts.ranges[this.color.value];
    this.range.textContent = range ? `${number(range[0])} to ${number(range[1])}` : "";
    this.legend.style.background = range
      ? `linear-gradient(to right, ${shade(0)}, ${shade(0.5)}, ${shade(1)})` : "none";
    this.tokens.repaint(this.color.value);
    if (find !== this.wanted) await this.find(find, Number(at)).catch(this.report);
    if (at === undefined || at === this.shown) return;
    this.shown = at;
    await this.tokens.show(Number(at));
  }

  // Goes to the first match, unless the address names another one.
  async find(text, at) {
    this.wanted = text;
    if (document.activeElement !== this.search) this.search.value = text;
    const { at: found } = text ? await ask("find", { ...this.query, text }) : { at: [] };
    if (this.wanted !== text) return;
    this.found = found;
    this.hit = found.indexOf(at);
    this.hits.textContent = text ? `${number(found.length)} found` : "";
    this.tokens.repaint(this.color.value, new Set(found));
    if (this.hit < 0) this.next(1);
    else this.tellHit();
  }

  next(step) {
    if (!this.found.length) return;
    this.hit = (this.hit + step + this.found.length) % this.found.length;
    this.tellHit();
    go({ at: String(this.found[this.hit]) }, { replace: true });
  }

  tellHit() { this.hits.textContent = `${this.hit + 1} of ${number(this.found.length)}`; }

  cycle() {
    const next = (this.columns.indexOf(this.color.value) + 1) % this.columns.length;
    go({ color: this.columns[next] }, { replace: true });
  }
}
