#include "refusals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace rollring::weights {

RefusalLine* Refusals::line_of(std::string_view name) const {
    auto* const found = std::ranges::find_if(
        page_->lines, [&](const RefusalLine& line) { return line.name.load() == name; });
    return found == std::end(page_->lines) ? nullptr : found;
}

void Refusals::note(std::string_view name, std::uint32_t pid, std::string_view why) {
    const std::scoped_lock lock(mutex_);
    RefusalLine* line = line_of(name);
    if (line == nullptr) line = line_of("");
    if (line == nullptr) line = &page_->lines[noted_ % refusals_kept];
    noted_++;
    line->name.store("");
    line->why.store(why);
    poke(line->pid, pid);
    line->name.store(name);
}

void Refusals::forget(std::string_view name) {
    const std::scoped_lock lock(mutex_);
    if (RefusalLine* line = line_of(name)) line->name.store("");
}

void Refusals::clear() {
    const std::scoped_lock lock(mutex_);
    for (RefusalLine& line : page_->lines) line.name.store("");
}

std::string Refusals::text() const {
    const std::scoped_lock lock(mutex_);
    std::string all;
    for (const RefusalLine& line : page_->lines) {
        const std::string name = line.name.load();
        if (!name.empty()) all += fmt::format("; '{}' refused: {}", name, line.why.load());
    }
    return all;
}

}  // namespace rollring::weights
