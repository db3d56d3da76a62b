#include "gpu_difference.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "delta_args.hpp"
#include "delta_tables.hpp"
#include "fault_point.hpp"
#include "job_tables.hpp"
#include "list_memory.hpp"
#include "view_layout.hpp"

namespace rollring::cuda {
namespace {

using device::CopyJob;

// Pauses of a few milliseconds are not prolonged by sleeping.
constexpr std::int64_t awake_ns = 20'000'000;
// Between bursts, even if one was held up by other work.
constexpr std::int64_t rest_most_ns = 50'000'000;

// Pinned memory of the host.
class Pinned {
  public:
    explicit Pinned(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {}
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    ~Pinned() {
        if (at_ == nullptr) return;
        const Context::Scope scope(gpu_->context());
        gpu_->api().cuMemFreeHost(at_);
    }
    CUresult make(std::uint64_t bytes) { return gpu_->api().cuMemAllocHost(&at_, bytes); }
    [[nodiscard]] void* data() const { return at_; }

  private:
    std::shared_ptr<const Gpu> gpu_;
    void* at_ = nullptr;
};

class GpuDifference : public device::Difference {
  public:
    GpuDifference(std::shared_ptr<const Gpu> gpu, const DeltaTuning& tuning)
        : gpu_(std::move(gpu)), tuning_(tuning), read_back_(gpu_) {}
    GpuDifference(const GpuDifference&) = delete;
    GpuDifference& operator=(const GpuDifference&) = delete;
    ~GpuDifference() override;
    Result<void> lay_down(DeltaTables tables);

    void clear(std::uint64_t bytes_max, std::uint64_t bytes_kept) override;
    Result<device::Fit> compare(std::size_t first, std::span<const std::byte* const> slots,
                                Stream stream, Deadline deadline) override;
    Result<void> swap(std::size_t parts, Stream stream) override;
    Result<void> end_exchange(Deadline deadline) override;
    [[nodiscard]] Size size() const override { return size_; }

  private:
    struct SlotRun {
        Run run;
        const std::byte* slot;
    };
    // Parts that are being compared.
    struct Comparing {
        ListMemory<DeviceBuffer>::Point before;
        std::uint64_t used = 0;  // by these parts
        std::vector<SlotRun> runs = {};
        std::size_t burst = 0;  // the first of the runs under way, and their number
        std::size_t burst_runs = 0;
        std::int64_t begun_ns = 0;                        // of the burst
        std::optional<std::int64_t> rests_until_ns = {};  // before the burst begins
    };
    // An exchange that may not have ended.
    struct Exchange {
        CUstream stream;
        bool marked;  // done_ is behind it
    };
    // The launches that compare a part.
    [[nodiscard]] std::vector<Run> launches(std::size_t part) const;
    // The tiles of parts from one on, before another.
    [[nodiscard]] std::vector<Run> runs(std::size_t begin, std::size_t end) const;
    [[nodiscard]] DeltaArgs args_for(const Run& run, const std::byte* slot) const;
    // Into the chunk in use. An error drops the parts.
    Result<void> launch_compare(bool only_missing, Stream stream);
    Result<void> queue_compare(bool only_missing, CUstream queue);
    Result<void> begin(std::size_t first, std::span<const std::byte* const> slots, Stream stream);
    Result<void> wait(Deadline deadline);
    // False: this was the last burst.
    bool next_burst();
    Result<void> rest(Stream stream, Deadline deadline);
    void drop();
    [[nodiscard]] std::unexpected<Error> failed(CUresult result, std::string_view what) const {
        return std::unexpected(
            cuda_error(result, fmt::format("GPU {}: cannot {}", gpu_->device().gpu, what)));
    }

