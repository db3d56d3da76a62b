#include "cli/formats/token_keys.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cli/formats/json_values.hpp"

namespace rollring::cli {
namespace {

constexpr std::array<std::string_view, 3> whole_keys{"tokens", "token_ids", "input_ids"};
constexpr std::string_view prompt_key = "prompt_ids";
constexpr std::array<std::string_view, 2> generated_keys{"completion_ids", "response_ids"};
// Keys of text, and those for the same part as tokens.
struct TextKey {
    std::string_view key;
    std::string_view of_tokens;
};
constexpr std::array text_keys{TextKey{"messages", "token_ids"},
                               TextKey{"prompt", "prompt_ids"},
                               TextKey{"completion", "completion_ids"},
                               TextKey{"response", "response_ids"},
                               TextKey{"input", "prompt_ids"},
                               TextKey{"output", "completion_ids"},
                               TextKey{"text", "token_ids"},
                               TextKey{"conversation", "token_ids"}};
constexpr std::array<std::string_view, 2> id_keys{"example_id", "prompt_id"};

// Keys of generated tokens alone, by the names of other programs.
struct Generated {
    std::string_view key;
    Std column;
};
constexpr std::array generated_columns{
    Generated{"completion_mask", Std::loss_mask}, Generated{"response_mask", Std::loss_mask},
    Generated{"completion_logprobs", Std::logprobs}, Generated{"response_logprobs", Std::logprobs}};
// These may have a row for each token, or for each generated one.
constexpr std::array padded{Std::loss_mask, Std::logprobs, Std::ref_logprobs, Std::advantages,
                            Std::token_rewards};

template <class Keys>
const JsonMember* one_of(std::span<const JsonMember> members, const Keys& keys) {
    const JsonMember* found = nullptr;
    for (const JsonMember& member : members) {
        if (member.value.is_null() || std::ranges::find(keys, member.key) == keys.end()) continue;
        if (found != nullptr) bad(member.key, fmt::format("and '{}' are both present", found->key));
        found = &member;
    }
    return found;
}

bool begins_with(JsonValue value, auto of_that_kind) {
    return value.is_array() && value.count() != 0 && of_that_kind(*value.elements().begin());
}

const Generated* generated_column(std::string_view key) {
    const auto* found = std::ranges::find(generated_columns, key, &Generated::key);
    return found == generated_columns.end() ? nullptr : found;
}

}  // namespace

TokenKeys::TokenKeys(std::span<const JsonMember> members)
    : members_(members), whole_(one_of(members, whole_keys)) {
    // Tokens under our own keys are all of them, regardless of other keys of the line.
    if (whole_ != nullptr && whole_->key != "input_ids") return;
    prompt_ = one_of(members, std::array{prompt_key});
    generated_ = one_of(members, generated_keys);
    if (whole_ != nullptr && generated_ != nullptr) {
        bad(whole_->key, fmt::format("and '{}' are both present: name all tokens 'token_ids', or "
                                     "the prompt's '{}'",
                                     generated_->key, prompt_key));
    }
}

bool TokenKeys::owns(std::string_view key) const {
    if (whole_ != nullptr) return key == whole_->key;
    if (!joined()) return false;
    return key == prompt_key || key == generated_->key || generated_column(key) != nullptr;
}

void TokenKeys::read(ParsedRecord& record) const {
    if (whole_ != nullptr) return read_i32(whole_->key, whole_->value, record, Std::token_ids);
    if (!joined() || prompt_ == nullptr) return;
    const std::uint32_t n_prompt = count(prompt_->key, prompt_->value);
    const std::uint32_t generated = count(generated_->key, generated_->value);
    auto out = record.make<std::int32_t>(Std::token_ids, std::size_t{n_prompt} + generated);
    std::size_t at = 0;
    for (const JsonMember* part : {prompt_, generated_}) {
        for (const JsonValue token : part->value.elements()) {
            out[at++] = integer<std::int32_t>(part->key, token);
        }
    }
    record.meta.n_prompt = n_prompt;
}

void TokenKeys::read_generated(ParsedRecord& record) const {
    if (!joined() || prompt_ == nullptr) return;
    const std::uint32_t n_prompt = count(prompt_->key, prompt_->value);
    if (record.meta.n_prompt != n_prompt) {
        bad("n_prompt", fmt::format("is {}, but '{}' has {} tokens", record.meta.n_prompt,
                                    prompt_key, n_prompt));
    }
    for (const JsonMember& member : members_) {
        const Generated* its = generated_column(member.key);
        if (its == nullptr || member.value.is_null()) continue;
        if (record.has(its->column)) {
            bad(member.key, "repeats a column that the record has under its own name");
        }
        if (its->column == Std::loss_mask) {
            read_mask(member.key, member.value, record);
        } else {
            read_f32(member.key, member.value, record, its->column);
        }
        if (record.rows(its->column) != record.rows(Std::token_ids) - n_prompt) {
            bad(member.key,
                fmt::format("has {} entries for {} generated tokens", record.rows(its->column),
                            record.rows(Std::token_ids) - n_prompt));
        }
    }
    const std::uint32_t generated = record.rows(Std::token_ids) - n_prompt;
    for (const Std column : padded) {
        if (record.has(column) && record.rows(column) == generated) {
            record.pad_front(column, n_prompt);
        }
    }
}

bool TokenKeys::names_prompt() const {
    return joined() || only_text() ||
           (prompt_ != nullptr && prompt_->value.is_array() && prompt_->value.count() != 0);
}

std::string TokenKeys::missing() const {
    if (whole_ != nullptr || (joined() && prompt_ != nullptr)) return {};
    if (joined()) return fmt::format("'{}'", prompt_key);
    return prompt_ != nullptr ? "'completion_ids'" : "'token_ids'";
}

bool TokenKeys::only_text() const {
    if (whole_ != nullptr || prompt_ != nullptr || joined()) return false;
    return std::ranges::any_of(members_, [](const JsonMember& member) {
        return std::ranges::find(text_keys, member.key, &TextKey::key) != text_keys.end() &&
               (member.value.is_string() ||
                begins_with(member.value, [](JsonValue one) { return one.is_object(); }));
    });
}

std::string TokenKeys::meant() const {
    if (whole_ != nullptr || prompt_ != nullptr || joined()) return {};
    for (const JsonMember& member : members_) {
        const auto* known = std::ranges::find(text_keys, member.key, &TextKey::key);
        const bool holds_tokens =
            begins_with(member.value, [](JsonValue one) { return one.is_integer(); });
        if (known == text_keys.end() || !holds_tokens) continue;
        return fmt::format("'{}' holds token ids: did you mean '{}'?", member.key,
                           known->of_tokens);
    }
    return {};
}

bool name_instance(std::span<const JsonMember> members, ParsedRecord& record) {
    for (const std::string_view key : id_keys) {
        const auto found = std::ranges::find(members, key, &JsonMember::key);
        if (found == members.end() || found->value.is_null()) continue;
        const bool is_text = found->value.is_string() && !found->value.string().empty();
        if (!is_text && !found->value.is_integer()) bad(key, "is neither text nor an integer");
        record.set_text(Std::instance_id,
                        is_text ? found->value.string() : std::string(found->value.text()));
        return true;
    }
    const std::uint32_t n_prompt = record.meta.n_prompt;
    const auto tokens = record.values<std::int32_t>(Std::token_ids);
    if (n_prompt == 0 || n_prompt > tokens.size()) return false;
    // The Python package makes the same name (rollring/rollouts).
    std::uint64_t sum = 0;
    for (const std::int32_t token : tokens.first(n_prompt)) {
        sum = sum * 0x9e3779b97f4a7c15U + static_cast<std::uint32_t>(token) + 1;
    }
    record.set_text(Std::instance_id, fmt::format("prompt/{:016x}", sum));
    return true;
}

bool is_token_key(std::string_view key) {
    const auto among = [&](const auto& keys) { return std::ranges::find(keys, key) != keys.end(); };
    return among(whole_keys) || key == prompt_key || among(generated_keys) || among(id_keys) ||
           generated_column(key) != nullptr;
}

}  // namespace rollring::cli
