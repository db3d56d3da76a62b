// Distributions as pictures, and who waits for whom.
import { ask, go, make, number, place, span } from "./util.js";

const space = "http://www.w3.org/2000/svg";
const [width, height] = [400, 170];

function drawn(tag, given) {
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
  return element;
}

function frame(title, fact, picture, axis) {
  return make("figure", { class: "chart" }, make("h2", { text: title }), picture,
    make("div", { class: "axis" }, ...axis.map((text) => make("span", { text }))),
    make("figcaption", { class: "soft", text: fact }));
}

function canvas(label) {
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": label });
}

function histogram(title, found) {
  const picture = canvas(title);
  if (!found) return frame(title, "nothing yet", picture, []);
  const top = Math.max(...found.counts);
  const step = width / found.counts.length;
  found.counts.forEach((count, index) => {
    const tall = count / top * (height - 4);
    picture.append(drawn("rect", { x: index * step + 0.5, y: height - tall, width: step - 1, height: tall }));
  });
  return frame(title, `${number(found.count)} values, mean ${number(found.mean)}`, picture,
    [number(found.min), number(found.max)]);
}

function series(title, points, [low, high], axis) {
  const picture = canvas(title);
  if (points.length < 2) return frame(title, "nothing yet", picture, []);
  const [from, to] = [points[0][0], points.at(-1)[0]];
  const line = points.map(([x, y]) => [
    ((x - from) / (to - from || 1) * width).toFixed(1),
    (height - 2 - (y - low) / (high - low || 1) * (height - 4)).toFixed(1)].join(","));
  picture.append(drawn("polyline", { points: line.join(" ") }));
  return frame(title, `latest ${number(points.at(-1)[1])}, up to ${number(high)}`, picture, axis(from, to));
}

// Over steps or versions: the mean as a line, and a band in which eight of ten values lie.
function over(axis, name, title, parts, bounds = null) {
  const picture = canvas(`${title} by ${axis}`);
  const known = parts.filter((part) => part.mean !== null);
  const made = (fact, axisTexts) => {
    const element = frame(`${title} by ${axis}`, fact, picture, axisTexts);
    element.dataset.over = name;
    return element;
  };
  if (!known.length) return made("nothing yet", []);
  const band = bounds === null;
  const [low, high] = bounds ?? [Math.min(...known.map((part) => Math.min(part.low, part.mean))),
    Math.max(...known.map((part) => Math.max(part.high, part.mean)))];
  const [from, to] = [parts[0].from, parts.at(-1).to];
  const x = (part) => (to > from ? ((part.from + part.to) / 2 - from) / (to - from) * width : width / 2);
  const drawnAt = (value) => (known.length > 1 ? known.map((part) => [x(part), y(value(part))])
    : [[0, y(value(known[0]))], [width, y(value(known[0]))]]);
  // In halves, because the way between two large numbers may be none.
  const y = (value) => height - 2 - (value / 2 - low / 2) / (high / 2 - low / 2 || 1) * (height - 4);
  const line = (points) => points.map(([left, top]) => `${left.toFixed(1)},${top.toFixed(1)}`).join(" ");
  if (band) {
    picture.append(drawn("polygon", { points: line([...drawnAt((part) => part.high),
      ...drawnAt((part) => part.low).reverse()]) }));
  }
  picture.append(drawn("polyline", { points: line(drawnAt((part) => part.mean)) }));
  const words = (part) => {
    const at = part.from === part.to ? number(part.from) : `${number(part.from)} to ${number(part.to)}`;
    const spread = band ? `, from ${number(part.low)} to ${number(part.high)}` : "";
    return `${axis} ${at}: ${number(part.mean)}${spread} · ${number(part.count)} values`;
  };
  const latest = words(known.at(-1));
  const element = made(latest, [`${axis} ${number(from)}`, `${number(low)} to ${number(high)}`,
    `${axis} ${number(to)}`]);
  const fact = element.querySelector("figcaption");
  picture.addEventListener("mousemove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * width;
    const nearest = known.reduce((one, other) => (Math.abs(x(other) - at) < Math.abs(x(one) - at) ? other : one));
    fact.textContent = words(nearest);
  });
  picture.addEventListener("mouseleave", () => { fact.textContent = latest; });
  return element;
}

function axisChoice(axis) {
  const button = (name, text) => make("button", { type: "button", text, data: { axis: name },
    "aria-current": String(axis === name), onclick: () => go({ axis: name }, { replace: true }) });
  return make("div", { class: "axes" }, button("step", "By step"), button("version", "By policy version"));
}

export async function distributionsView() {
  const { axis: wanted = "" } = place();
  const found = await ask("distributions", { axis: wanted });
  const { axis, ...all } = found.over;
  const fastest = Math.max(1, ...found.speed.map(([, speed]) => speed));
  const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
  const highest = Math.max(1, ...all.speed.map((part) => part.mean));
  return make("section", { class: "charts", id: "distributions" },
    axisChoice(axis),
    over(axis, "reward", "Reward", all.reward),
    over(axis, "length", "Length in tokens", all.length),
    over(axis, "staleness", "Staleness in versions", all.staleness),
    over(axis, "flat", "Share of groups without variance", all.flat, [0, 1]),
    over(axis, "speed", "Tokens per second", all.speed, [0, highest]),
    histogram("Reward", found.reward),
    histogram("Length in tokens", found.length),
    histogram("Staleness in versions", found.staleness),
    series("Share of groups without variance", found.flat, [0, 1],
      (from, to) => [`group ${number(from)}`, `group ${number(to)}`]),
    series("Tokens per second", found.speed, [0, fastest], (from, to) => [clock(from), clock(to)]));
}

function table(id, head, rows) {
  return make("table", { id }, make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { text })))),
    make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map(cell)))));
}

const cell = (one) => (one instanceof Node ? make("td", {}, one) : make("td", { text: one }));

export function waitingView(state) {
  if (state.kind === "ledger") {
    return make("section", { class: "tables", id: "waiting" },
      make("p", { class: "soft", text: "A ledger has no producers. Its open groups wait for a restore, and for a run that completes them." }),
      make("button", { type: "button", text: "Groups that are open", onclick: () => go({ view: "", state: "open" }) }));
  }
  if (state.kind !== "ring") {
    return make("section", { class: "tables", id: "waiting" },
      make("p", { class: "soft", text: `A ${state.kind} has no producers, and nothing waits in it.` }));
  }
  const named = (group) => make("button", { type: "button", text: group.instance_id,
    onclick: () => go({ view: "", q: group.instance_id, state: "open", group: "", member: "" }) });
  const open = (group) => [named(group), `${group.complete}/${group.size}`, span(group.age_s),
    group.missing.join(", "), group.producers.join(", ")];
  return make("section", { class: "tables", id: "waiting" },
    make("h2", { text: "Open groups, the oldest first" }),
    table("open", ["group", "members", "age", "missing", "sent by"], state.waiting.slice(0, 300).map(open)),
    make("h2", { text: "Producers" }),
    table("lanes", ["lane", "producer", "pid", "state", "records", "tokens", "unreleased", "waits", "latest"],
      state.lanes.map((lane) => [lane.lane, lane.producer, lane.pid, lane.state,
        number(lane.committed_records), number(lane.committed_tokens), number(lane.depth_records),
        number(lane.waits), span(lane.newest_age_s)])),
    make("button", { type: "button", text: "Groups that are open", onclick: () => go({ view: "", state: "open" }) }));
}
