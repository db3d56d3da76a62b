// Goal: the rows that a GPU would gather are those of the reference, from lanes and through staging
// memory; and a lane whose pages were given back is never read through an earlier registration.
//
// The GPU is played: its addresses are the host's, and the kernel's lanes run one after the other.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "device_gather.hpp"
#include "gather_case.hpp"
#include "gather_copy.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// Its actions; outlives the device.
struct Played {
    std::mutex mutex;
    std::map<const std::byte*, std::uint64_t> pinned;
    std::uint64_t pins = 0;
    bool idle = true;
    std::uint64_t runs = 0;
    std::uint64_t ends = 0;
    std::uint64_t sequences = 0;  // of tables
    std::uint64_t tiles = 0;
    std::uint64_t work = 0;
    std::string refuses;  // to pin
    std::uint64_t part_bytes = 256;
};

class PlayedDevice : public device::GatherDevice {
  public:
    explicit PlayedDevice(Played& played) : played_(&played) {}
    [[nodiscard]] std::uint64_t part_bytes(std::uint64_t) const override {
        return played_->part_bytes;
    }
    Result<std::uint64_t> pin(const std::byte* data, std::uint64_t bytes) override {
        const std::scoped_lock lock(played_->mutex);
        if (!played_->refuses.empty()) return refused(Errc::host_memory, played_->refuses);
        played_->pins++;
        CHECK(played_->pinned.emplace(data, bytes).second);
        return reinterpret_cast<std::uint64_t>(data);
    }
    void unpin(const std::byte* data) override {
        const std::scoped_lock lock(played_->mutex);
        CHECK(played_->pinned.erase(data) == 1);
    }
    Result<device::Staging> stage(std::uint64_t bytes) override {
        staged_.emplace_back(bytes / sizeof(Line) + 1);
        auto* data = reinterpret_cast<std::byte*>(staged_.back().data());
        return device::Staging{data, reinterpret_cast<std::uint64_t>(data)};
    }
    Result<void> run(const device::TileTable& table, Stream) override {
        if (table.entries() == 0) return {};
        played_->runs++;
        REQUIRE(table.targets.size() <= device::gather_targets_max);
        device::GatherArgs args = table.args();
        args.tiles = table.tiles.data();
        args.values = table.values.data();
        for (std::uint32_t at = 0; at < args.work; at++) {
            const cuda::GatherWork work = cuda::load_work(args, at);
            check(args, work);
            for (std::uint32_t lane = 0; lane < cuda::warp_lanes; lane++) {
                cuda::gather_work(args, work, lane);
            }
        }
        played_->sequences += table.sequence_count;
        played_->tiles += table.tile_count;
        played_->work += args.work;
        staged_.clear();
        return {};
    }
    Result<void> end(Stream) override {
        played_->ends++;
        return {};
    }
    [[nodiscard]] bool idle() override { return played_->idle; }
    Result<std::uint64_t> mark(Stream) override { return 1; }
    Result<bool> reached(std::uint64_t) override { return true; }
    Result<void> wait(std::uint64_t, Deadline) override { return {}; }

  private:
    struct alignas(128) Line {
        std::byte bytes[128];
    };
    // Only pinned or staged memory is read.
    void check(const device::GatherArgs& args, const cuda::GatherWork& work) {
        if (work.what != cuda::gather_copied || work.rows == 0) return;
        REQUIRE(work.target < device::gather_targets_max);
        const device::GatherTarget& target = args.targets[work.target];
        REQUIRE(work.rows <= target.part_copied);
        REQUIRE(work.padding <= target.part_filled);
        const std::uint64_t bytes = std::uint64_t{work.rows} * target.row_from_bytes;
        const auto* from = reinterpret_cast<const std::byte*>(work.from);
        for (const std::vector<Line>& staged : staged_) {
            const auto* begin = reinterpret_cast<const std::byte*>(staged.data());
            if (from >= begin && from + bytes <= begin + staged.size() * sizeof(Line)) return;
        }
        const std::scoped_lock lock(played_->mutex);
        auto after = played_->pinned.upper_bound(from);
        REQUIRE(after != played_->pinned.begin());
        --after;
        REQUIRE(from + bytes <= after->first + after->second);
    }

    Played* played_;
    std::vector<std::vector<Line>> staged_;
};

