// A group: its members side by side, and the members that it waits for.
import { stateText } from "./groups.js";
import { ask, copyJson, go, make, number, span, versions } from "./util.js";

export async function groupView(id, report) {
  const { group, instance_id: name, members } = await ask("group", { group: id });
  const copy = make("button", { type: "button", id: "copy", text: "Copy as JSON",
    onclick: () => copyJson({ group: id }, copy).catch(report) });
  const facts = [
    `visit ${group.visit}`,
    `reward ${number(group.reward)} ± ${number(group.spread)}`,
    group.flat ? "no variance: its advantages are 0" : "",
    `${number(group.tokens)} tokens`,
    versions(group.version),
    group.environment,
  ].filter((fact) => fact);
  return make("section", { class: "detail", id: "group" },
    make("div", { class: "title" },
      make("span", { class: "name", text: name }),
      make("span", { class: `state ${group.state}`, text: stateText(group) }), copy),
    make("p", { class: "soft", text: facts.join(" · ") }),
    waits(group),
    make("div", { class: "members" },
      ...members.map((member, index) => card(id, member, index)),
      ...group.missing.map((one) => make("div", { class: "member missing",
        text: `member ${one} is missing` }))));
}

function waits(group) {
  if (group.state !== "open" || !group.senders.length) return null;
  return make("p", { class: "soft", text: `unchanged for ${span(group.unchanged_s)}; `
    + `its records are from ${group.senders.join(", ")}` });
}

function card(id, member, index) {
  const advantage = member.advantage;
  return make("button", { type: "button", class: "member", data: { member: member.number },
    title: index < 9 ? `key ${index + 1}` : null,
    onclick: () => go({ group: id, member: String(member.number) }) },
  make("div", { class: "numbers" },
    make("b", { text: `#${member.number}` }),
    make("span", { text: `reward ${number(member.reward)}` }),
    make("span", { text: `adv ${advantage > 0 ? "+" : ""}${number(advantage)}` }),
    make("span", { text: `${number(member.tokens)} tokens` }),
    make("span", { class: "soft", text: [member.status === "completed" ? "" : member.status,
      versions(member.version), member.producer].filter((one) => one).join(" · ") })),
  make("div", { class: "preview", text: member.preview }));
}
