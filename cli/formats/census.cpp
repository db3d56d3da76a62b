#include "cli/formats/census.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace rollring::cli {

std::uint32_t Census::take(std::uint64_t place, const Membership& record) {
    const auto [found, is_new] =
        by_name_.try_emplace(fmt::format("{}/{}", record.visit, record.instance_id),
                             static_cast<std::uint32_t>(groups_.size()));
    if (is_new) groups_.emplace_back();
    Group& group = groups_[found->second];
    group.sized |= record.sized;
    if (record.repetition) {
        group.own = true;
        group.last = *record.repetition;
        group.highest = std::max(group.highest, group.last);
        const std::uint64_t name = std::uint64_t{found->second} << 32 | group.last;
        if (own_numbers_.insert(name).second) group.members++;
    } else {
        group.counted = true;
        if (record.begins || group.members == 0) group.last = group.members++;
    }
    if (records_.size() <= place) records_.resize(place + 1, {none, 0});
    records_[place] = {found->second, group.last};
    return group.last;
}

std::uint32_t Census::number(std::uint64_t place) const {
    return place < records_.size() ? records_[place].number : 0;
}

bool Census::mixed(std::uint64_t place) const {
    if (place >= records_.size() || records_[place].group == none) return false;
    const Group& group = groups_[records_[place].group];
    return group.own && group.counted;
}

std::optional<std::uint32_t> Census::common_size() const {
    std::optional<std::uint32_t> size;
    for (const Group& group : groups_) {
        if (group.sized) continue;
        if (size.value_or(group.members) != group.members) return std::nullopt;
        if (group.own && group.highest != group.members - 1) return std::nullopt;
        size = group.members;
    }
    return size == 1 ? std::nullopt : size;
}

std::string Census::sizes() const {
    std::uint32_t least = none;
    std::uint32_t most = 0;
    for (const Group& group : groups_) {
        if (group.sized) continue;
        least = std::min(least, group.members);
        most = std::max(most, group.members);
    }
    return least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
}

std::uint64_t Census::unsized_groups() const {
    return static_cast<std::uint64_t>(
        std::ranges::count_if(groups_, [](const Group& group) { return !group.sized; }));
}

}  // namespace rollring::cli
