// A long column of blocks, of which only those near the window are in the page.
//
// The window stays in its place while the browser scrolls an empty space behind it, and shows what
// belongs there in the next frame. With blocks within the space, the browser would scroll past the
// last one that was drawn, to a place without any, before a script hears of it.
import { make } from "./util.js";

const margin = 1200; // pixels above and below the window, for which blocks are drawn when there is time
const restAfter = 100; // milliseconds without scrolling
const firstGuess = 100; // pixels of a block, before one was drawn
const tallest = 2 ** 24; // pixels that browsers still lay out

const soon = window.requestIdleCallback
  ?? ((act) => setTimeout(() => act({ timeRemaining: () => 8 }), 20));

export class Rows {
  // draw(block) fills the element of block.index, and returns whether it could.
  constructor(count, draw, given) {
    Object.assign(this, { count, draw });
    this.content = make("div");
    this.window = make("div", { class: "window" }, this.content);
    this.space = make("div", {}, this.window);
    this.element = make("div", { ...given, onscroll: () => this.settle() }, this.space);
    this.real = new Float64Array(count); // heights; 0: not known
    this.given = new Float64Array(count).fill(firstGuess); // in the space that is scrolled
    this.tops = new Float64Array(count + 1); // sums of these
    this.begin = this.end = 0; // blocks in the page
    this.first = this.share = 0; // the block at the window's top, and how much of it is above
    this.guessed = this.closed = this.waiting = false;
    this.width = 0;
    this.sum();
    this.sized = new ResizeObserver(() => this.resize());
    this.sized.observe(this.element);
  }

  close() {
    this.closed = true;
    clearTimeout(this.resting);
    this.sized.disconnect();
  }

  blocks() { return [...this.content.children]; }

  height(index) { return this.real[index] || this.given[index]; }

  // --- the space ---

  sum() {
    for (let index = 0; index < this.count; index++) {
      this.tops[index + 1] = this.tops[index] + this.given[index];
    }
    this.space.style.height = `${Math.max(this.tops[this.count], this.element.clientHeight)}px`;
  }

  // Takes the known heights of blocks from `begin` on.
  take(begin) {
    let changed = false;
    for (let index = Math.max(begin, this.begin); index < this.end; index++) {
      const height = Math.min(this.height(index), tallest / this.count);
      changed ||= height !== this.given[index];
      this.given[index] = height;
    }
    if (changed) this.sum();
  }

  placeOf(top) {
    let [low, high] = [0, this.count - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tops[middle + 1] > top) high = middle;
      else low = middle + 1;
    }
    return [low, Math.min(1, Math.max(0, (top - this.tops[low]) / this.given[low]))];
  }

  resize() {
    if (this.closed || !this.count) return;
    this.window.style.height = `${this.element.clientHeight}px`;
    if (this.width !== this.element.clientWidth) {
      this.width = this.element.clientWidth;
      this.real.fill(0);
      this.guessed = false;
      this.measure();
    }
    this.sum();
    this.goTo(this.first, this.share);
  }

  goTo(first, share) {
    this.element.scrollTop = this.tops[first] + share * this.given[first];
    this.settle();
  }

  // --- what is in the page ---

  // Has blocks [first, last] in the page, those between, and no others far away.
  include(first, last) {
    if (first > this.end || last + 1 < this.begin) {
      this.content.replaceChildren();
      this.begin = this.end = first;
    }
    while (this.begin > first) this.content.prepend(this.made(--this.begin));
    while (this.end <= last) this.content.append(this.made(this.end++));
    let changed = false;
    for (let index = first; index <= last; index++) {
      const block = this.content.children[index - this.begin];
      if (block.drawn || !this.draw(block)) continue;
      block.drawn = changed = true;
      block.style.height = "";
    }
    if (changed) this.measure();
    return changed;
  }

  made(index) {
    const block = make("div", {});
    block.index = index;
    block.style.height = `${this.given[index]}px`;
    return block;
  }

  measure() {
    for (const block of this.content.children) {
      if (block.drawn && !this.real[block.index]) {
        this.real[block.index] = Math.max(1, block.getBoundingClientRect().height);
      }
    }
    if (this.guessed) return;
    const known = this.real.filter((height) => height > 0);
    if (!known.length) return;
    this.guessed = true;
    this.given.fill(known.reduce((sum, one) => sum + one, 0) / known.length);
    this.sum();
  }

  // Draws what is in sight: now, before the frame is painted.
  settle() {
    const height = this.element.clientHeight;
    if (this.closed || !this.count || !height) return;
    const { scrollTop, scrollHeight } = this.element;
    const atEnd = scrollTop > 0 && scrollTop + height >= scrollHeight - 1;
    let [first, share] = this.placeOf(scrollTop);
    let last;
    let bottom;
    do {
      bottom = (1 - share) * this.height(first);
      for (last = first; bottom < height && last < this.count - 1;) bottom += this.height(++last);
    } while (this.include(first, last));
    let top = -share * this.height(first);
    if (last === this.count - 1 && (atEnd || bottom < height)) {
      for (top += height - bottom; top > 0 && first > 0; top -= this.height(first)) {
        this.include(--first, last);
      }
    }
    this.first = first;
    this.share = Math.max(0, -top) / this.height(first);
    this.take(first + 1);
    this.move();
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.later(), restAfter);
  }

  move() {
    let top = -this.share * this.height(this.first);
    for (let index = this.begin; index < this.first; index++) top -= this.height(index);
    this.content.style.transform = `translateY(${top}px)`;
  }

  // --- what is near, while nothing moves ---

  later() {
    if (this.waiting || this.closed) return;
    this.waiting = true;
    soon((deadline) => {
      this.waiting = false;
      if (!this.closed) this.drawNear(deadline);
    });
  }

  // The first block that begins beyond so many pixels from the window's top.
  away(pixels) {
    let index = this.first;
    for (let left = pixels; left > 0 && index < this.count; index++) left -= this.height(index);
    for (let left = pixels; left < 0 && index > 0; index--) left += this.height(index - 1);
    return index;
  }

  drawNear(deadline) {
    const height = this.element.clientHeight;
    const [begin, end] = [this.away(-margin), this.away(height + margin)];
    while (this.end < end || this.begin > begin) {
      if (this.end < end) this.include(this.end, this.end);
      else this.include(this.begin - 1, this.begin - 1);
      this.move();
      if (deadline.timeRemaining() < 4) return this.later();
    }
    for (; this.begin < begin; this.begin++) this.content.firstChild.remove();
    for (; this.end > end; this.end--) this.content.lastChild.remove();
    this.take(0);
    this.move();
    const wanted = this.tops[this.first] + this.share * this.given[this.first];
    if (Math.abs(wanted - this.element.scrollTop) > 1) this.element.scrollTop = wanted;
  }

  // Moves a place of a block, which `inBlock(block)` gives in pixels, to the middle of the window.
  show(index, inBlock) {
    this.include(index, index);
    const block = this.content.children[index - this.begin];
    let top = this.element.clientHeight / 2 - inBlock(block);
    let first = index;
    for (; top > 0 && first > 0; top -= this.height(first)) this.include(--first, index);
    this.take(0);
    this.goTo(first, Math.max(0, -top) / this.height(first));
  }
}
