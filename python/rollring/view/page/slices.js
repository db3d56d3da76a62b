// The tokens of a sequence, fetched in advance: the nearest first, a part at a time.
import { ask } from "./util.js";

export const partTokens = 2048; // of a request
const kept = 256; // parts around the place that is looked at
const requests = 2; // at the same time

export class Slices {
  constructor(query, tokens, onArrival, report) {
    Object.assign(this, { query, tokens, onArrival, report });
    this.parts = new Map();
    this.coming = new Map(); // number of a part to its promise
    this.here = 0; // the part that is looked at
    this.loops = 0;
    this.closed = false;
  }

  // Its part, or undefined: it is not here yet.
  of(token) { return this.parts.get(Math.floor(token / partTokens)); }

  lookAt(token) {
    this.here = Math.floor(token / partTokens);
    while (this.loops < requests && !this.closed && this.missing() >= 0) {
      this.loops++;
      this.fetch().catch(this.report).finally(() => { this.loops--; });
    }
  }

  ask(token) {
    const part = Math.floor(token / partTokens);
    if (!this.coming.has(part)) {
      const from = part * partTokens;
      this.coming.set(part, ask("slice", { ...this.query, from, to: from + partTokens })
        .then((slice) => this.parts.set(part, slice)).finally(() => this.coming.delete(part)));
    }
    return this.coming.get(part);
  }

  missing() {
    const last = Math.ceil(this.tokens / partTokens) - 1;
    for (let away = 0; away <= Math.min(kept / 2, last); away++) {
      for (const one of [this.here + away, this.here - away]) {
        if (one >= 0 && one <= last && !this.parts.has(one) && !this.coming.has(one)) return one;
      }
    }
    return -1;
  }

  async fetch() {
    for (let next = this.missing(); next >= 0 && !this.closed; next = this.missing()) {
      await this.ask(next * partTokens);
      for (const one of this.parts.keys()) {
        if (Math.abs(one - this.here) > kept / 2) this.parts.delete(one);
      }
      if (!this.closed) this.onArrival();
    }
  }
}
