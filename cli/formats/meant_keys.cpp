#include "cli/formats/meant_keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "cli/formats/rollring_json.hpp"
#include "cli/terminal/nearest.hpp"

namespace rollring::cli {
namespace {

// A file with more keys than this uses names of things as its keys.
constexpr std::size_t keys_most = 256;
constexpr std::string_view score_key = "score";

constexpr std::array<std::string_view, 4> reward_words{"score", "scores", "return", "returns"};
constexpr std::array<std::string_view, 5> size_words{"groupn", "numgenerations", "ngenerations",
                                                     "numsamples", "nsamples"};
// Keys of other programs beside their tokens: similar to names of ours, with another meaning.
constexpr std::array<std::string_view, 1> other_words{"advantage"};

// Without the differences between spellings of one name.
std::string letters_of(std::string_view key) {
    std::string letters;
    for (const char c : key) {
        if (c != '_' && c != '-' && c != ' ') {
            letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        }
    }
    return letters;
}

bool is_among(const auto& words, std::string_view word) {
    return std::ranges::find(words, word) != words.end();
}

bool is_given(std::span<const JsonMember> members, std::string_view key) {
    return std::ranges::any_of(members, [&](const JsonMember& member) {
        return member.key == key && !member.value.is_null();
    });
}

// The field that a key may mean and that the record lacks; empty if there is none.
std::string field_meant(std::string_view key, std::span<const JsonMember> members,
                        const ParsedRecord& record) {
    const std::string letters = letters_of(key);
    if (is_among(reward_words, letters) || letters.contains("reward")) {
        return record.meta.reward ? "" : "reward";
    }
    if (letters.contains("logprob")) return record.has(Std::logprobs) ? "" : "logprobs";
    if (letters.ends_with("mask") && letters != "attentionmask") {
        return record.has(Std::loss_mask) ? "" : "loss_mask";
    }
    if (is_among(size_words, letters)) return record.meta.group_size != 0 ? "" : "group_size";
    if (is_among(other_words, key)) return {};
    std::vector<std::string> lacking;
    for (const std::string_view name : rollring_keys()) {
        if (letters_of(name) == letters) return is_given(members, name) ? "" : std::string(name);
        if (!is_given(members, name)) lacking.emplace_back(name);
    }
    // In a short word, one letter makes another word.
    constexpr std::size_t letters_least = 6;
    return key.size() < letters_least ? "" : nearest(key, lacking, 1);
}

}  // namespace

bool is_score(std::span<const JsonMember> members, std::string_view key, JsonValue value) {
    return key == score_key && value.is_number() && !is_given(members, "reward");
}

void KeyWatch::see(std::string_view key) {
    if (seen_.size() >= keys_most || seen_.contains(key)) return;
    seen_.emplace(key);
    fresh_.emplace_back(key);
}

void KeyWatch::judge(std::span<const JsonMember> members, const ParsedRecord& record) {
    for (const std::string& key : fresh_) {
        const std::string name = field_meant(key, members, record);
        if (!name.empty()) told_.push_back(fmt::format("'{}' (did you mean '{}'?)", key, name));
    }
    fresh_.clear();
}

std::string KeyWatch::text() const {
    std::string said = score_ ? "'score' is read as the reward" : "";
    if (told_.empty()) return said;
    if (!said.empty()) said += "; ";
    return said + fmt::format("kept in `extra`: {}", fmt::join(told_, ", "));
}

}  // namespace rollring::cli
