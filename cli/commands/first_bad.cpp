#include "cli/commands/first_bad.hpp"

#include <algorithm>

namespace rollring::cli {

std::string first_bad(const InputOptions& input, const std::vector<std::string>& met) {
    InputOptions whole = input;
    whole.shuffle.reset();
    whole.shard.clear();
    whole.repeat = 1;
    auto source = open_source(whole);
    Draft draft;
    while (source) {
        const Next next = (*source)->next(draft);
        if (next == Next::bad) return (*source)->problem();
        if (next != Next::record) break;
        // A ring's schema may refuse a record that the format allows.
        const std::string here = (*source)->where() + ": ";
        const auto found = std::ranges::find_if(
            met, [&](const std::string& text) { return text.starts_with(here); });
        if (found != met.end()) return *found;
    }
    return met.front();
}

}  // namespace rollring::cli
