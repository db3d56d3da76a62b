#include <algorithm>
#include <array>

#include "cli/atropos_json.hpp"
#include "cli/json_values.hpp"

namespace rollring::cli {
namespace {

constexpr std::int32_t masked = -100;

// One entry a member; the group's other keys are handled one by one.
constexpr std::array<std::string_view, 10> member_lists{"tokens",
                                                        "masks",
                                                        "scores",
                                                        "advantages",
                                                        "ref_logprobs",
                                                        "messages",
                                                        "inference_logprobs",
                                                        "overrides",
                                                        "distill_token_ids",
                                                        "distill_logprobs"};

bool has_any(const Json& value) {
    return std::ranges::any_of(value, [](const Json& element) { return !element.is_null(); });
}

bool same_lengths(const Json& rows) {
    return std::ranges::all_of(
        rows, [&](const Json& row) { return row.is_array() && row.size() == rows.front().size(); });
}

// [G][n][k] with one k for the whole of each member, which is what a column can hold.
bool even_rows(std::string_view key, const Json& members) {
    return std::ranges::all_of(members, [&](const Json& member) {
        return member.is_null() || array(key, member).empty() || same_lengths(member);
    });
}

void read_masks(const Json& value, ParsedRecord& record) {
    const auto tokens = record.values<std::int32_t>(Std::token_ids);
    read_i32("masks", value, record, Std::labels);
    const auto labels = record.values<std::int32_t>(Std::labels);
    if (labels.size() != tokens.size()) {
        bad("masks", fmt::format("has {} entries for {} tokens", labels.size(), tokens.size()));
    }
    auto loss_mask = record.make<std::uint8_t>(Std::loss_mask, labels.size());
    bool told_by_mask = true;
    std::uint32_t prompt = 0;
    for (std::size_t i = 0; i < labels.size(); i++) {
        loss_mask[i] = labels[i] != masked ? 1 : 0;
        told_by_mask &= labels[i] == masked || labels[i] == tokens[i];
        if (prompt == i && labels[i] == masked) prompt++;
    }
    record.meta.n_prompt = prompt;
    if (told_by_mask) record.drop(Std::labels);
}

}  // namespace

// A list with an entry for each member; nothing if it says nothing about any of them.
const Json* AtroposGroup::list(std::string_view key) const {
    const auto found = line_.find(key);
    if (found == line_.end() || extra_.contains(key)) return nullptr;
    return &*found;
}

void AtroposGroup::keep_rest() {
    extra_ = Json::object();
    for (const auto& [key, value] : line_.items()) {
        const bool typed =
            std::ranges::find(member_lists, std::string_view(key)) != member_lists.end();
        if (typed && key != "tokens") {
            const bool empty = value.is_null() || array(key, value).empty() || !has_any(value);
            if (!empty && value.size() != count_) {
                bad(key, fmt::format("has {} entries for {} members", value.size(), count_));
            }
            const bool uneven = !empty && key.starts_with("distill_") && !even_rows(key, value);
            if (empty || uneven) extra_[key] = value;
        } else if (key == "env_id") {
            if (value.is_number_integer()) {
                env_id_ = integer<std::int64_t>(key, value);
            } else {
                extra_[key] = value;
            }
        } else if (key == "generation_params" || key == "group_overrides" || key == "images") {
            if (value.is_null()) extra_[key] = value;
        } else if (!typed) {
            extra_[key] = value;
        }
    }
}

void AtroposGroup::parse(Json line, std::uint64_t line_number) {
    line_ = std::move(line);
    if (!line_.is_object()) throw BadRecord("not an object: a group is {\"tokens\":[[...]],...}");
    const auto tokens = line_.find("tokens");
    if (tokens == line_.end()) bad("tokens", "is missing");
    count_ = static_cast<std::uint32_t>(array("tokens", *tokens).size());
    if (count_ == 0) bad("tokens", "has no members");
    env_id_.reset();
    keep_rest();
    if (const auto id = line_.find("instance_id"); id != line_.end() && !id->is_null()) {
        instance_id_ = string("instance_id", *id);
        if (instance_id_.empty()) bad("instance_id", "is empty");
    } else {
        instance_id_ = fmt::format("atropos/{}/{}", env_id_.value_or(0), line_number);
    }
    if (records_.size() < count_) records_.resize(count_);
    for (std::uint32_t i = 0; i < count_; i++) read_member(i, records_[i]);
}

void AtroposGroup::read_lists(std::uint32_t index, ParsedRecord& record) const {
    const auto of_member = [&](std::string_view key) -> const Json* {
        const Json* values = list(key);
        if (values == nullptr || (*values)[index].is_null()) return nullptr;
        return &(*values)[index];
    };
    if (const Json* value = of_member("masks")) read_masks(*value, record);
    if (const Json* value = of_member("scores")) record.meta.reward = real("scores", *value);
    if (const Json* value = of_member("advantages")) {
        read_f32("advantages", *value, record, Std::advantages);
    }
    if (const Json* value = of_member("ref_logprobs")) {
        read_f32("ref_logprobs", *value, record, Std::ref_logprobs);
    }
    if (const Json* value = of_member("inference_logprobs")) {
        read_f32("inference_logprobs", *value, record, Std::logprobs);
    }
    if (const Json* value = of_member("distill_token_ids")) {
        read_topk_ids("distill_token_ids", *value, record);
    }
    if (const Json* value = of_member("distill_logprobs")) {
        read_topk_logprobs("distill_logprobs", *value, record);
    }
    if (const Json* value = of_member("messages")) {
        record.set_text(Std::messages, dump_json(*value));
    }
    if (const Json* value = of_member("overrides")) {
        record.set_text(Std::overrides, dump_json(*value));
    }
}

void AtroposGroup::read_member(std::uint32_t index, ParsedRecord& record) const {
    record.clear();
    record.meta.origin = atropos;
    record.meta.repetition_id = index;
    record.meta.group_size = count_;
    record.meta.source_id = env_id_;
    record.set_text(Std::instance_id, instance_id_);
    read_i32("tokens", line_["tokens"][index], record, Std::token_ids);
    read_lists(index, record);
    const auto set_json = [&](std::string_view key, Std column) {
        if (const Json* value = list(key)) record.set_text(column, dump_json(*value));
    };
    set_json("generation_params", Std::generation_params);
    set_json("group_overrides", Std::group_overrides);
    if (index == 0) {
        set_json("images", Std::images);
        if (!extra_.empty()) record.set_text(Std::extra, dump_json(extra_));
    }
    check_rows(record);
}

}  // namespace rollring::cli
