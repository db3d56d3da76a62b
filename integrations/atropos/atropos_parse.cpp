#include <sys/random.h>

#include <algorithm>
#include <array>
#include <random>

#include "cli/formats/custom_columns.hpp"
#include "cli/formats/json_columns.hpp"
#include "cli/formats/json_values.hpp"
#include "integrations/atropos/atropos_json.hpp"

namespace rollring::cli {
namespace {

constexpr std::int32_t masked = -100;

void read_masks(JsonValue value, ParsedRecord& record) {
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

using Read = void (*)(std::string_view key, JsonValue value, ParsedRecord& record);

template <Std column>
void read_floats(std::string_view key, JsonValue value, ParsedRecord& record) {
    read_f32(key, value, record, column);
}

template <Std column>
void read_text(std::string_view, JsonValue value, ParsedRecord& record) {
    record.set_text(column, compact(value));
}

// Per-member fields, in reading order.
struct MemberField {
    std::string_view key;
    Read read;
};
constexpr std::array member_fields{
    MemberField{"tokens",
                [](std::string_view key, JsonValue value, ParsedRecord& record) {
                    read_i32(key, value, record, Std::token_ids);
                }},
    MemberField{"masks", [](std::string_view, JsonValue value,
                            ParsedRecord& record) { read_masks(value, record); }},
    MemberField{"scores",
                [](std::string_view key, JsonValue value, ParsedRecord& record) {
                    record.meta.reward = real<double>(key, value);
                }},
    MemberField{"advantages", read_floats<Std::advantages>},
    MemberField{"ref_logprobs", read_floats<Std::ref_logprobs>},
    MemberField{"inference_logprobs", read_floats<Std::logprobs>},
    MemberField{"distill_token_ids",
                [](std::string_view key, JsonValue value, ParsedRecord& record) {
                    read_topk_ids(key, value, record);
                }},
    MemberField{"distill_logprobs",
                [](std::string_view key, JsonValue value, ParsedRecord& record) {
                    read_topk_logprobs(key, value, record);
                }},
    MemberField{"messages", read_text<Std::messages>},
    MemberField{"overrides", read_text<Std::overrides>},
};

// A rectangular [n][k], as a column requires.
bool has_even_rows(std::string_view key, JsonValue rows) {
    if (rows.is_null()) return true;
    count(key, rows);
    std::optional<std::size_t> length;
    for (const JsonValue row : rows.elements()) {
        if (!row.is_array()) return false;
        const std::size_t here = row.count();
        if (length.value_or(here) != here) return false;
        length = here;
    }
    return true;
}

// One group of a line, which becomes records.
class GroupReader {
  public:
    GroupReader(JsonValue group, const Schema& schema, AtroposLine::Uneven uneven)
        : schema_(&schema), uneven_(uneven) {
        if (!group.is_object()) {
            throw BadRecord("not an object: a group is {\"tokens\":[[...]],...}");
        }
        fields_ = cli::members(group);
        const JsonValue* tokens = find("tokens");
        if (tokens == nullptr) bad("tokens", "is missing");
        if (!tokens->is_array()) {
            bad("tokens", fmt::format("must be a list, not {}", excerpt(*tokens)));
        }
        item_ = is_item(*tokens);
        size_ = item_ ? 1 : count("tokens", *tokens);
        if (size_ == 0) bad("tokens", "has no members");
        if (size_ > group_size_max) {
            bad("tokens",
                fmt::format("has {} members, a group has at most {}", size_, group_size_max));
        }
        take_fields();
    }

    [[nodiscard]] std::uint32_t size() const { return size_; }
    // `made_up` names a group without a name of its own.
    void read(std::span<ParsedRecord> records, const std::string& made_up) const;

  private:
    struct List {
        std::string_view key;
        Read read = nullptr;  // null: it is a column of the schema
        std::uint16_t column = 0;
        std::vector<JsonValue> values = {};  // one per member
    };

    [[nodiscard]] const JsonValue* find(std::string_view key) const {
        const auto found = std::ranges::find(fields_, key, &JsonMember::key);
        return found == fields_.end() ? nullptr : &found->value;
    }
    [[nodiscard]] bool is_item(JsonValue tokens) const;
    void take_fields();
    [[nodiscard]] bool take_list(List list, JsonValue value);
    [[nodiscard]] bool fits_tokens(const List& list) const;
    void read_member(std::uint32_t index, ParsedRecord& record) const;

    const Schema* schema_;
    AtroposLine::Uneven uneven_;
    std::vector<JsonMember> fields_;
    bool item_ = false;
    std::uint32_t size_ = 0;
    std::vector<List> lists_;
    std::optional<std::int64_t> env_id_;
    std::string extra_;
};

// A ScoredDataItem has flat lists where a group has lists of lists. A record of `--format rollring`
// has flat tokens, too, but neither masks nor scores.
bool GroupReader::is_item(JsonValue tokens) const {
    const auto elements = tokens.elements();
    const auto first = elements.begin();
    const JsonValue* scores = find("scores");
    if (first == JsonElements::end()) return scores != nullptr && scores->is_number();
    if ((*first).is_array()) return false;
    if (find("masks") != nullptr || scores != nullptr) return true;
    if (find("repetition_id") != nullptr) {
        throw BadRecord(
            "this looks like a rollring record, not like an Atropos ScoredDataGroup: use --format "
            "rollring");
    }
    bad("tokens",
        "must be a list of lists, one per member; a ScoredDataItem also needs 'masks' and "
        "'scores'");
}

// False if the list is empty for every member, or does not fit a column.
bool GroupReader::take_list(List list, JsonValue value) {
    if (value.is_null()) return false;
    if (item_) {
        list.values = {value};
    } else {
        const std::uint32_t given = count(list.key, value);
        for (const JsonValue element : value.elements()) list.values.push_back(element);
        if (std::ranges::all_of(list.values, &JsonValue::is_null)) return false;
        if (given != size_) {
            bad(list.key, fmt::format("has {} entries for {} members", given, size_));
        }
    }
    if (list.key.starts_with("distill_") && !std::ranges::all_of(list.values, [&](JsonValue rows) {
            return has_even_rows(list.key, rows);
        })) {
        return false;
    }
    if (uneven_ == AtroposLine::Uneven::kept && !fits_tokens(list)) return false;
    lists_.push_back(std::move(list));
    return true;
}

// Per-token lists must have one entry per token. Masks are not checked here: training needs them,
// so uneven ones remain an error.
bool GroupReader::fits_tokens(const List& list) const {
    constexpr std::array<std::string_view, 5> by_token{"advantages", "ref_logprobs",
                                                       "inference_logprobs", "distill_token_ids",
                                                       "distill_logprobs"};
    if (std::ranges::find(by_token, list.key) == by_token.end()) return true;
    const std::vector<JsonValue>& tokens = lists_.front().values;
    for (std::size_t i = 0; i < list.values.size(); i++) {
        if (!list.values[i].is_array() || !tokens[i].is_array()) continue;
        if (list.values[i].count() != tokens[i].count()) return false;
    }
    return true;
}

void GroupReader::take_fields() {
    // Tokens come first, because masks depend on them.
    std::vector<std::string_view> taken;
    for (const auto& [key, read] : member_fields) {
        const JsonValue* value = find(key);
        if (value != nullptr && take_list({.key = key, .read = read}, *value)) taken.push_back(key);
    }
    for (const auto& [key, value] : fields_) {
        if (std::ranges::find(taken, std::string_view(key)) != taken.end()) continue;
        const bool for_all =
            key == "generation_params" || key == "group_overrides" || key == "images";
        const auto column = custom_column(*schema_, key);
        if (for_all && !value.is_null()) continue;
        if (column && take_list({.key = key, .column = *column}, value)) continue;
        if (key == "env_id" && value.is_integer()) {
            env_id_ = integer<std::int64_t>(key, value);
        } else {
            append_member(extra_, key, value);
        }
    }
    if (!extra_.empty()) extra_ += '}';
}

void GroupReader::read_member(std::uint32_t index, ParsedRecord& record) const {
    record.clear();
    record.meta.origin = item_ ? atropos_item : atropos;
    record.meta.repetition_id = index;
    record.meta.group_size = size_;
    record.meta.source_id = env_id_;
    for (const List& list : lists_) {
        const JsonValue value = list.values[index];
        if (list.key != "tokens" && value.is_null()) continue;
        if (list.read != nullptr) {
            list.read(list.key, value, record);
        } else {
            read_column(value, *schema_, list.column, record);
        }
    }
    const auto set_json = [&](std::string_view key, Std column) {
        const JsonValue* value = find(key);
        if (value != nullptr && !value->is_null()) record.set_text(column, compact(*value));
    };
    set_json("generation_params", Std::generation_params);
    set_json("group_overrides", Std::group_overrides);
    if (index == 0) {
        set_json("images", Std::images);
        if (!extra_.empty()) record.set_text(Std::extra, extra_);
    }
    check_columns(record, *schema_);
}

void GroupReader::read(std::span<ParsedRecord> records, const std::string& made_up) const {
    for (std::uint32_t i = 0; i < size_; i++) read_member(i, records[i]);
    const JsonValue* id = find("instance_id");
    const bool named = id != nullptr && !id->is_null();
    const std::string name = named ? string("instance_id", *id)
                                   : fmt::format("atropos/{}/{}", env_id_.value_or(0), made_up);
    if (name.empty()) bad("instance_id", "is empty");
    for (ParsedRecord& record : records) record.set_text(Std::instance_id, name);
    if (!item_ || !named) return;
    // Items of one group come on lines of their own, so each must name its member.
    const JsonValue* repetition = find("repetition_id");
    if (repetition == nullptr) {
        bad("repetition_id", "is missing: an item with an instance_id needs its member number");
    }
    Meta& meta = records.front().meta;
    meta.repetition_id = integer<std::uint32_t>("repetition_id", *repetition);
    const JsonValue* size = find("group_size");
    meta.group_size = size != nullptr ? integer_to(group_size_max, "group_size", *size) : 0;
}

// The groups of a line. `listed`: whether the line is a list of groups.
std::vector<JsonValue> groups_of(JsonValue line, bool& listed) {
    std::vector<JsonValue> groups;
    JsonValue list = line;
    if (line.is_object()) {
        const auto fields = members(line);
        const auto find = [&](std::string_view key) {
            return std::ranges::find(fields, key, &JsonMember::key);
        };
        const auto batch = find("batch");
        if (batch == fields.end()) return {line};
        list = batch->value;
        const auto status = find("status");
        if (status != fields.end() && status->value.is_string() &&
            status->value.string() == "error") {
            const auto message = find("message");
            throw BadRecord(fmt::format(
                "an error from the Atropos server instead of a batch: {}",
                message == fields.end() ? "without a message" : excerpt(message->value)));
        }
        if (list.is_null()) return {};  // the server had nothing yet
        count("batch", list);
    }
    if (!list.is_array()) return {line};
    listed = true;
    for (const JsonValue group : list.elements()) {
        if (!group.is_null()) groups.push_back(group);
    }
    return groups;
}

}  // namespace

std::string draw_run_id() {
    std::uint64_t bits = 0;
    if (::getrandom(&bits, sizeof bits, 0) != sizeof bits) {
        std::random_device device;
        bits = std::uint64_t{device()} << 32 | device();
    }
    return fmt::format("{:016x}", bits);
}

void AtroposLine::parse(JsonValue line, const Schema& schema, std::uint64_t line_number) {
    count_ = 0;
    problems_.clear();
    bool listed = false;
    std::size_t place = 0;
    for (const JsonValue group : groups_of(line, listed)) {
        const std::string at = listed ? fmt::format("/{}", place++) : "";
        try {
            const GroupReader reader(group, schema, uneven_);
            const std::size_t size = reader.size();
            if (count_ + size > group_size_max) {
                bad("batch",
                    fmt::format("has more than {} members in all: put each group on its own line",
                                group_size_max));
            }
            if (records_.size() < count_ + size) records_.resize(count_ + size);
            reader.read(std::span(records_).subspan(count_, size),
                        fmt::format("{}/{}{}", run_id_, line_number, at));
            count_ += size;
        } catch (const BadRecord& error) {
            if (!listed) throw;
            problems_.push_back(fmt::format("group {} of the list: {}", place - 1, error.what()));
        }
    }
}

}  // namespace rollring::cli