    std::shared_ptr<const Gpu> gpu_;
    DeltaTuning tuning_;
    DeviceBuffer jobs_;
    DeviceBuffer layouts_;
    DeviceBuffer tiles_;
    DeviceBuffer heads_;
    DeviceBuffer counters_;
    Pinned read_back_;  // DeltaCounters
    CUevent done_ = nullptr;
    std::vector<std::uint64_t> elements_;
    std::vector<std::uint64_t> bytes_;
    std::vector<std::array<std::uint64_t, delta_kinds>> ends_;
    std::size_t listed_ = 0;  // parts
    ListMemory<DeviceBuffer> list_;
    std::optional<Comparing> comparing_;
    std::optional<Exchange> exchange_;
    Size size_;
};

GpuDifference::~GpuDifference() {
    if (done_ == nullptr) return;
    const Context::Scope scope(gpu_->context());
    gpu_->api().cuEventDestroy(done_);
}

Result<void> GpuDifference::lay_down(DeltaTables tables) {
    const auto upload = [&](DeviceBuffer& to, const auto& rows) -> Result<void> {
        auto made = DeviceBuffer::holding(gpu_, std::as_bytes(std::span(rows)));
        if (!made) return std::unexpected(made.error());
        to = std::move(*made);
        return {};
    };
    auto laid = upload(jobs_, tables.jobs);
    if (laid) laid = upload(layouts_, tables.layouts);
    if (laid) laid = upload(tiles_, tables.tiles);
    if (laid) laid = upload(heads_, std::vector<DeltaHead>(tables.tiles.size()));
    if (laid) laid = upload(counters_, std::vector<DeltaCounters>(1));
    if (!laid) return laid;
    const auto make = [gpu = gpu_](std::uint64_t bytes) { return DeviceBuffer::make(gpu, bytes); };
    list_ = ListMemory<DeviceBuffer>(make, tuning_.chunk_bytes, tables.list_bytes_most);
    elements_ = std::move(tables.elements);
    bytes_ = std::move(tables.bytes);
    ends_ = std::move(tables.ends);
    const Context::Scope scope(gpu_->context());
    CUresult result = read_back_.make(sizeof(DeltaCounters));
    if (result == CUDA_SUCCESS) result = gpu_->api().cuEventCreate(&done_, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) return {};
    return failed(result, "prepare the comparison of versions");
}

void GpuDifference::clear(std::uint64_t bytes_max, std::uint64_t bytes_kept) {
    comparing_.reset();
    list_.clear(bytes_max, bytes_kept);
    listed_ = 0;
    size_ = {};
}

std::vector<Run> GpuDifference::runs(std::size_t begin, std::size_t end) const {
    std::vector<Run> found;
    if (begin == end) return found;
    for (std::uint32_t kind = 0; kind < delta_kinds; kind++) {
        std::uint64_t first = 0;
        if (begin > 0) {
            first = ends_[begin - 1].at(kind);
        } else if (kind > 0) {
            first = ends_.back().at(kind - 1);
        }
        const std::uint64_t last = ends_[end - 1].at(kind);
        if (last > first) found.push_back({kind, first, last - first});
    }
    return found;
}

std::vector<Run> GpuDifference::launches(std::size_t part) const {
    std::vector<Run> all = runs(part, part + 1);
    if (tuning_.share < 1) return cut(all, tuning_.burst_tiles);
    if (bytes_[part] <= tuning_.launch_bytes) return all;
    std::uint64_t tiles = 0;
    for (const Run& run : all) tiles += run.tiles;
    return cut(all, tiles / (bytes_[part] / tuning_.launch_bytes + 1) + 1);
}

DeltaArgs GpuDifference::args_for(const Run& run, const std::byte* slot) const {
    DeltaArgs args{};
    args.kind = run.kind;
    args.tiles = std::bit_cast<const Tile*>(tiles_.address()) + run.first;
    args.heads = std::bit_cast<DeltaHead*>(heads_.address()) + run.first;
    args.jobs = std::bit_cast<const DeltaJob*>(jobs_.address());
    args.layouts = std::bit_cast<const Layout*>(layouts_.address());
    args.tile_count = run.tiles;
    args.slot = reinterpret_cast<std::uint64_t>(slot);
    return args;
}

Result<void> GpuDifference::queue_compare(bool only_missing, CUstream queue) {
    const Driver& api = gpu_->api();
    comparing_->begun_ns = monotonic_ns();
    CUresult result = api.cuMemsetD8Async(counters_.address(), 0, sizeof(DeltaCounters), queue);
    if (result != CUDA_SUCCESS) return failed(result, "zero the counters of a list");
    const std::span burst =
        std::span(comparing_->runs).subspan(comparing_->burst, comparing_->burst_runs);
    for (const auto& [run, slot] : burst) {
        DeltaArgs args = args_for(run, slot);
        args.counters = std::bit_cast<DeltaCounters*>(counters_.address());
        if (const DeviceBuffer* chunk = list_.now()) args.memory = chunk->address() + list_.used();
        args.memory_bytes = list_.left();
        args.only_missing = only_missing ? 1 : 0;
        auto launched = gpu_->launch(Kernel::delta_compare, args, tuning_.waves, queue);
        if (!launched) return launched;
    }
    result =
        api.cuMemcpyDtoHAsync(read_back_.data(), counters_.address(), sizeof(DeltaCounters), queue);
    if (result == CUDA_SUCCESS) result = api.cuEventRecord(done_, queue);
    if (result == CUDA_SUCCESS) return {};
    return failed(result, "read the counters of a list");
}

Result<void> GpuDifference::launch_compare(bool only_missing, Stream stream) {
    const auto queue = gpu_->stream_behind(stream);
    auto queued =
        queue ? queue_compare(only_missing, *queue) : Result<void>(std::unexpected(queue.error()));
    if (!queued) drop();
    return queued;
}

// The list is as it was before these parts.
void GpuDifference::drop() {
    list_.cut(comparing_->before);
    comparing_.reset();
}

Result<void> GpuDifference::wait(Deadline deadline) {
    const std::int64_t awake_until = monotonic_ns() + awake_ns;
    for (;;) {
        const CUresult result = gpu_->api().cuEventQuery(done_);
        if (result == CUDA_SUCCESS) return {};
        if (result != CUDA_ERROR_NOT_READY) return gpu_->stream_failure(result);
        if (deadline.passed()) {
            return refused(Errc::timed_out, fmt::format("GPU {}: work on a version's differences "
                                                        "did not finish by the deadline",
                                                        gpu_->device().gpu));
        }
        if (monotonic_ns() < awake_until) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }
}

// Other work has the GPU between two bursts for as long as the share says.
bool GpuDifference::next_burst() {
    Comparing& now = *comparing_;
    now.burst += now.burst_runs;
    if (now.burst == now.runs.size()) return false;
    const std::int64_t ended_ns = monotonic_ns();
    const auto rest_ns = static_cast<double>(ended_ns - now.begun_ns) * (1 / tuning_.share - 1);
    now.rests_until_ns =
        ended_ns + static_cast<std::int64_t>(std::min(rest_ns, double{rest_most_ns}));
    return true;
}

// Ends a pause, and queues the burst behind it.
Result<void> GpuDifference::rest(Stream stream, Deadline deadline) {
    if (!comparing_->rests_until_ns) return {};
    for (;;) {
        const std::int64_t left_ns = *comparing_->rests_until_ns - monotonic_ns();
        if (left_ns <= 0) break;
        if (deadline.passed()) {
            return refused(Errc::timed_out, fmt::format("GPU {}: a comparison with a share of {} "
                                                        "did not end by the deadline",
                                                        gpu_->device().gpu, tuning_.share));
        }
        std::this_thread::sleep_for(
            std::chrono::nanoseconds(std::min<std::int64_t>(left_ns, 1'000'000)));
    }
    comparing_->rests_until_ns.reset();
    return launch_compare(false, stream);
}

Result<void> GpuDifference::begin(std::size_t first, std::span<const std::byte* const> slots,
                                  Stream stream) {
    listed_ = first;
    // Without memory the tiles say how much they need, which may be nothing.
    if (list_.now() == nullptr) {
        if (const auto room = list_.grow(0); !room) return std::unexpected(room.error());
    }
    comparing_ = {.before = list_.end()};
    for (std::size_t i = 0; i < slots.size(); i++) {
        size_.elements += elements_[first + i];
        for (const Run& run : launches(first + i)) comparing_->runs.push_back({run, slots[i]});
    }
    comparing_->burst_runs = comparing_->runs.size();
    if (tuning_.share < 1)
        comparing_->burst_runs = std::min<std::size_t>(1, comparing_->burst_runs);
    return launch_compare(false, stream);
}

Result<device::Fit> GpuDifference::compare(std::size_t first,
                                           std::span<const std::byte* const> slots, Stream stream,
                                           Deadline deadline) {
    const Context::Scope scope(gpu_->context());
    if (!comparing_) {
        if (auto begun = begin(first, slots, stream); !begun) {
            return std::unexpected(begun.error());
        }
    }
    for (;;) {
        auto waited = rest(stream, deadline);
        if (waited) waited = wait(deadline);
        if (!waited) return std::unexpected(waited.error());
        DeltaCounters counters{};
        std::memcpy(&counters, read_back_.data(), sizeof counters);
        // After the first tile without room none has any.
        const std::uint64_t used = counters.used - counters.missing;
        list_.take(used);
        comparing_->used += used;
        size_.changed += counters.changed;
        if (counters.missing == 0) {
            if (next_burst()) continue;
            break;
        }
        const auto room = list_.grow(counters.missing);
        if (!room || *room != Room::there) {
            drop();
            if (!room) return std::unexpected(room.error());
            return *room == Room::bound ? device::Fit::full : device::Fit::no_memory;
        }
        auto launched = launch_compare(true, stream);
        if (!launched) return std::unexpected(launched.error());
    }
    size_.bytes += comparing_->used;
    listed_ = first + slots.size();
    comparing_.reset();
    return device::Fit::fits;
}

Result<void> GpuDifference::swap(std::size_t parts, Stream stream) {
    const Context::Scope scope(gpu_->context());
    const auto queue = gpu_->stream_behind(stream);
    if (!queue) return std::unexpected(queue.error());
    exchange_ = {*queue, false};
    Result<void> launched;
    for (const Run& run : runs(0, std::min(parts, listed_))) {
        DeltaArgs args = args_for(run, nullptr);
        launched = gpu_->launch(Kernel::delta_exchange, args, 2 * tuning_.waves, *queue);
        FAULT_POINT("weights.swapped");
        if (!launched) break;
    }
    auto done = end_exchange(Deadline::after_ms(tuning_.exchange_ms));  // after an error, too
    // Not as if another call could go on.
    if (!done && done.error().code == Errc::timed_out) done.error().code = Errc::device_error;
    return launched ? done : launched;
}

Result<void> GpuDifference::end_exchange(Deadline deadline) {
    if (!exchange_) return {};
    const Context::Scope scope(gpu_->context());
    if (!exchange_->marked) {
        const CUresult result = gpu_->api().cuEventRecord(done_, exchange_->stream);
        if (result != CUDA_SUCCESS) return failed(result, "wait for the exchange of values");
        exchange_->marked = true;
    }
    auto done = wait(deadline);
    if (done) exchange_.reset();
    return done;
}

}  // namespace

Result<std::unique_ptr<device::Difference>> make_difference(
    std::shared_ptr<const Gpu> gpu, const std::vector<std::vector<CopyJob>>& parts,
    const DeltaTuning& tuning) {
    for (const auto& jobs : parts) {
        for (const CopyJob& job : jobs) {
            const std::string fault = job.view ? fault_of(job) : "not a view";
            if (fault.empty()) continue;
            return refused(Errc::invalid_argument, "a copy to be compared: " + fault);
        }
    }
    DeltaTables tables(parts);
    if (tables.jobs.size() > std::numeric_limits<std::uint32_t>::max() / 2) {
        return refused(Errc::invalid_argument,
                       fmt::format("{} copies to be compared", tables.jobs.size()));
    }
    auto made = std::make_unique<GpuDifference>(std::move(gpu), tuning);
    if (auto laid = made->lay_down(std::move(tables)); !laid) return std::unexpected(laid.error());
    return made;
}

}  // namespace rollring::cuda
