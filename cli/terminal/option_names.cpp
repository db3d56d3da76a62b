#include "cli/terminal/option_names.hpp"

#include <algorithm>
#include <array>

namespace rollring::cli {
namespace {

struct Name {
    std::string_view field;
    std::string_view option;
};

constexpr std::array names{
    Name{"lanes", "--lanes"},
    Name{"lane_bytes", "--lane-bytes"},
    Name{"soft_bytes", "--soft-bytes"},
    Name{"journal_records", "--journal-records"},
    Name{"spill_bytes", "--spill-bytes"},
    Name{"overflow_dir", "--overflow"},
    Name{"overflow_bytes", "--overflow-bytes"},
    Name{"group_rows", "--group-rows"},
    Name{"requests", "--requests"},
    Name{"request_bytes", "--request-bytes"},
    Name{"ledger_bytes", "--ledger-bytes"},
    Name{"group_size", "--group-size"},
    Name{"extra", "--extra"},
    Name{"deadline", "--deadline"},
    Name{"min_size", "--min-size"},
    Name{"max_lag", "--max-lag"},
    Name{"batch", "--batch-groups"},
    Name{"no_progress", "--no-progress"},
};

const Name* find(std::string_view word) {
    const auto* found = std::ranges::find(names, word, &Name::field);
    return found == names.end() ? nullptr : found;
}

bool in_word(char c) {
    return (c >= 'a' && c <= 'z') || c == '_';
}

// The word that begins here, or the letter.
std::string_view word_at(std::string_view text) {
    const auto* end = std::ranges::find_if_not(text, in_word);
    const auto size = static_cast<std::size_t>(end - text.begin());
    return text.substr(0, std::max(size, std::size_t{1}));
}

}  // namespace

std::string with_option_names(std::string_view message) {
    constexpr std::string_view of_stash = "stash: ";
    std::string_view rest = message;
    if (rest.starts_with(of_stash)) {
        rest.remove_prefix(of_stash.size());
    } else if (rest.empty() || find(word_at(rest)) == nullptr) {
        return std::string(message);
    }
    // "lanes", "extra", "batch" are English words, too: they count only at the start of a message.
    std::string text;
    while (!rest.empty()) {
        const std::string_view word = word_at(rest);
        const Name* known = find(word);
        const bool is_name = word.find('_') != std::string_view::npos || text.empty();
        text += known != nullptr && is_name ? known->option : word;
        rest.remove_prefix(word.size());
    }
    return text;
}

}  // namespace rollring::cli
