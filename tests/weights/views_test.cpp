// Engines that take views of published tensors.

#include <algorithm>
#include <thread>

#include "backend.hpp"
#include "channel.hpp"
#include "host_mover.hpp"
#include "remote_staging.hpp"
#include "subscriber_tensors.hpp"
#include "tensor_view.hpp"
#include "view_model.hpp"

namespace rollring::test {
namespace {

using weights::SubscriberTensors;

void check_load(const ViewCase& given) {
    device::HostMover mover;
    std::vector<std::byte> arena = given.arena;
    auto tensors =
        SubscriberTensors::compile(given.manifest, given.placed(arena.data()), true, mover);
    REQUIRE_OK(tensors);
    for (std::uint32_t part = 0; part < given.slots.size(); part++) {
        REQUIRE_OK(tensors->load(part, given.slots[part].data(), {}));
    }
    REQUIRE((arena == given.wanted));
}

// In two steps, of which the second reads no slot.
void check_staged(const ViewCase& given) {
    const device::Backend own = device::make_host_backend();
    std::vector<std::byte> arena = given.arena;
    const auto parts =
        weights::compile_planned(given.manifest.packing, given.placed(arena.data()), *own.mover);
    REQUIRE_OK(parts);
    const auto staging = weights::RemoteStaging::make(*parts, *own.memory, *own.mover);
    REQUIRE_OK(staging);
    for (std::uint32_t part = 0; part < given.slots.size(); part++) {
        std::vector<std::byte> slot = given.slots[part];
        REQUIRE_OK((*staging)->fetch(part, slot.data(), {}));
        std::ranges::fill(slot, std::byte{0xa5});
    }
    REQUIRE((arena == given.arena));
    for (std::uint32_t part = 0; part < given.slots.size(); part++) {
        REQUIRE_OK((*staging)->place(part, {}));
    }
    REQUIRE((arena == given.wanted));
}

std::vector<std::int32_t> counted(std::size_t elements) {
    std::vector<std::int32_t> made(elements);
    for (std::size_t i = 0; i < elements; i++) made[i] = static_cast<std::int32_t>(i);
    return made;
}

// One tensor "w" of 12 rows of 10, published as they come: the error of attach for an engine.
struct Refusal {
    Errc code{};
    std::string message;
};
Refusal refusal(const std::vector<WeightTensor>& into, std::uint64_t slot_bytes = 0) {
    auto memory = counted(12000);
    std::vector<WeightTensor> from{
        {.name = "w", .dtype = dtype_i32, .shape = {12, 10}, .data = memory.data()},
        {.name = "long", .dtype = dtype_i32, .shape = {12000}, .data = memory.data()}};
    const TestRing ring;
    auto publisher = Publisher::create(ring.name(), from, {.slot_bytes = slot_bytes});
    REQUIRE_OK(publisher);
    const auto made = Subscriber::attach(ring.name(), into, {.partial = true}, patience());
    if (made) return {};
    return {made.error().code, made.error().message};
}

}  // namespace

TEST_CASE("random views hold what a chain of narrow, swap and split holds") {
    for (unsigned seed = 1; seed <= 120; seed++) {
        CAPTURE(seed);
        std::mt19937_64 dice(seed);
        constexpr std::uint64_t slot_bytes[] = {512, 1024, 3584, 16384, 0};
        const ViewSizes sizes{.row_multiple = seed % 3 == 0 ? 8U : 1U,
                              .slot_bytes = slot_bytes[seed % 5]};
        const ViewCase given = random_views(sizes, dice);
        check_load(given);
        check_staged(given);
    }
}

TEST_CASE("fused and sharded tensors of one engine, through a channel") {
    // A trainer's q, k, v [_, 48], o [48, 40], an embedding of 33 rows with its tied head.
    auto q = counted(64 * 48);
    auto k = counted(16 * 48);
    auto v = counted(16 * 48);
    auto o = counted(48 * 40);
    auto embed = counted(33 * 48);
    for (auto& value : k) value += 10'000;
    for (auto& value : v) value += 20'000;
    const auto tensor = [](const char* name, std::vector<std::int64_t> shape, void* data) {
        return WeightTensor{
            .name = name, .dtype = dtype_i32, .shape = std::move(shape), .data = data};
    };
    const std::vector<WeightTensor> from{
        tensor("q", {64, 48}, q.data()),         tensor("k", {16, 48}, k.data()),
        tensor("v", {16, 48}, v.data()),         tensor("o", {48, 40}, o.data()),
        tensor("embed", {33, 48}, embed.data()), tensor("head", {33, 48}, embed.data())};
    // Rank 1 of 2: its halves of the rows of q, k and v, one after the other; its half of the
    // columns of o; rows 20 to 39 of an embedding that is padded to 40.
    std::vector<std::int32_t> qkv(48 * 48, -1);
    std::vector<std::int32_t> o_columns(48 * 20, -1);
    std::vector<std::int32_t> vocabulary(20 * 48, -1);
    std::vector<std::int32_t> head(20 * 48, -1);
    auto with = [&](WeightTensor one, std::uint64_t offset, std::vector<std::int64_t> strides) {
        one.view = TensorView{offset, std::move(strides)};
        return one;
    };
    const std::vector<WeightTensor> into{
        with(tensor("q", {32, 48}, qkv.data()), 32 * 48, {}),
        with(tensor("k", {8, 48}, &qkv[32 * 48]), 8 * 48, {}),
        with(tensor("v", {8, 48}, &qkv[40 * 48]), 8 * 48, {}),
        with(tensor("o", {48, 20}, o_columns.data()), 20, {40, 1}),
        with(tensor("embed", {13, 48}, vocabulary.data()), 20 * 48, {}),
        with(tensor("head", {6, 48}, head.data()), 20 * 48, {}),
        with(tensor("head", {7, 48}, &head[6 * 48]), 26 * 48, {})};
    for (const std::uint64_t slot_bytes : {0, 4096, 512}) {
        const TestRing ring;
        auto publisher =
            Publisher::create(ring.name(), from, {.slot_bytes = slot_bytes, .checksums = true});
        REQUIRE_OK(publisher);
        auto subscriber = Subscriber::attach(ring.name(), into, {}, patience());
        REQUIRE_OK(subscriber);
        for (std::int64_t version = 1; version <= 2; version++) {
            for (auto* all : {&qkv, &o_columns, &vocabulary, &head}) std::ranges::fill(*all, -1);
            std::thread engine([&] { REQUIRE_OK(take(*subscriber)); });
            auto transaction = publisher->begin(version);
            REQUIRE_OK(transaction);
            REQUIRE_OK(transaction->put_all(patience()));
            REQUIRE_OK(transaction->publish());
            REQUIRE_OK(transaction->commit(patience()));
            engine.join();
            CHECK(subscriber->live_version() == version);
            CHECK(std::equal(q.begin() + 32 * 48, q.end(), qkv.begin()));
            CHECK(std::equal(k.begin() + 8 * 48, k.end(), qkv.begin() + 32 * 48));
            CHECK(std::equal(v.begin() + 8 * 48, v.end(), qkv.begin() + 40 * 48));
            for (std::size_t row = 0; row < 48; row++) {
                REQUIRE(std::equal(o.begin() + static_cast<std::ptrdiff_t>(row * 40 + 20),
                                   o.begin() + static_cast<std::ptrdiff_t>(row * 40 + 40),
                                   o_columns.begin() + static_cast<std::ptrdiff_t>(row * 20)));
            }
            for (const auto* padded : {&vocabulary, &head}) {
                CHECK(std::equal(embed.begin() + 20 * 48, embed.end(), padded->begin()));
                CHECK(std::all_of(padded->begin() + 13 * 48, padded->end(),
                                  [](std::int32_t value) { return value == -1; }));
            }
        }
    }
}

TEST_CASE("rows that lie behind each other on both sides are one copy") {
    const weights::PackedTensor published{
        .name = "w", .dtype = dtype_i32, .shape = {100, 8, 16}, .elements = 100 * 8 * 16};
    std::vector<std::int32_t> memory(100 * 8 * 16);
    const auto copies = [&](const WeightTensor& tensor, const weights::Piece& piece) {
        auto view = weights::ViewCopies::make(tensor, published);
        REQUIRE_OK(view);
        std::vector<weights::CopyJob> jobs;
        REQUIRE_OK(view->cut(piece, jobs));
        return jobs;
    };
    WeightTensor rows{.name = "w",
                      .dtype = dtype_i32,
                      .shape = {10, 2, 4, 16},
                      .data = memory.data(),
                      .view = TensorView{5 * 128, {128, 64, 16, 1}}};
    auto jobs = copies(rows, {.first_element = 0, .elements = 12800, .slot_offset = 512});
    REQUIRE(jobs.size() == 1);
    CHECK((jobs[0].shape.empty() && jobs[0].elements == 1280));
    CHECK((jobs[0].view && jobs[0].slot_offset == 512 + 5 * 128 * 4));
    // Cut, it is one copy out of each piece all the same.
    jobs = copies(rows, {.first_element = 700, .elements = 333, .slot_offset = 0});
    REQUIRE(jobs.size() == 1);
    CHECK((jobs[0].shape.empty() && jobs[0].elements == 333 && jobs[0].slot_offset == 0));
    CHECK(jobs[0].tensor == reinterpret_cast<std::byte*>(memory.data() + 60));
    // Half the columns: rows of them, or one row where the piece has no more.
    WeightTensor columns = rows;
    columns.shape = {800, 8};
    columns.view = TensorView{8, {16, 1}};
    jobs = copies(columns, {.first_element = 0, .elements = 12800, .slot_offset = 0});
    REQUIRE(jobs.size() == 1);
    CHECK((jobs[0].shape == std::vector<std::int64_t>{800, 8} &&
           jobs[0].packed_strides == std::vector<std::int64_t>{16, 1}));
    jobs = copies(columns, {.first_element = 13, .elements = 16, .slot_offset = 0});
    REQUIRE(jobs.size() == 2);
    CHECK((jobs[0].shape.empty() && jobs[0].elements == 3 && jobs[0].slot_offset == 0));
    CHECK((jobs[1].elements == 5 && jobs[1].slot_offset == (24 - 13) * 4));
    CHECK(copies(columns, {.first_element = 16, .elements = 8, .slot_offset = 0}).empty());
}

TEST_CASE("views that cannot be are refused by name") {
    std::vector<std::int32_t> memory(20000);
    const WeightTensor good{.name = "w",
                            .dtype = dtype_i32,
                            .shape = {3, 4},
                            .data = memory.data(),
                            .view = TensorView{6, {10, 1}}};
    const auto with = [&](const auto& change) {
        WeightTensor tensor = good;
        change(tensor);
        return std::vector<WeightTensor>{tensor};
    };
    const auto says = [&](const auto& change, Errc code, const std::string& mentions) {
        const Refusal said = refusal(with(change));
        CHECK(said.code == code);
        CHECK_MESSAGE(said.message.find(mentions) != std::string::npos, said.message);
    };
    CHECK(refusal({good}).message.empty());
    CHECK(refusal({good, good}).message.empty());
    says([](WeightTensor& t) { t.view->offset = 97; }, Errc::layout_mismatch,
         "'w': its view reaches element 120, 120 are published");
    CHECK(refusal(with([](WeightTensor& t) { t.view->offset = 96; })).message.empty());
    says([](WeightTensor& t) { t.view->offset = ~std::uint64_t{0}; }, Errc::layout_mismatch,
         "'w': its view reaches element 18446744073709551615, 120");
    says([](WeightTensor& t) { t.view->strides = {std::int64_t{1} << 62, 1}; },
         Errc::layout_mismatch, "'w': its view reaches element 9223372036854775817, 120");
    says([](WeightTensor& t) { t.view->strides = {10, -1}; }, Errc::unsupported,
         "'w': its view has negative strides");
    says([](WeightTensor& t) { t.view->strides = {10}; }, Errc::invalid_argument,
         "'w': strides of its view and shape");
    says([](WeightTensor& t) { t.dtype = dtype_f32; }, Errc::layout_mismatch, "'w': dtype f32");
    says([](WeightTensor& t) { t.data = nullptr; }, Errc::layout_mismatch, "'w': no address");
    says([](WeightTensor& t) { t.name = "v"; }, Errc::layout_mismatch, "'v' first");
    says([](WeightTensor& t) { t.strides = {0, 1}; }, Errc::unsupported,
         "'w': its elements overlap");
    says(
        [](WeightTensor& t) {
            t.shape = {2, 2, 2, 2, 2, 2, 2};
            t.view = TensorView{0, {1, 3, 5, 7, 9, 2, 4}};
        },
        Errc::unsupported, "'w': its view has more than 6 dimensions");
    // Nothing is taken, so nothing is wrong.
    CHECK(refusal(with([](WeightTensor& t) {
              t.shape = {0, 4};
              t.data = nullptr;
              t.view->offset = 1'000'000;
          })).message.empty());
    // One without a view is all of the tensor: no other has its name.
    WeightTensor whole = good;
    whole.shape = {12, 10};
    whole.view.reset();
    CHECK(refusal({whole}).message.empty());
    CHECK(refusal({whole, good}).message == "tensor 'w' is listed twice");
    CHECK(refusal({good, whole}).message == "tensor 'w' is listed twice");
    // Windows that lie on each other: each end of a part cuts through thousands of them.
    WeightTensor windows = good;
    windows.name = "long";
    windows.shape = {5000, 5000};
    windows.strides = {1, 2};
    windows.view = TensorView{0, {1, 1}};
    CHECK(refusal({windows}).message.empty());
    const Refusal many = refusal({windows}, 16384);
    CHECK(many.code == Errc::unsupported);
    CHECK_MESSAGE(many.message.find("'long': its view needs too many copies across parts") !=
                      std::string::npos,
                  many.message);
}

TEST_CASE("a publisher has no views") {
    std::vector<float> memory(100);
    const TestRing ring;
    const auto made =
        Publisher::create(ring.name(), std::vector<WeightTensor>{{.name = "w",
                                                                  .dtype = dtype_f32,
                                                                  .shape = {100},
                                                                  .data = memory.data(),
                                                                  .view = TensorView{}}});
    REQUIRE(!made);
    CHECK(made.error().code == Errc::invalid_argument);
    CHECK(made.error().message.find("'w': it has a view, which only engines may use") !=
          std::string::npos);
}

TEST_CASE("a plan with views only unpacks") {
    std::vector<std::byte> memory(64);
    std::vector<std::byte> slot(1024);
    device::HostMover mover;
    auto plan = mover.plan({{.tensor = memory.data(),
                             .elements = 4,
                             .slot_offset = 8,
                             .element_bytes = 4,
                             .view = true}});
    REQUIRE_OK(plan);
    CHECK((*plan)->pack(slot.data(), {}, {}).error().code == Errc::invalid_argument);
    CHECK((*plan)->pack_one(0, memory.data(), slot.data(), {}, {}).error().code ==
          Errc::invalid_argument);
    CHECK((*plan)->verify(slot.data(), 512, patience()).error().code == Errc::invalid_argument);
    REQUIRE_OK((*plan)->unpack(slot.data(), {}));
}

}  // namespace rollring::test
