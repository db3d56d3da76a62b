#include <algorithm>
#include <set>

#include "cli/formats/custom_columns.hpp"
#include "cli/formats/json_columns.hpp"
#include "integrations/atropos/atropos_json.hpp"

namespace rollring::cli {
namespace {

constexpr std::size_t member_depth = 2;  // of per-member values: in a list, in the line

// A producer's JSON column; its name is added to `blamed` if it is invalid.
std::optional<std::string> json_of(const TrajectoryView& record, Std which, std::string& blamed) {
    if (record.find(static_cast<std::uint16_t>(which)) == nullptr) return std::nullopt;
    std::string text;
    if (!append_json_text(text, record.text(which), member_depth)) {
        blamed += blamed.empty() ? "'" : "', '";
        blamed += Schema::standard().columns()[static_cast<std::size_t>(which)].name;
    }
    return text;
}

std::optional<std::string> column_of(const TrajectoryView& record, Std which) {
    const ColumnView* column = record.find(static_cast<std::uint16_t>(which));
    if (column == nullptr) return std::nullopt;
    std::string text;
    append_column(text, *column);
    return text;
}

// The labels if there are any, otherwise each token's id or -100.
std::optional<std::string> masks_of(const TrajectoryView& record) {
    if (auto labels = column_of(record, Std::labels)) return labels;
    if (record.find(static_cast<std::uint16_t>(Std::loss_mask)) == nullptr) return std::nullopt;
    const auto tokens = record.token_ids();
    const auto mask = record.loss_mask();
    std::string text = "[";
    for (std::size_t i = 0; i < tokens.size() && i < mask.size(); i++) {
        if (i != 0) text += ',';
        append_element(text, mask[i] != 0 ? tokens[i] : std::int32_t{-100});
    }
    return text += ']';
}

// Builds one line, key by key.
struct GroupLine {
    std::string* out;
    AtroposGroups::Absent absent;
    std::vector<std::string_view> written = {};
    std::vector<std::string_view> nulls = {};

