#include "ledger_place.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "human.hpp"
#include "rollring/ring.hpp"
#include "segment_object.hpp"
#include "xxh3.hpp"

namespace rollring {
namespace {

constexpr std::uint64_t bytes_min = std::uint64_t{1} << 20;

std::uint64_t check_of(const LedgerPlace& place, std::uint64_t ring_id) {
    return XXH3_64bits_withSeed(&place, offsetof(LedgerPlace, check), ring_id);
}

bool is_clear(const LedgerPlace& place) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&place);
    return std::all_of(bytes, bytes + sizeof place,
                       [](std::byte one) { return one == std::byte{}; });
}

}  // namespace

std::string_view name(Durable durable) {
    switch (durable) {
        case Durable::none:
            return "none";
        case Durable::group:
            return "group";
        case Durable::record:
            return "record";
    }
    return "unknown";
}

Result<LedgerPlan> plan_ledger(const std::string& directory, std::uint64_t bytes, Durable durable) {
    if (directory.empty()) return LedgerPlan{};
    if (bytes < bytes_min) {
        return refused(Errc::invalid_argument,
                       fmt::format("ledger_bytes is {}, must be {} or more", human_bytes(bytes),
                                   human_bytes(bytes_min)));
    }
    if (durable > Durable::record) {
        return refused(Errc::invalid_argument, "durable must be none, group or record");
    }
    std::error_code wrong;
    const auto whole = std::filesystem::absolute(directory, wrong);
    if (!wrong) std::filesystem::create_directories(whole, wrong);
    const auto real = wrong ? whole : std::filesystem::canonical(whole, wrong);
    if (!wrong && access(real.c_str(), R_OK | W_OK | X_OK) != 0) {
        wrong = std::error_code(errno, std::generic_category());
    }
    if (wrong) {
        const bool denied = wrong.value() == EACCES || wrong.value() == EROFS;
        return failed(denied ? Errc::permission_denied : Errc::system, wrong.value(),
                      fmt::format("the directory {} cannot be used for a ledger: name another one",
                                  directory));
    }
    LedgerPlan plan{.directory = real.string(), .bytes = bytes, .durable = durable};
    if (plan.directory.size() >= sizeof LedgerPlace::directory) {
        return refused(
            Errc::invalid_argument,
            fmt::format("the path of the ledger {} has {} bytes, at most {} fit", plan.directory,
                        plan.directory.size(), sizeof LedgerPlace::directory - 1));
    }
    return plan;
}

LedgerPlace to_page(const LedgerPlan& plan, std::uint64_t ring_id) {
    LedgerPlace place{};
    if (plan.directory.empty()) return place;
    std::memcpy(place.directory, plan.directory.data(), plan.directory.size());
    place.bytes = plan.bytes;
    place.durable = static_cast<std::uint32_t>(plan.durable);
    place.check = check_of(place, ring_id);
    return place;
}

Result<LedgerPlan> read_ledger_place(int fd, std::uint64_t ring_id, const std::string& object) {
    LedgerPlace place{};
    if (!detail::read_at(fd, ledger_place_offset, &place, sizeof place)) {
        return detail::unreadable(object);
    }
    if (is_clear(place)) return LedgerPlan{};
    const std::size_t bytes = strnlen(place.directory, sizeof place.directory);
    const bool sound = place.check == check_of(place, ring_id) && place.directory[0] == '/' &&
                       bytes < sizeof place.directory &&
                       place.durable <= static_cast<std::uint32_t>(Durable::record);
    if (sound) {
        return LedgerPlan{.directory = std::string(place.directory, bytes),
                          .bytes = place.bytes,
                          .durable = static_cast<Durable>(place.durable)};
    }
    return refused(Errc::not_a_ring,
                   fmt::format("{} is not a usable ring: the name of its ledger is damaged; the "
                               "ledger itself is unharmed. Remove the ring with 'rollring rm', and "
                               "restore it with 'rollring restore'",
                               object));
}

// The names are of the format (docs/ledger.md), which extras/ledger writes.
LedgerFiles look_at_ledger(const std::string& directory) {
    LedgerFiles found;
    if (directory.empty()) return found;
    std::error_code wrong;
    std::filesystem::directory_iterator at(directory, wrong);
    while (!wrong && at != std::filesystem::directory_iterator()) {
        std::error_code gone;
        const auto ending = at->path().extension();
        const std::uintmax_t bytes = at->file_size(gone);
        if (!gone && (ending == ".ledger" || ending == ".index")) found.bytes += bytes;
        at.increment(wrong);
    }
    found.failed = std::filesystem::exists(std::filesystem::path(directory) / "FAILED", wrong);
    return found;
}

}  // namespace rollring
