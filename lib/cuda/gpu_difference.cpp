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
#include "fault_point.hpp"
#include "job_tables.hpp"
#include "view_layout.hpp"

namespace rollring::cuda {
namespace {

using device::CopyJob;

// A kernel that takes longer has failed, or its stream waits for something else.
constexpr std::int64_t swap_ms = 600'000;
// Pauses of a few milliseconds are not prolonged by sleeping.
constexpr std::int64_t awake_ns = 20'000'000;

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

// Tiles of one kind in the tables.
struct Run {
    std::uint64_t kind;
    std::uint64_t first;
    std::uint64_t tiles;
};

// The tables of all parts as the host builds them. Tiles of one kind lie together, in the order of
// the parts.
struct DeltaTables {
    std::vector<DeltaJob> jobs;
    std::vector<Layout> layouts;
    std::vector<Tile> tiles;
    std::vector<std::uint64_t> elements;                       // of each part
    std::vector<std::array<std::uint64_t, delta_kinds>> ends;  // in `tiles`, of each part

    explicit DeltaTables(const std::vector<std::vector<CopyJob>>& parts);

  private:
    std::uint32_t add_job(const CopyJob& job);
};

// The kind of its tiles.
std::uint32_t DeltaTables::add_job(const CopyJob& job) {
    DeltaJob row{};
    row.tensor = reinterpret_cast<std::uint64_t>(job.tensor);
    row.slot_offset = job.slot_offset;
    row.bytes = job.elements * job.element_bytes;
    row.element_shift = static_cast<std::uint32_t>(std::countr_zero(job.element_bytes));
    std::uint32_t kind = row.element_shift;
    if (job.shape.empty()) {
        row.unit_shift =
            static_cast<std::uint32_t>(std::countr_zero(16 | row.slot_offset | row.tensor));
    } else {
        DeviceJob view{};
        layouts.push_back(lay_out_view(job, view));
        row.layout = static_cast<std::uint32_t>(layouts.size());
        row.unit_shift = view.element_shift;
        kind += delta_strided;
    }
    jobs.push_back(row);
    return kind;
}

DeltaTables::DeltaTables(const std::vector<std::vector<CopyJob>>& parts)
    : elements(parts.size()), ends(parts.size()) {
    std::array<std::vector<std::pair<std::size_t, std::uint32_t>>, delta_kinds> of_kind;
    for (std::size_t part = 0; part < parts.size(); part++) {
        for (const CopyJob& job : parts[part]) {
            elements[part] += job.elements;
            const std::uint32_t kind = add_job(job);
            of_kind.at(kind).emplace_back(part, static_cast<std::uint32_t>(jobs.size() - 1));
        }
    }
    for (std::uint32_t kind = 0; kind < delta_kinds; kind++) {
        auto next = of_kind.at(kind).begin();
        for (std::size_t part = 0; part < parts.size(); part++) {
            for (; next != of_kind.at(kind).end() && next->first == part; next++) {
                const std::uint32_t job = next->second;
                for (std::uint64_t at = 0; at * delta_tile_bytes < jobs[job].bytes; at++) {
                    tiles.push_back({job, static_cast<std::uint32_t>(at)});
                }
            }
            ends[part].at(kind) = tiles.size();
        }
    }
}

class GpuDifference : public device::Difference {
  public:
    GpuDifference(std::shared_ptr<const Gpu> gpu, const DeltaTuning& tuning)
        : gpu_(std::move(gpu)), tuning_(tuning), read_back_(gpu_) {}
    GpuDifference(const GpuDifference&) = delete;
    GpuDifference& operator=(const GpuDifference&) = delete;
    ~GpuDifference() override;
    Result<void> lay_down(DeltaTables tables);

    void clear(std::uint64_t bytes_max, std::uint64_t bytes_kept) override;
    Result<bool> compare(std::size_t part, const std::byte* slot, Stream stream,
                         Deadline deadline) override;
    Result<void> swap(std::size_t parts, Stream stream) override;
    [[nodiscard]] Size size() const override { return size_; }