    std::string& key(std::string_view name) {
        *out += written.empty() ? "{\"" : ",\"";
        *out += name;
        *out += "\":";
        written.push_back(name);
        return *out;
    }
    void text(std::string_view name, const std::optional<std::string>& value) {
        if (value) {
            key(name) += *value;
        } else {
            none(name);
        }
    }
    void none(std::string_view name) {
        if (absent == AtroposGroups::Absent::null) nulls.push_back(name);
    }
    // Ends the line: nulls for absent keys, except keys of `extra`.
    void finish(std::string_view extra) {
        const auto others = extra.empty() ? std::vector<JsonMember>() : parse_json(extra).members();
        for (const std::string_view name : nulls) {
            if (std::ranges::find(others, name, &JsonMember::key) == others.end()) {
                key(name) += "null";
            }
        }
    }
};

}  // namespace

AtroposGroups::Member AtroposGroups::read_member(const TrajectoryView& record, const Schema& schema,
                                                 std::string& blamed) {
    Member member;
    member.place = {record.meta().repetition_id.value_or(0), record.meta().subsequence_index};
    member.last = record.meta().last_subsequence;
    member.fields[tokens] = column_of(record, Std::token_ids);
    member.fields[masks] = masks_of(record);
    if (record.meta().reward) {
        append_number(member.fields[scores].emplace(), *record.meta().reward, Integral::with_point);
    }
    member.fields[advantages] = column_of(record, Std::advantages);
    member.fields[ref_logprobs] = column_of(record, Std::ref_logprobs);
    member.fields[messages] = json_of(record, Std::messages, blamed);
    member.fields[inference_logprobs] = column_of(record, Std::logprobs);
    member.fields[overrides] = json_of(record, Std::overrides, blamed);
    member.fields[distill_token_ids] = column_of(record, Std::topk_ids);
    member.fields[distill_logprobs] = column_of(record, Std::topk_logprobs);
    for (const ColumnView& column : record.columns()) {
        if (column.column < static_cast<std::uint16_t>(Std::count)) continue;
        const Column& declared = schema.columns()[column.column];
        append_custom(member.custom[declared.name], column, declared);
    }
    return member;
}

void AtroposGroups::write(Group& group, std::string& out) const {
    std::ranges::sort(group.members, {}, &Member::place);
    GroupLine line{&out, absent_};
    // A list with entry(member) for each member, if any member has one.
    const auto list_by = [&](std::string_view name, const auto& entry) {
        if (!std::ranges::any_of(group.members,
                                 [&](const Member& m) { return entry(m) != nullptr; })) {
            return line.none(name);
        }
        std::string& text = line.key(name);
        if (!group.item) text += '[';
        for (std::size_t i = 0; i < group.members.size(); i++) {
            if (i != 0) text += ',';
            const std::string* value = entry(group.members[i]);
            text += value != nullptr ? *value : "null";
        }
        if (!group.item) text += ']';
    };
    const auto list = [&](std::string_view name, Field field) {
        list_by(name, [field](const Member& member) {
            return member.fields[field] ? &*member.fields[field] : nullptr;
        });
    };
    list("tokens", tokens);
    list("masks", masks);
    list("scores", scores);
    list("advantages", advantages);
    list("ref_logprobs", ref_logprobs);
    list("messages", messages);
    line.text("generation_params", group.generation_params);
    list("inference_logprobs", inference_logprobs);
    list("overrides", overrides);
    line.text("group_overrides", group.group_overrides);
    line.text("images", group.images);
    if (group.env_id) {
        append_number(line.key("env_id"), *group.env_id);
    } else {
        line.none("env_id");
    }
    list("distill_token_ids", distill_token_ids);
    list("distill_logprobs", distill_logprobs);
    std::set<std::string> custom;
    for (const Member& member : group.members) {
        for (const auto& [name, text] : member.custom) custom.insert(name);
    }
    for (const std::string& name : custom) {
        list_by(name, [&](const Member& member) {
            const auto found = member.custom.find(name);
            return found == member.custom.end() ? nullptr : &found->second;
        });
    }
    const bool object = !group.extra.empty() && append_extra(out, group.extra, line.written);
    line.finish(object ? group.extra : "");
    out += "}\n";
}

std::string AtroposGroups::add(const TrajectoryView& record, const Schema& schema,
                               std::string& out) {
    std::string blamed;
    Member member = read_member(record, schema, blamed);
    const bool item = record.meta().origin == atropos_item;
    const auto has_member = [&](const Group& group) {
        return std::ranges::any_of(
            group.members, [&](const Member& known) { return known.place == member.place; });
    };
    // The same key may occur twice: by --repeat of an equal id, or after a crash.
    auto [at, end] = open_.equal_range(record.group_key());
    const bool numbered = record.meta().repetition_id.has_value();
    while (at != end && (item || (numbered && has_member(at->second)))) ++at;
    if (at == end) {
        at = open_.emplace(record.group_key(), Group{});
        at->second.arrival = arrivals_++;
    }
    Group& group = at->second;
    if (!numbered) {  // in the order of arrival
        member.place.first = static_cast<std::uint32_t>(group.members.size());
    }
    group.item = item;
    group.group_size = item ? 1 : record.meta().group_size;
    group.env_id = record.meta().source_id;
    group.generation_params = json_of(record, Std::generation_params, blamed);
    group.group_overrides = json_of(record, Std::group_overrides, blamed);
    if (item || member.place == std::pair<std::uint32_t, std::uint16_t>()) {
        group.images = json_of(record, Std::images, blamed);
        group.extra = record.text(Std::extra);
        std::string unused;
        if (!group.extra.empty() && !append_extra(unused, group.extra, {})) {
            blamed += blamed.empty() ? "'extra" : "', 'extra";
        }
    }
    group.members.push_back(std::move(member));
    const auto whole = std::ranges::count_if(group.members, &Member::last);
    if (std::cmp_greater_equal(whole, group.group_size)) {
        write(group, out);
        open_.erase(at);
    }
    return written_as_strings(record, blamed);
}

std::uint64_t AtroposGroups::finish(std::string& out) {
    std::vector<Group*> left;
    left.reserve(open_.size());
    for (auto& [key, group] : open_) left.push_back(&group);
    std::ranges::sort(left, {}, &Group::arrival);
    for (Group* group : left) write(*group, out);
    const std::uint64_t count = left.size();
    open_.clear();
    return count;
}

}  // namespace rollring::cli