std::vector<double> gathered(gathering::DeviceGather& gatherer, const GatherCase& given,
                             GatherColumn column, const Layout& layout) {
    const auto shape = gathered_shape(given.batch, given.schema(), column, layout);
    REQUIRE(shape.has_value());
    std::vector<std::byte> target(shape->elements() * shape->dtype.bytes(), std::byte{0xa5});
    column.to = target;
    REQUIRE(gatherer.gather(given.batch, given.schema(), {&column, 1}, layout, {}).has_value());
    return numbers_of(target, shape->dtype);
}

// A batch of records of the given lengths in tokens, and their token ids.
struct LengthsCase {
    explicit LengthsCase(const std::vector<std::uint32_t>& lengths) {
        auto producer = Producer::open(ring.name());
        REQUIRE(producer.has_value());
        std::mt19937 dice(5);
        for (const std::uint32_t length : lengths) {
            std::vector<std::int32_t> tokens(length);
            for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(dice());
            Draft draft("prompt");
            draft.meta.repetition_id = static_cast<std::uint32_t>(sent++);
            draft.meta.group_size = static_cast<std::uint32_t>(lengths.size());
            draft.set(Std::token_ids, tokens);
            REQUIRE(producer->push(draft, patience()) == Push::ok);
            ids.insert(ids.end(), tokens.begin(), tokens.end());
        }
        stash = open_stash(ring, {.group_size = static_cast<std::uint32_t>(lengths.size()),
                                  .batch = BatchTarget::groups(1)});
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    }
    void gather(gathering::DeviceGather& gatherer, std::int32_t shift = 0) {
        std::vector<std::int32_t> got(ids.size(), -1);
        const GatherColumn column{
            .column = token_ids, .shift = shift, .to = std::as_writable_bytes(std::span(got))};
        REQUIRE(gatherer.gather(batch, stash->schema(), {&column, 1}, {}, {}));
        if (shift == 0) REQUIRE(got == ids);
    }
    Result<void> pad(gathering::DeviceGather& gatherer, std::uint64_t length) {
        padded.assign(sent * length, -1);
        const GatherColumn column{.column = token_ids,
                                  .to = std::as_writable_bytes(std::span(padded))};
        const Layout layout{.form = Form::padded, .padding = {.length = length}};
        return gatherer.gather(batch, stash->schema(), {&column, 1}, layout, {});
    }
    TestRing ring{{.lanes = 1, .lane_bytes = 32 << 20}};
    std::size_t sent = 0;
    std::vector<std::int32_t> padded;
    std::vector<std::int32_t> ids;
    std::unique_ptr<Stash> stash;
    Batch batch;
};

// Lanes of a ring that the test plays.
class PlayedLanes : public MappedLanes {
  public:
    struct alignas(4096) Page {
        std::byte bytes[4096];
    };
    [[nodiscard]] std::size_t count() const override { return 2; }
    [[nodiscard]] MappedLane lane(std::size_t number) const override {
        return {pages[number].bytes, sizeof(Page), generations[number], true};
    }
    std::unique_ptr<Page[]> pages = std::make_unique<Page[]>(2);
    std::array<std::atomic<std::uint64_t>, 2> generations{};
};

}  // namespace

TEST_CASE("tiles: random layouts of random batches are what the reference says") {
    for (unsigned seed = 11; seed <= 16; seed++) {
        GatherCase given(seed);
        Played played;
        played.part_bytes = seed % 2 == 0 ? 64 : 4096;
        const bool staging = seed % 3 == 0;
        if (staging) played.refuses = "no memory to pin today";
        gathering::DeviceGather gatherer(std::make_unique<PlayedDevice>(played));
        CHECK(gatherer.prepare(given.batch).has_value() != staging);
        std::mt19937 dice(seed);
        for (int round = 0; round < 60; round++) {
            CAPTURE(seed);
            CAPTURE(round);
            std::vector<std::uint32_t> order;
            const Layout layout = random_layout(given.batch, order, dice);
            const GatherColumn column = random_column(layout, dice);
            REQUIRE(same(gathered(gatherer, given, column, layout), wanted(given, column, layout)));
        }
        const GatherStat stat = gatherer.stat();
        CHECK((stat.staged_bytes == 0) != staging);
        CHECK((stat.read_bytes == 0) == staging);
        CHECK((stat.why_staged.find("no memory to pin today") != std::string::npos) == staging);
        CHECK((stat.registered_bytes == 0) == staging);
    }
}

