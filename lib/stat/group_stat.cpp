#include <fmt/core.h>

#include <limits>
#include <span>

#include "rollring/stat.hpp"

namespace rollring {
namespace {

// Formats ascending numbers as ranges, "1, 4-7", and at most `most` of them.
std::string ranges_of(std::span<const std::uint32_t> numbers, std::size_t most) {
    if (numbers.empty()) return "none";
    std::string text;
    std::size_t ranges = 0;
    for (std::size_t i = 0; i < numbers.size(); i++) {
        if (ranges++ == most) return text + ", ...";
        const std::uint32_t first = numbers[i];
        while (i + 1 < numbers.size() && numbers[i + 1] == numbers[i] + 1) i++;
        text += text.empty() ? "" : ", ";
        text += first == numbers[i] ? fmt::format("{}", first)
                                    : fmt::format("{}-{}", first, numbers[i]);
    }
    return text;
}

}  // namespace

std::string_view name(GroupState state) {
    switch (state) {
        case GroupState::free:
            return "free";
        case GroupState::open:
            return "open";
        case GroupState::ready:
            return "ready";
        case GroupState::leased:
            return "leased";
        case GroupState::unknown:
            break;
    }
    return "unknown";
}

std::string GroupStat::missing_text() const {
    return ranges_of(missing, std::numeric_limits<std::size_t>::max());
}

std::string GroupStat::producers_text() const {
    std::string text;
    for (const std::string& producer : producers) {
        text += (text.empty() ? "" : ", ") + producer;
    }
    return text;
}

std::string GroupStat::to_string() const {
    constexpr std::size_t ranges_told = 8;
    std::string text = fmt::format("{}: {}, {:.1f} s old; {} of {} arrived, {} failed",
                                   instance_id.empty() ? "a group without a name" : instance_id,
                                   rollring::name(state), static_cast<double>(age_ns) * 1e-9,
                                   complete, size, failed);
    if (!missing.empty()) {
        text += fmt::format("; missing: member{} {}", missing.size() == 1 ? "" : "s",
                            ranges_of(missing, ranges_told));
    }
    if (!producers.empty()) text += "; from " + producers_text();
    return text;
}

}  // namespace rollring
