// The tokens of a member, in blocks: their text, their colours, and what is said of one.
import { Rows } from "./rows.js";
import { Slices } from "./slices.js";
import { make, number, visible } from "./util.js";

const blockTokens = 128;
const plainText = /^[ -~]*$/;

export class Tokens {
  constructor(query, facts, report, tell) {
    Object.assign(this, { facts, tell });
    this.starts = new Map(facts.all_turns > 1 ? facts.turns.map(([begin, , mask]) => [begin, mask]) : []);
    this.marked = new Set();
    this.color = "";
    this.slices = new Slices(query, facts.tokens, () => this.rows.settle(), report);
    this.rows = new Rows(Math.ceil(facts.tokens / blockTokens), (block) => this.draw(block), {
      class: "tokens", tabindex: "0", id: "tokens",
      onmouseover: ({ target }) => {
        const slice = target.parentNode?.slice;
        if (slice && target.dataset.at) this.tellOf(slice, Number(target.dataset.at) - slice.from);
      } });
    this.element = this.rows.element;
    this.element.addEventListener("scroll", () => this.look());
    this.look();
  }

  close() {
    this.slices.closed = true;
    this.rows.close();
  }

  look() { if (this.rows.count) this.slices.lookAt(this.rows.first * blockTokens); }

  draw(block) {
    const begin = block.index * blockTokens;
    const slice = this.slices.of(begin);
    if (!slice) return false;
    const made = [];
    block.slice = slice;
    block.spans = [];
    const end = Math.min(begin + blockTokens, slice.to);
    for (let at = begin; at < end; at++) {
      const mask = this.starts.get(at);
      if (mask !== undefined) {
        made.push(make("span", { class: "turn", text: mask ? `generated, from ${at}` : `given, from ${at}` }));
      }
      const token = document.createElement("span");
      token.dataset.at = at;
      const text = slice.texts?.[at - slice.from] ?? `${slice.ids[at - slice.from]} `;
      if (plainText.test(text)) {
        token.textContent = text;
      } else {
        token.textContent = visible(text);
        token.style.unicodeBidi = "isolate"; // which layout takes time for
      }
      block.spans.push(token);
      made.push(token);
    }
    this.paint(block);
    block.replaceChildren(...made);
    return true;
  }

  // --- colours ---

  repaint(color, marked = this.marked) {
    Object.assign(this, { color, marked });
    for (const block of this.rows.blocks()) if (block.spans) this.paint(block);
  }

  paint(block) {
    const { slice, spans } = block;
    const { ranges, n_prompt: prompt } = this.facts;
    const values = slice.values[this.color];
    const mask = slice.values.loss_mask;
    const [low, high] = ranges[this.color] ?? [0, 0];
    const even = { turn: "color-mix(in srgb, var(--bar) 40%, transparent)",
      advantage: shade(0.5 + Math.max(-2, Math.min(2, this.facts.advantage)) / 4) }[this.color] ?? "";
    const first = block.index * blockTokens;
    spans.forEach((token, place) => {
      const at = first + place;
      const index = at - slice.from;
      const made = mask ? mask[index] === 1 : at >= prompt;
      const value = values?.[index] ?? null;
      token.className = made ? (this.marked.has(at) ? "found" : "") : (this.marked.has(at) ? "given found" : "given");
      token.style.backgroundColor = value !== null
        ? shade(high > low ? (value - low) / (high - low) : 0.5) : (made ? even : "");
    });
  }

  tellOf(slice, index) {
    const values = Object.entries(slice.values).map(([name, column]) => `${name} ${number(column[index], 4)}`);
    this.tell([`token ${slice.from + index}: id ${slice.ids[index]}`, ...values].join(" · "));
  }

  // Scrolls to a token, and marks it.
  async show(at) {
    if (!(at >= 0 && at < this.facts.tokens)) return;
    const token = Math.floor(at);
    this.marked.add(token);
    this.slices.lookAt(token);
    if (!this.slices.of(token)) await this.slices.ask(token);
    this.rows.show(Math.floor(token / blockTokens), (block) => {
      if (!block.spans) return 0;
      this.paint(block);
      return block.spans[token % blockTokens].getBoundingClientRect().top - block.getBoundingClientRect().top;
    });
  }
}

// From red (low) over nothing to green (high), on either background.
export function shade(share) {
  const distance = Math.abs(share - 0.5) * 2;
  const hue = share < 0.5 ? 8 : 150;
  return `hsl(${hue} 75% 50% / ${(distance * 0.55).toFixed(3)})`;
}