  private:
    // Memory for the entries of some parts.
    struct Chunk {
        DeviceBuffer memory;
        std::uint64_t bytes = 0;
        std::uint64_t used = 0;
    };
    // A part that is being compared.
    struct Comparing {
        std::size_t part;
        std::size_t first_chunk;
        std::uint64_t first_used;  // of that chunk, before
        std::uint64_t used = 0;    // by this part
    };
    // The tiles of parts from one on, before another.
    [[nodiscard]] std::vector<Run> runs(std::size_t begin, std::size_t end) const;
    [[nodiscard]] DeltaArgs args_for(const Run& run, const std::byte* slot) const;
    Result<void> launch_compare(const std::byte* slot, bool only_missing, Stream stream);
    // Into the current chunk, or a new one of this size. False: there is no room.
    Result<bool> go_on(const std::byte* slot, bool only_missing, std::uint64_t bytes,
                       Stream stream);
    Result<void> wait(Deadline deadline);
    void drop();
    [[nodiscard]] bool add_chunk(std::uint64_t bytes);
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
    std::vector<std::array<std::uint64_t, delta_kinds>> ends_;
    std::size_t listed_ = 0;  // parts
    std::vector<Chunk> chunks_;
    std::size_t current_ = 0;
    std::uint64_t allocated_ = 0;
    std::uint64_t bytes_max_ = 0;
    std::uint64_t bytes_first_ = 0;  // of the first chunk, or more
    std::optional<Comparing> comparing_;
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
    elements_ = std::move(tables.elements);
    ends_ = std::move(tables.ends);
    const Context::Scope scope(gpu_->context());
    CUresult result = read_back_.make(sizeof(DeltaCounters));
    if (result == CUDA_SUCCESS) result = gpu_->api().cuEventCreate(&done_, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) return {};
    return failed(result, "prepare the comparison of versions");
}

void GpuDifference::clear(std::uint64_t bytes_max, std::uint64_t bytes_kept) {
    comparing_.reset();
    bytes_first_ = std::min(bytes_max, bytes_kept);
    // One piece, because tiles that do not fit into the rest of one are compared again.
    const std::uint64_t most = std::max(bytes_first_, tuning_.chunk_bytes);
    if (chunks_.size() > 1 || allocated_ > std::min(most, bytes_max)) {
        chunks_.clear();
        allocated_ = 0;
    }
    for (Chunk& chunk : chunks_) chunk.used = 0;
    listed_ = 0;
    current_ = 0;
    bytes_max_ = bytes_max;
    size_ = {};
}

// With room for this part and, if the GPU has it, for later ones. False if the bound, or the GPU,
// has no room.
bool GpuDifference::add_chunk(std::uint64_t bytes) {
    const std::uint64_t left = bytes_max_ - std::min(bytes_max_, allocated_);
    const std::uint64_t least = std::max(bytes, tuning_.chunk_bytes);
    const std::uint64_t more = chunks_.empty() ? bytes_first_ : allocated_ / 2;
    for (const std::uint64_t wanted : {std::max(least, more), least}) {
        const std::uint64_t size = std::min(left, wanted) / 16 * 16;
        if (size < bytes) return false;
        auto memory = DeviceBuffer::make(gpu_, size);
        if (!memory) continue;
        chunks_.push_back({.memory = std::move(*memory), .bytes = size});
        allocated_ += size;
        return true;
    }
    return false;
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

DeltaArgs GpuDifference::args_for(const Run& run, const std::byte* slot) const {
    DeltaArgs args{};
    args.kind = run.kind;
    args.tiles = std::bit_cast<const Tile*>(tiles_.address()) + run.first;
    args.heads = std::bit_cast<DeltaHead*>(heads_.address()) + run.first;
    args.jobs = std::bit_cast<const DeltaJob*>(jobs_.address());
    args.layouts = std::bit_cast<const Layout*>(layouts_.address());
    args.tiles_end = run.tiles;
    args.slot = reinterpret_cast<std::uint64_t>(slot);
    return args;
}

Result<void> GpuDifference::launch_compare(const std::byte* slot, bool only_missing,
                                           Stream stream) {
    const Driver& api = gpu_->api();
    const auto queue = gpu_->stream_behind(stream);
    if (!queue) return std::unexpected(queue.error());
    CUresult result = api.cuMemsetD8Async(counters_.address(), 0, sizeof(DeltaCounters), *queue);
    if (result != CUDA_SUCCESS) return failed(result, "zero the counters of a list");
    const Chunk& chunk = chunks_[current_];
    for (const Run& run : runs(comparing_->part, comparing_->part + 1)) {
        DeltaArgs args = args_for(run, slot);
        args.counters = std::bit_cast<DeltaCounters*>(counters_.address());
        args.memory = chunk.memory.address() + chunk.used;
        args.memory_bytes = chunk.bytes - chunk.used;
        args.only_missing = only_missing ? 1 : 0;
        args.tile_count = run.tiles * (block_threads / warp_lanes);
        auto launched = gpu_->launch(Kernel::delta_compare, args, tuning_.waves, *queue);
        if (!launched) return launched;
    }
    result = api.cuMemcpyDtoHAsync(read_back_.data(), counters_.address(), sizeof(DeltaCounters),
                                   *queue);
    if (result == CUDA_SUCCESS) result = api.cuEventRecord(done_, *queue);
    if (result == CUDA_SUCCESS) return {};
    return failed(result, "read the counters of a list");
}

Result<bool> GpuDifference::go_on(const std::byte* slot, bool only_missing, std::uint64_t bytes,
                                  Stream stream) {
    if (current_ == chunks_.size() && !add_chunk(bytes)) {
        drop();
        return false;
    }
    auto launched = launch_compare(slot, only_missing, stream);
    if (launched) return true;
    drop();
    return std::unexpected(launched.error());
}

// The list is as it was before the part.
void GpuDifference::drop() {
    for (std::size_t i = comparing_->first_chunk; i < chunks_.size(); i++) {
        chunks_[i].used = i == comparing_->first_chunk ? comparing_->first_used : 0;
    }
    current_ = chunks_.empty() ? 0 : std::min(comparing_->first_chunk, chunks_.size() - 1);
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

Result<bool> GpuDifference::compare(std::size_t number, const std::byte* slot, Stream stream,
                                    Deadline deadline) {
    const Context::Scope scope(gpu_->context());
    if (!comparing_) {
        listed_ = number;
        size_.elements += elements_[number];
        comparing_ = {number, current_, chunks_.empty() ? 0 : chunks_[current_].used};
        const auto begun = go_on(slot, false, 1, stream);
        if (!begun || !*begun) return begun;
    }
    for (;;) {
        if (auto waited = wait(deadline); !waited) return std::unexpected(waited.error());
        DeltaCounters counters{};
        std::memcpy(&counters, read_back_.data(), sizeof counters);
        Chunk& chunk = chunks_[current_];
        const std::uint64_t used = std::min(counters.used, chunk.bytes - chunk.used);
        chunk.used += used;
        comparing_->used += used;
        size_.changed += counters.changed;
        if (counters.missing == 0) break;
        current_++;
        const auto more = go_on(slot, true, counters.missing, stream);
        if (!more || !*more) return more;
    }
    size_.bytes += comparing_->used;
    listed_ = number + 1;
    comparing_.reset();
    return true;
}

Result<void> GpuDifference::swap(std::size_t parts, Stream stream) {
    const Context::Scope scope(gpu_->context());
    const auto queue = gpu_->stream_behind(stream);
    if (!queue) return std::unexpected(queue.error());
    Result<void> launched;
    for (const Run& run : runs(0, std::min(parts, listed_))) {
        DeltaArgs args = args_for(run, nullptr);
        args.tile_count = run.tiles;
        launched = gpu_->launch(Kernel::delta_exchange, args, 2 * tuning_.waves, *queue);
        FAULT_POINT("weights.swapped");
        if (!launched) break;
    }
    const CUresult result = gpu_->api().cuEventRecord(done_, *queue);
    if (result != CUDA_SUCCESS) return failed(result, "wait for the exchange of values");
    auto done = wait(Deadline::after_ms(swap_ms));  // after an error, too
    // Not as if another call could go on.
    if (!done && done.error().code == Errc::timed_out) done.error().code = Errc::device_error;
    return launched ? done : launched;
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
