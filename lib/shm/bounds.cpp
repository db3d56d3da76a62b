#include "bounds.hpp"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "human.hpp"
#include "layout.hpp"

namespace rollring {
namespace {

using Kind = MemoryBound::Kind;

constexpr std::uint64_t unknown_bytes = std::uint64_t{1} << 63;

void add_shared_memory(std::vector<MemoryBound>& bounds) {
    struct statvfs status{};
    if (statvfs("/dev/shm", &status) != 0) return;
    if (status.f_blocks != 0) {
        bounds.push_back({Kind::space,
                          "/dev/shm",
                          std::uint64_t{status.f_bavail} * status.f_frsize,
                          std::uint64_t{status.f_blocks} * status.f_frsize,
                          {}});
    }
    if (status.f_files != 0) {
        bounds.push_back({Kind::files, "inodes of /dev/shm", status.f_favail, status.f_files,
                          "remove files there, or mount it with a larger nr_inodes"});
    }
}

void add_machine(std::vector<MemoryBound>& bounds) {
    std::ifstream info("/proc/meminfo");
    std::map<std::string, std::uint64_t> kib;  // "MemAvailable:   19967268 kB"
    std::string name;
    std::uint64_t value = 0;
    for (std::string rest; info >> name >> value && std::getline(info, rest);) kib[name] = value;
    if (!kib.contains("MemAvailable:")) return;
    bounds.push_back({Kind::machine, "the machine", (kib["MemAvailable:"] + kib["SwapFree:"]) << 10,
                      (kib["MemTotal:"] + kib["SwapTotal:"]) << 10, "free some memory"});
}

std::uint64_t mapped_bytes() {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * page_bytes;
}

void add_limit(std::vector<MemoryBound>& bounds, decltype(RLIMIT_FSIZE) which, MemoryBound bound,
               std::uint64_t used) {
    struct rlimit limit{};
    if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    bound.total = limit.rlim_cur;
    bound.free = bound.total - std::min(bound.total, used);
    bounds.push_back(std::move(bound));
}

void add_length(std::vector<MemoryBound>& bounds) {
    add_limit(bounds, RLIMIT_FSIZE,
              {Kind::object_length, "RLIMIT_FSIZE (ulimit -f)", 0, 0,
               "raise that limit (ulimit -f unlimited)"},
              0);
}

}  // namespace

std::vector<MemoryBound> memory_bounds() {
    std::vector<MemoryBound> bounds = detail::cgroup_bounds("/proc/self");
    add_shared_memory(bounds);
    add_machine(bounds);
    add_length(bounds);
    add_limit(bounds, RLIMIT_AS,
              {Kind::address_space, "RLIMIT_AS (ulimit -v)", 0, 0,
               "raise that limit (ulimit -v unlimited)"},
              mapped_bytes());
    std::ranges::sort(bounds, [](const MemoryBound& one, const MemoryBound& other) {
        if (one.of_pages() != other.of_pages()) return one.of_pages();
        return one.free < other.free;
    });
    return bounds;
}

MemoryBound least_memory_bound() {
    auto bounds = memory_bounds();
    if (!bounds.empty() && bounds.front().of_pages()) return std::move(bounds.front());
    return {Kind::machine, "the machine", unknown_bytes, unknown_bytes, {}};
}

std::uint64_t memory_total() {
    std::uint64_t least = unknown_bytes;
    for (const MemoryBound& bound : memory_bounds()) {
        if (bound.of_pages()) least = std::min(least, bound.total);
    }
    return least;
}

namespace detail {
namespace {

// Smaller requests are not worth the check, which takes tens of microseconds.
constexpr std::uint64_t asked_from_bytes = std::uint64_t{1} << 20;

}  // namespace

std::optional<MemoryBound> bound_of_pages(std::uint64_t bytes) {
    if (bytes < asked_from_bytes) return std::nullopt;
    auto bounds = memory_bounds();
    const auto least = std::ranges::find_if(
        bounds, [](const MemoryBound& b) { return b.of_pages() && b.kind != Kind::space; });
    if (least == bounds.end() || least->free >= bytes) return std::nullopt;
    return std::move(*least);
}

std::optional<MemoryBound> bound_of_length(std::uint64_t bytes) {
    std::vector<MemoryBound> bounds;
    add_length(bounds);
    if (bounds.empty() || bounds.front().total >= bytes) return std::nullopt;
    return std::move(bounds.front());
}

std::string shortage(const MemoryBound& bound, std::string_view what, std::uint64_t bytes,
                     std::string_view remedy, std::uint64_t all_bytes) {
    if (bound.kind == Kind::object_length) {
        return fmt::format("{} needs {} in one object but {} allows {}: {}, or {}", what,
                           human_bytes(bytes), bound.name, human_bytes(bound.total), bound.remedy,
                           remedy);
    }
    if (bound.kind == Kind::files) {
        return fmt::format("{} needs a file, but none of {} {} is free: {}", what,
                           human_count(bound.total), bound.name, bound.remedy);
    }
    std::string more = bound.remedy;
    if (bound.kind == Kind::space) {
        const std::uint64_t gib =
            ((bound.total - bound.free + std::max(bytes * 2, all_bytes)) >> 30) + 1;
        more = fmt::format(
            "enlarge it to {0} GiB (Docker: --shm-size={0}g; Kubernetes: an emptyDir of medium "
            "Memory; on a host, as root: mount -o remount,size={0}g /dev/shm)",
            gib);
    }
    return fmt::format(
        "{} needs {}{} but {} has {} free of {}: {}, {}, or remove leftovers with "
        "'rollring doctor --fix'",
        what, human_bytes(bytes),
        all_bytes == 0 ? ""
                       : fmt::format(", and all of them and a trainer {},", human_bytes(all_bytes)),
        bound.name, human_bytes(bound.free), human_bytes(bound.total), more, remedy);
}

}  // namespace detail
}  // namespace rollring
