#include "delta_staging.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "fault_point.hpp"

namespace rollring::weights {
namespace {

// A model of few elements can change in all of them.
constexpr std::uint64_t list_bytes_least = 64 << 10;

// Adds the time of a scope.
class Timed {
  public:
    explicit Timed(std::int64_t& sum) : sum_(&sum), begun_ns_(monotonic_ns()) {}
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;
    ~Timed() { *sum_ += monotonic_ns() - begun_ns_; }

  private:
    std::int64_t* sum_;
    std::int64_t begun_ns_;
};

}  // namespace

DeltaStaging::DeltaStaging(std::unique_ptr<device::Difference> difference,
                           const SubscriberOptions& options, std::uint64_t bytes, bool held)
    : difference_(std::move(difference)),
      fallback_(options.delta_fallback),
      device_(options.device),
      list_bytes_(options.delta_list_bytes != 0 ? options.delta_list_bytes
                                                : std::max(bytes / 4, list_bytes_least)),
      held_(held) {}

Result<void> DeltaStaging::start(std::int64_t version, const Holding& holding, Deadline deadline) {
    before_.reset();
    if (auto ended = end_exchange(deadline); !ended) return ended;
    parts_ = 0;
    listed_ = true;
    was_whole_ = !holding.is_mixed();
    const bool serves = was_whole_ && holding.live_version() >= 0;
    may_copy_ = fallback_ == DeltaFallback::in_place || !serves;
    // The list is about as large as the last one. A GPU waits for all of its work when memory is
    // freed, so a little more is kept.
    const std::uint64_t wanted = swapped_bytes_ / 4 * 5;
    if (wanted > kept_bytes_ || wanted < kept_bytes_ / 3 * 2) kept_bytes_ = wanted;
    const bool grows = fallback_ == DeltaFallback::beside;
    difference_->clear(grows ? std::numeric_limits<std::uint64_t>::max() : list_bytes_,
                       kept_bytes_);
    report_ = {.version = version};
    return {};
}

void DeltaStaging::count() {
    const device::Difference::Size size = difference_->size();
    report_.elements = size.elements;
    report_.changed = size.changed;
    report_.list_bytes = size.bytes;
    if (fallback_ == DeltaFallback::beside && size.bytes > list_bytes_) {
        report_.way = DeltaWay::beside;
    }
}

std::unexpected<Error> DeltaStaging::no_room(device::Fit fit) const {
    if (fit == device::Fit::full) {
        return refused(
            Errc::too_large,
            fmt::format("too much has changed: {} of the first {} elements, for which {} bytes of "
                        "list are not enough; raise SubscriberOptions::delta_list_bytes, or set "
                        "delta_fallback to beside or in_place",
                        report_.changed, report_.elements, list_bytes_));
    }
    const bool on_gpu = device_.is_gpu();
    return failed(on_gpu ? Errc::out_of_device_memory : Errc::system, on_gpu ? 0 : ENOMEM,
                  fmt::format("{} has no memory for the list of differences, {} of the first {} "
                              "elements; free some there, or set delta_fallback to in_place",
                              on_gpu ? fmt::format("GPU {}", device_.gpu) : "this machine",
                              report_.changed, report_.elements));
}

Result<bool> DeltaStaging::take(std::uint32_t first, std::span<const std::byte* const> slots,
                                Stream stream, Deadline deadline, Holding& holding) {
    if (!listed_) return false;
    device::Fit fit = device::Fit::fits;
    {
        const Timed timed(report_.compare_ns);
        const Stream begun_on = comparing_.value_or(stream);
        const auto compared = difference_->compare(first, slots, begun_on, deadline);
        comparing_ = compared ? std::nullopt : std::optional(begun_on);
        if (!compared) return std::unexpected(compared.error());
        fit = *compared;
        listed_ = fit == device::Fit::fits;
    }
    count();
    FAULT_POINT("weights.compared");
    if (listed_) {
        parts_ = first + static_cast<std::uint32_t>(slots.size());
        return true;
    }
    if (!may_copy_) return no_room(fit);
    report_.way = DeltaWay::in_place;
    const std::uint32_t parts = std::exchange(parts_, 0);
    if (!held_) {
        holding.touch();
        if (auto swapped = difference_->swap(parts, {}); !swapped) {
            return std::unexpected(swapped.error());
        }
    }
    difference_->clear(0, 0);  // its memory is of no more use
    return false;
}

Result<void> DeltaStaging::swap_in(Holding& holding) {
    swapped_bytes_ = listed_ ? report_.list_bytes : 0;
    if (!listed_) return {};
    const Timed timed(report_.swap_ns);
    const std::int64_t live = holding.live_version();
    holding.touch();
    if (auto swapped = difference_->swap(parts_, {}); !swapped) return swapped;
    if (was_whole_) before_ = live;
    return {};
}

Result<std::int64_t> DeltaStaging::roll_back(Holding& holding) {
    const std::int64_t before = *std::exchange(before_, std::nullopt);
    holding.touch();
    if (auto swapped = difference_->swap(parts_, {}); !swapped) {
        return std::unexpected(swapped.error());
    }
    return before;
}

void show_delta(const DeltaReport& report, SubscriberPage& page) {
    poke(page.delta_elements, report.elements);
    poke(page.delta_changed, report.changed);
    poke(page.delta_list_bytes, report.list_bytes);
    poke(page.delta_compare_ns, report.compare_ns);
    poke(page.delta_swap_ns, report.swap_ns);
    poke(page.delta_way, static_cast<std::uint32_t>(report.way));
    store_release(page.delta_version, static_cast<std::uint64_t>(report.version + 1));
}

DeltaReport shown_delta(const SubscriberPage& page) {
    const std::uint64_t version = observe(page.delta_version);
    if (version == 0) return {};
    return {.version = static_cast<std::int64_t>(version - 1),
            .way = static_cast<DeltaWay>(peek(page.delta_way)),
            .elements = peek(page.delta_elements),
            .changed = peek(page.delta_changed),
            .list_bytes = peek(page.delta_list_bytes),
            .compare_ns = peek(page.delta_compare_ns),
            .swap_ns = peek(page.delta_swap_ns)};
}

}  // namespace rollring::weights