TEST_CASE("tiles: columns that are gathered together are what each is alone") {
    for (unsigned seed = 31; seed <= 34; seed++) {
        GatherCase given(seed);
        Played played;
        played.part_bytes = seed % 2 == 0 ? 64 : 4096;
        gathering::DeviceGather gatherer(std::make_unique<PlayedDevice>(played));
        REQUIRE(gatherer.prepare(given.batch).has_value());
        std::mt19937 dice(seed);
        for (int round = 0; round < 60; round++) {
            CAPTURE(seed);
            CAPTURE(round);
            std::vector<std::uint32_t> order;
            const Layout layout = random_layout(given.batch, order, dice);
            std::vector<GatherColumn> columns(1 + below(dice, 5));
            std::vector<std::vector<std::byte>> targets(columns.size());
            std::vector<ArrayShape> shapes;
            for (std::size_t i = 0; i < columns.size(); i++) {
                columns[i] = random_column(layout, dice);
                const auto shape = gathered_shape(given.batch, given.schema(), columns[i], layout);
                REQUIRE(shape.has_value());
                shapes.push_back(*shape);
                targets[i].resize(shape->elements() * shape->dtype.bytes(), std::byte{0xa5});
                columns[i].to = targets[i];
            }
            REQUIRE(gatherer.gather(given.batch, given.schema(), columns, layout, {}).has_value());
            for (std::size_t i = 0; i < columns.size(); i++) {
                CAPTURE(i);
                REQUIRE(same(numbers_of(targets[i], shapes[i].dtype),
                             wanted(given, columns[i], layout)));
            }
        }
        CHECK(played.sequences != 0);  // said once for all columns
        CHECK(played.tiles != 0);
    }
}

TEST_CASE("tiles: a GPU that has nothing to do begins with the first sequences") {
    constexpr std::uint32_t records = 1500;
    LengthsCase given(std::vector<std::uint32_t>(records, 3));
    Played played;
    gathering::DeviceGather gatherer(std::make_unique<PlayedDevice>(played));
    REQUIRE(gatherer.prepare(given.batch).has_value());
    const auto gather_all = [&] {
        played.runs = played.ends = 0;
        given.gather(gatherer);
        CHECK(played.ends == 1);
    };
    gather_all();
    CHECK(played.runs > 2);
    CHECK(played.sequences == records);
    played.idle = false;
    gather_all();
    CHECK(played.runs == 1);
}

TEST_CASE("tiles: a large batch is padded block by block, or refused before anything is written") {
    std::vector<std::uint32_t> lengths(900, 3);
    lengths[899] = 5;
    LengthsCase given(lengths);
    Played played;
    gathering::DeviceGather gatherer(std::make_unique<PlayedDevice>(played));
    REQUIRE(gatherer.prepare(given.batch).has_value());
    const auto refusal = given.pad(gatherer, 4);
    REQUIRE_FALSE(refusal.has_value());
    CHECK(refusal.error().message.find("sequence 899 ") != std::string::npos);
    CHECK(played.runs == 0);
    REQUIRE(given.pad(gatherer, 6).has_value());
    CHECK(played.runs > 1);
    std::vector<std::int32_t> expected;
    auto next = given.ids.begin();
    for (const std::uint32_t length : lengths) {
        expected.insert(expected.end(), next, next + length);
        expected.resize(expected.size() + 6 - length);
        next += length;
    }
    REQUIRE(given.padded == expected);
}

TEST_CASE("tiles: what the CPU says of a batch is by sequence, however long they are") {
    constexpr std::uint32_t records = 600;
    LengthsCase given(std::vector<std::uint32_t>(records, 2000));
    Played played;  // a part is of 64 tokens
    gathering::DeviceGather gatherer(std::make_unique<PlayedDevice>(played));
    REQUIRE(gatherer.prepare(given.batch).has_value());
    given.gather(gatherer);
    CHECK(played.sequences == records);
    CHECK(played.tiles == 0);
    CHECK(played.work == records * 32);
    CHECK(played.runs == 2);  // while it reads the first, the CPU has made all of the rest
    played.sequences = 0;
    given.gather(gatherer, 1);
    CHECK(played.sequences == 0);
    CHECK(played.tiles == 2 * records);  // and a token that none follows
}

