#include "device_gather.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "tile_table.hpp"

namespace rollring::gathering {
namespace {

constexpr std::uint64_t staged_max = std::uint64_t{256} << 20;  // before a table is run
// The GPU begins while the rest of the table is made: at once if it is idle. Tables grow only as
// fast as it falls behind the CPU, so that it does not wait for the next one: while it reads
// entry_bytes, the CPU makes one entry of the next table.
constexpr std::size_t entries_idle = 256;
constexpr std::size_t entries_first = 4096;
constexpr std::size_t entries_max = 65536;
constexpr std::uint64_t entry_bytes = 1600;
constexpr std::uint64_t work_max = std::uint64_t{1} << 30;
constexpr std::size_t block = 256;  // sequences

std::uint64_t bytes_read(std::span<const ColumnPlan> plans) {
    std::uint64_t bytes = 0;
    for (const ColumnPlan& plan : plans) {
        if (!plan.is_filled()) {
            bytes += plan.rows() * plan.row_elements() * plan.from_type().bytes();
        }
    }
    return bytes;
}

}  // namespace

// The device addresses of records: in their lanes, or of their copies.
class DeviceGather::Locator {
  public:
    explicit Locator(DeviceGather& of) : of_(of) {}
    Locator(const Locator&) = delete;
    ~Locator() { of_.read_bytes_ += read_; }

    // The layout's sequences [begin, end) come next.
    void look(const Sequences& batch, std::size_t begin, std::size_t end, const Ahead& ahead) {
        begin_ = begin;
        const Placed* placed = of_.placement_.sequences.data();
        const detail::RecordPlace* places = batch.places().data();
        // Most records lie in the lane of the previous one.
        const std::byte* lane_begin = nullptr;
        std::uint64_t lane_bytes = 0;
        std::uint64_t lane_shift = 0;
        for (std::size_t i = begin; i < end; i++) {
            ahead.fetch(i);
            const std::byte* record = places[placed[i].sequence].columns;
            if (record == nullptr) continue;
            if (static_cast<std::uint64_t>(record - lane_begin) >= lane_bytes) {
                const LanePins::Registered* lane = of_.pins_.lane_with(record);
                lane_begin = lane == nullptr ? nullptr : lane->begin;
                lane_bytes =
                    lane == nullptr ? 0 : static_cast<std::uint64_t>(lane->end - lane->begin);
                lane_shift = lane == nullptr ? to_stage : lane->shift;
                if (lane == nullptr) of_.why_staged_ = of_.pins_.why_not(record);
            }
            shifts_[i - begin] = lane_shift;
        }
    }
    [[nodiscard]] std::uint64_t lies(std::size_t i, std::uint64_t from) const {
        const std::uint64_t shift = shifts_[i - begin_];
        return shift == to_stage ? 0 : from + shift;
    }
    std::uint64_t operator()(std::size_t i, const std::byte* from, std::uint64_t bytes) {
        const std::uint64_t at = lies(i, reinterpret_cast<std::uint64_t>(from));
        return at == 0 ? stage(from, bytes) : at;
    }
    void add(std::uint64_t bytes) {
        read_ += bytes;
        table_bytes_ += bytes;
    }
    // The error, after a result of 0.
    [[nodiscard]] const Error& error() const { return error_; }
    // Bytes since the last forget(): all of them, and the staged ones.
    [[nodiscard]] std::uint64_t table_bytes() const { return table_bytes_; }
    [[nodiscard]] std::uint64_t staged() const { return staged_; }
    void forget() { table_bytes_ = staged_ = 0; }

  private:
    static constexpr std::uint64_t to_stage = 1;  // no shift: lanes begin with a page
    std::uint64_t stage(const std::byte* from, std::uint64_t bytes) {
        const auto staging = of_.device_->stage(bytes);
        if (!staging) {
            error_ = staging.error();
            return 0;
        }
        std::memcpy(staging->data, from, bytes);
        staged_ += bytes;
        read_ -= bytes;
        of_.staged_bytes_ += bytes;
        return staging->address;
    }

    DeviceGather& of_;
    std::size_t begin_ = 0;
    std::array<std::uint64_t, block> shifts_{};
    std::uint64_t read_ = 0;
    std::uint64_t table_bytes_ = 0;
    std::uint64_t staged_ = 0;
    Error error_;
};

// Block by block, so that the data of a block is still in cache when its tiles are made.
Result<void> DeviceGather::run_tables(const Sequences& batch, std::span<const ColumnPlan> plans,
                                      Stream stream) {
    TileWriter writer(table_);
    if (auto begun = writer.begin(plans, device_->part_bytes(bytes_read(plans))); !begun) {
        return begun;
    }
    const Ahead ahead(batch, placement_, plans);
    Locator locator(*this);
    std::size_t entries = device_->idle() ? entries_idle : entries_first;
    const std::size_t sequences = placement_.sequences.size();
    for (std::size_t begin = 0; begin < sequences; begin += block) {
        const std::size_t end = std::min(begin + block, sequences);
        if (table_.alike != 0 && table_.room == 0) {
            const std::size_t room = std::min(entries + block, sequences - begin);
            const auto memory = device_->stage(table_.bytes_for(room));
            if (!memory) return std::unexpected(memory.error());
            table_.memory = *memory;
            table_.room = room;
        }
        placement_.place(batch, end);
        locator.look(batch, begin, end, ahead);
        using enum TileWriter::Outcome::What;
        const auto done = writer.add(begin, end, locator);
        if (done.what == not_found) return plans[done.plan].refusal(done.sequence);
        if (done.what == out_of_range) return plans[done.plan].out_of_range(done.sequence);
        if (done.what == not_located) return std::unexpected(locator.error());
        if (table_.entries() < entries && table_.work() < work_max &&
            locator.staged() < staged_max) {
            continue;
        }
        if (auto run = device_->run(table_, stream); !run) return run;
        writer.clear();
        const std::size_t meanwhile = locator.table_bytes() / entry_bytes;
        entries = std::min(std::max(meanwhile, entries + entries / 4), entries_max);
        locator.forget();
    }
    return device_->run(table_, stream);
}

Result<void> DeviceGather::gather(const Sequences& batch, const Schema& schema,
                                  std::span<const GatherColumn> columns, const Layout& layout,
                                  Stream stream) {
    if (auto begun = placement_.begin(batch, layout); !begun) return begun;
    const auto plans = plan_columns(batch, schema, columns, layout, placement_);
    if (!plans) return std::unexpected(plans.error());
    pins_.look(batch.lease().lanes());
    std::span<const ColumnPlan> left = *plans;
    while (!left.empty()) {
        const std::size_t some = std::min(left.size(), device::gather_targets_max);
        const auto run = run_tables(batch, left.first(some), stream);
        const auto ended = device_->end(stream);  // also of tables that ran before a failure
        if (!run || !ended) return !run ? run : ended;
        left = left.subspan(some);
    }
    return {};
}

Result<void> DeviceGather::prepare(const Sequences& batch) {
    if (auto leased = check_leased(batch); !leased) return leased;
    pins_.look(batch.lease().lanes());
    return pins_.register_used();
}

GatherStat DeviceGather::stat() const {
    return {pins_.registered_bytes(), read_bytes_, staged_bytes_, why_staged_};
}

}  // namespace rollring::gathering
