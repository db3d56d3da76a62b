#include <algorithm>
#include <array>
#include <vector>

#include "cli/formats/custom_columns.hpp"
#include "cli/formats/json_columns.hpp"
#include "cli/formats/json_values.hpp"
#include "cli/formats/rollring_json.hpp"
#include "cli/formats/token_keys.hpp"
#include "rollring/trajectory.hpp"

namespace rollring::cli {
namespace {

// Reads one key. False: the value is a default, which the header cannot distinguish from an absent
// one.
using Read = bool (*)(std::string_view key, JsonValue value, ParsedRecord& record);

struct Field {
    std::string_view key;
    Read read;
};

template <auto member>
bool read_header(std::string_view key, JsonValue value, ParsedRecord& record) {
    using T = std::remove_reference_t<decltype(record.meta.*member)>;
    if constexpr (std::is_same_v<T, bool>) {
        record.meta.*member = boolean(key, value);
    } else {
        record.meta.*member = integer<T>(key, value);
    }
    return record.meta.*member != Meta{}.*member;
}

bool read_group_size(std::string_view key, JsonValue value, ParsedRecord& record) {
    record.meta.group_size = integer_to(group_size_max, key, value);
    return record.meta.group_size != 0;
}

template <Std column>
bool read_floats(std::string_view key, JsonValue value, ParsedRecord& record) {
    read_f32(key, value, record, column);
    return true;
}

template <Std column>
bool read_integers(std::string_view key, JsonValue value, ParsedRecord& record) {
    read_i32(key, value, record, column);
    return true;
}

template <Std column>
bool read_string(std::string_view key, JsonValue value, ParsedRecord& record) {
    record.set_text(column, string(key, value));
    return true;
}

template <Std column>
bool read_json(std::string_view, JsonValue value, ParsedRecord& record) {
    record.set_text(column, compact(value));
    return true;
}

bool read_id(std::string_view key, JsonValue value, ParsedRecord& record) {
    if (string(key, value).empty()) bad(key, "is empty");
    return read_string<Std::instance_id>(key, value, record);
}

bool read_repetition(std::string_view key, JsonValue value, ParsedRecord& record) {
    record.meta.repetition_id = integer<std::uint32_t>(key, value);
    return true;  // always written, even if it is 0
}

bool read_reward(std::string_view key, JsonValue value, ParsedRecord& record) {
    record.meta.reward = real<double>(key, value);
    return true;
}

bool read_source_id(std::string_view key, JsonValue value, ParsedRecord& record) {
    record.meta.source_id = integer<std::int64_t>(key, value);
    return true;
}

bool read_status(std::string_view key, JsonValue value, ParsedRecord& record) {
    const auto status = parse_status(string(key, value));
    if (!status) bad(key, fmt::format("is {}, which is not a status", excerpt(value)));
    record.meta.status = *status;
    return *status != Meta{}.status;
}

// A number, runs [[start token, version], ...], or a number per token, which becomes runs.
bool read_version(std::string_view key, JsonValue value, ParsedRecord& record) {
    if (!value.is_array()) {
        const auto version = integer<std::int64_t>(key, value);
        record.meta.policy_version_min = version;
        record.meta.policy_version_max = version;
        return version != -1;
    }
    std::vector<std::int64_t> runs;
    const std::uint32_t given = count(key, value);
    const bool per_token = given != 0 && !(*value.elements().begin()).is_array();
    for (const JsonValue run : value.elements()) {
        if (per_token) {
            runs.push_back(integer<std::int64_t>(key, run));
            continue;
        }
        if (!run.is_array() || run.count() != 2) bad(key, "must hold runs of [start, version]");
        for (const JsonValue number : run.elements()) {
            runs.push_back(integer<std::int64_t>(key, number));
        }
    }
    if (per_token) {
        record.versions_of_tokens = given;
        runs = version_runs(runs);
    }
    const auto rows = static_cast<std::uint32_t>(runs.size() / 2);
    std::ranges::copy(runs,
                      record.make<std::int64_t>(Std::policy_version, {rows, 2, 0, 0}, 2).begin());
    return true;
}

bool read_experts_field(std::string_view key, JsonValue value, ParsedRecord& record) {
    read_experts(key, value, record);
    return true;
}

bool read_mask_field(std::string_view key, JsonValue value, ParsedRecord& record) {
    read_mask(key, value, record);
    return true;
}

template <bool (*read_rows)(std::string_view, JsonValue, ParsedRecord&)>
bool read_topk(std::string_view key, JsonValue value, ParsedRecord& record) {
    if (!read_rows(key, value, record))
        bad(key, "must have the same number of entries for each token");
    return true;
}

constexpr std::array fields{
    Field{"instance_id", read_id},
    Field{"repetition_id", read_repetition},
    Field{"group_size", read_group_size},
    Field{"source", read_string<Std::source>},
    Field{"n_prompt", read_header<&Meta::n_prompt>},
    Field{"reward", read_reward},
    Field{"visit", read_header<&Meta::visit>},
    Field{"attempt", read_header<&Meta::attempt>},
    Field{"subsequence_index", read_header<&Meta::subsequence_index>},
    Field{"last_subsequence", read_header<&Meta::last_subsequence>},
    Field{"source_id", read_source_id},
    Field{"status", read_status},
    Field{"policy_version", read_version},
    Field{"policy_version_min", read_header<&Meta::policy_version_min>},
    Field{"policy_version_max", read_header<&Meta::policy_version_max>},
    Field{"created_ns", read_header<&Meta::created_ns>},
    Field{"finished_ns", read_header<&Meta::finished_ns>},
    Field{"loss_mask", read_mask_field},
    Field{"logprobs", read_floats<Std::logprobs>},
    Field{"advantages", read_floats<Std::advantages>},
    Field{"ref_logprobs", read_floats<Std::ref_logprobs>},
    Field{"token_rewards", read_floats<Std::token_rewards>},
    Field{"routed_experts", read_experts_field},
    Field{"topk_ids", read_topk<read_topk_ids>},
    Field{"topk_logprobs", read_topk<read_topk_logprobs>},
    Field{"labels", read_integers<Std::labels>},
    Field{"messages", read_json<Std::messages>},
    Field{"generation_params", read_json<Std::generation_params>},
    Field{"overrides", read_json<Std::overrides>},
    Field{"group_overrides", read_json<Std::group_overrides>},
    Field{"images", read_json<Std::images>},
    Field{"user", read_json<Std::user>},
};

// The header gets the range over the generated tokens.
void take_versions(ParsedRecord& record) {
    constexpr std::string_view key = "policy_version";
    const std::uint32_t n_tokens = record.rows(Std::token_ids);
    if (record.versions_of_tokens.value_or(n_tokens) != n_tokens) {
        bad(key, fmt::format("has {} numbers, but the record has {} tokens",
                             *record.versions_of_tokens, n_tokens));
    }
    Meta& meta = record.meta;
    const auto range =
        version_range(record.values<std::int64_t>(Std::policy_version), n_tokens, meta.n_prompt);
    if (!range.problem.empty()) bad(key, range.problem);
    if (range.max < 0) return;
    const bool first = meta.policy_version_max == -1;
    meta.policy_version_min = first ? range.min : std::min(meta.policy_version_min, range.min);
    meta.policy_version_max = std::max(meta.policy_version_max, range.max);
}

// All missing keys are reported at once.
void check_keys(const ParsedRecord& record, const TokenKeys& tokens) {
    const Status status = record.meta.status;
    const bool promises = status == Status::completed || status == Status::truncated;
    const bool lacks_tokens = promises && !record.has(Std::token_ids);
    const bool named = record.has(Std::instance_id) || (lacks_tokens && tokens.names_prompt());
    if (named && !lacks_tokens) return;
    std::string missing = named ? "" : "'instance_id'";
    if (lacks_tokens) missing += (named ? "" : ", ") + tokens.missing();
    const char* verb = missing.contains(',') ? "are" : "is";
    if (tokens.only_text()) {
        throw BadRecord(fmt::format(
            "{} {} missing: the record is text. In an environment with the Python package, python3 "
            "-m rollring.rollouts FILE --tokenizer PATH makes tokens of it and prints lines for "
            "'rollring produce RING --input -'",
            missing, verb));
    }
    std::string hint = tokens.meant();
    // The tokens are there, without the number of those that the group's members have in common.
    if (!named && record.rows(Std::token_ids) != 0) hint = "or 'n_prompt', which names the prompt";
    throw BadRecord(fmt::format("{} {} missing{}: `rollring formats` shows the accepted records",
                                missing, verb, hint.empty() ? "" : " (" + hint + ")"));
}

void check_prompt(const ParsedRecord& record) {
    const std::uint32_t n_tokens = record.rows(Std::token_ids);
    if (record.meta.n_prompt <= n_tokens) return;
    bad("n_prompt",
        fmt::format("is {}, but the record has {} tokens", record.meta.n_prompt, n_tokens));
}

// Atropos' lines do not hold one record each.
void refuse_atropos(JsonValue line) {
    constexpr std::string_view hint =
        "this looks like an Atropos ScoredDataGroup, not like a rollring record: use --format "
        "atropos";
    if (line.is_array() && line.count() != 0 && (*line.elements().begin()).is_object()) {
        throw BadRecord(std::string(hint));
    }
    if (!line.is_object()) throw BadRecord("not an object: a record is {\"instance_id\":...}");
    bool has_id = false;
    bool groups = false;
    for (const auto& [key, value] : line.members()) {
        has_id |= key == "repetition_id" || key == "instance_id";
        groups |= key == "batch" || (key == "masks" && value.is_array());
        if (key != "tokens" || !value.is_array()) continue;
        const auto tokens = value.elements();
        groups |= tokens.begin() != JsonElements::end() && (*tokens.begin()).is_array();
    }
    if (groups && !has_id) throw BadRecord(std::string(hint));
}

}  // namespace

bool is_rollring_key(std::string_view key) {
    return std::ranges::find(fields, key, &Field::key) != fields.end() || is_token_key(key);
}

std::span<const std::string_view> rollring_keys() {
    static constexpr auto names = [] {
        std::array<std::string_view, fields.size()> all;
        std::ranges::transform(fields, all.begin(), &Field::key);
        return all;
    }();
    return names;
}

void parse_rollring(JsonValue line, const Schema& schema, ParsedRecord& record, KeyWatch* watch) {
    record.clear();
    record.meta.origin = rollring_json;
    refuse_atropos(line);
    std::string extra;
    const auto found = members(line);
    const TokenKeys tokens(found);
    tokens.read(record);
    for (const auto& [key, value] : found) {
        const auto* field = std::ranges::find(fields, std::string_view(key), &Field::key);
        const bool given = !value.is_null();
        if (given && tokens.owns(key)) continue;
        const auto column = field == fields.end() ? custom_column(schema, key) : std::nullopt;
        if (column && given) {
            read_column(value, schema, *column, record);
        } else if (is_score(found, key, value)) {
            read_reward(key, value, record);
            if (watch != nullptr) watch->see_score();
        } else if (field == fields.end() || !given || !field->read(key, value, record)) {
            append_member(extra, key, value);
            if (watch != nullptr && field == fields.end() && given) watch->see(key);
        }
    }
    tokens.read_generated(record);
    if (!record.has(Std::instance_id)) name_instance(found, record);
    if (record.has(Std::token_ids)) check_prompt(record);
    check_keys(record, tokens);
    check_prompt(record);
    check_columns(record, schema);
    take_versions(record);
    if (watch != nullptr) watch->judge(found, record);
    if (!extra.empty()) record.set_text(Std::extra, extra + "}");
}

Membership membership_of(JsonValue line) {
    if (!line.is_object()) throw BadRecord("not an object");
    const auto found = members(line);
    const auto find = [&](std::string_view key) -> const JsonValue* {
        const auto member = std::ranges::find(found, key, &JsonMember::key);
        return member == found.end() || member->value.is_null() ? nullptr : &member->value;
    };
    Membership its;
    if (const JsonValue* id = find("instance_id")) {
        its.instance_id = string("instance_id", *id);
    } else {  // its tokens may give it a name
        ParsedRecord record;
        parse_rollring(line, Schema::standard(), record);
        its.instance_id = record.text(Std::instance_id);
    }
    if (const auto* visit = find("visit")) its.visit = integer<std::uint64_t>("visit", *visit);
    if (const auto* number = find("repetition_id")) {
        its.repetition = integer<std::uint32_t>("repetition_id", *number);
    }
    if (const auto* index = find("subsequence_index")) {
        its.begins = integer<std::uint16_t>("subsequence_index", *index) == 0;
    }
    if (const auto* size = find("group_size")) {
        its.sized = integer_to(group_size_max, "group_size", *size) != 0;
    }
    return its;
}

}  // namespace rollring::cli