TEST_CASE("tiles: a few that are much longer than the others do not make parts of all of them") {
    std::vector<std::uint32_t> lengths(1200, 20);
    lengths[700] = 9000;
    LengthsCase given(lengths);
    Played played;
    gathering::DeviceGather gatherer(std::make_unique<PlayedDevice>(played));
    REQUIRE(gatherer.prepare(given.batch).has_value());
    given.gather(gatherer);
    CHECK(played.sequences == 1199);
    CHECK(played.tiles == 9000 / 64 + 1);
    CHECK(played.work == played.sequences + played.tiles);
    lengths.assign(200, 300);
    lengths[0] = 3000;
    LengthsCase other(lengths);
    played.sequences = played.tiles = played.work = 0;
    REQUIRE(gatherer.prepare(other.batch).has_value());
    other.gather(gatherer);
    CHECK(played.sequences == 199);
    CHECK(played.tiles == 3);  // of up to four times as many parts as 313 tokens have
    CHECK(played.work == std::uint64_t{199} * 5 + played.tiles * 19);
}

// A lane's memory in one go: a warp reads a table's entries of several sequences at once.
TEST_CASE("tiles: of many short sequences a warp takes several, of long ones one at a time") {
    device::TileTable table;
    table.alike = 2;
    table.sequence_count = 1024;
    table.most_bytes = 1024;
    CHECK(table.run() == 1);  // there are fewer than warps
    table.sequence_count = 4096;
    CHECK(table.run() == 4);
    table.sequence_count = 1 << 20;
    CHECK(table.run() == device::run_max);
    table.most_bytes = 8192;
    CHECK(table.run() == 4);
    table.most_bytes = 1 << 20;
    CHECK(table.run() == 1);
    CHECK(table.args().tile_count == table.args().work);
    table.sequence_count = 64;
    table.parts = 64;
    table.most_bytes = 1024;
    CHECK(table.run() == 4);  // a warp takes one part
    CHECK(table.args().work == 64 * 2 * 64);
}

TEST_CASE("tiles: the first batch does not wait for lanes to be registered") {
    GatherCase given(4);
    Played played;
    gathering::DeviceGather gatherer(std::make_unique<PlayedDevice>(played));
    const GatherColumn ids{.column = token_ids, .dtype = dtype_i64};
    CHECK(same(gathered(gatherer, given, ids, {}), wanted(given, ids, {})));
    const std::uint64_t staged = gatherer.stat().staged_bytes;
    CHECK(gatherer.stat().why_staged.find("being registered") != std::string::npos);
    CHECK(staged != 0);
    REQUIRE(gatherer.prepare(given.batch).has_value());
    CHECK(same(gathered(gatherer, given, ids, {}), wanted(given, ids, {})));
    CHECK(gatherer.stat().staged_bytes == staged);
    const GatherColumn halves{.column = token_ids, .dtype = dtype_bf16};
    std::vector<std::byte> target(given.batch.cu_seqlens().back() * 2);
    GatherColumn refusing = halves;
    refusing.to = target;
    const auto done = gatherer.gather(given.batch, given.schema(), {&refusing, 1}, {}, {});
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().code == Errc::unsupported);
}

TEST_CASE("lane pins: a lane of another generation is registered anew, other lanes are not") {
    Played played;
    PlayedDevice device(played);
    const auto lanes = std::make_shared<PlayedLanes>();
    {
        gathering::LanePins pins(device);
        pins.look(lanes);
        REQUIRE(pins.register_used().has_value());
        pins.look(lanes);
        const std::byte* first = lanes->pages[0].bytes;
        CHECK(pins.lane_with(first + 9)->shift == 0);
        CHECK(pins.lane_with(first - 1) == nullptr);
        CHECK(played.pins == 2);
        lanes->generations[0] = 1;  // its pages are gone
        pins.look(lanes);
        CHECK(played.pinned.size() == 1);
        CHECK(pins.lane_with(first) == nullptr);  // wanted from now on
        REQUIRE(pins.register_used().has_value());
        pins.look(lanes);
        CHECK(pins.lane_with(first)->shift == 0);
        CHECK(played.pins == 3);
        const auto others = std::make_shared<PlayedLanes>();
        pins.look(others);
        CHECK(played.pinned.empty());
        CHECK(pins.lane_with(first) == nullptr);
        REQUIRE(pins.register_used().has_value());
    }
    CHECK(played.pinned.empty());
}
