// Tensors of all kinds: strides, casts, ties, refusals by name.

#include <bit>
#include <thread>

#include "channel.hpp"

namespace rollring::test {
namespace {

// One sync through a channel of its own.
void sync(std::vector<WeightTensor>& from, std::vector<WeightTensor>& into,
          const PublisherOptions& options = {}) {
    const TestRing ring;
    auto publisher = Publisher::create(ring.name(), from, options);
    REQUIRE_OK(publisher);
    auto subscriber = Subscriber::attach(ring.name(), into, {}, patience());
    REQUIRE_OK(subscriber);
    std::thread engine([&] { REQUIRE_OK(take(*subscriber)); });
    auto transaction = publisher->begin(1);
    REQUIRE_OK(transaction);
    REQUIRE_OK(transaction->put_all(patience()));
    REQUIRE_OK(transaction->publish());
    REQUIRE_OK(transaction->commit(patience()));
    engine.join();
}

Errc refusal(std::vector<WeightTensor> tensors, const std::string& mentions) {
    const TestRing ring;
    const auto made = Publisher::create(ring.name(), tensors);
    REQUIRE(!made);
    CHECK_MESSAGE(made.error().message.find(mentions) != std::string::npos, made.error().message);
    return made.error().code;
}

}  // namespace

TEST_CASE("strided sources and destinations") {
    std::vector<float> matrix(24 * 50);
    for (std::size_t i = 0; i < matrix.size(); i++) matrix[i] = static_cast<float>(i);
    std::vector<float> row_major(50 * 24);
    std::vector<float> padded(50 * 32, -1.0F);
    // The transposed matrix, a slice of its columns, and a row that is there 3 times.
    std::vector<WeightTensor> from{
        {.name = "t",
         .dtype = dtype_f32,
         .shape = {50, 24},
         .strides = {1, 50},
         .data = matrix.data()},
        {.name = "t2",
         .dtype = dtype_f32,
         .shape = {50, 24},
         .strides = {1, 50},
         .data = matrix.data()},
        {.name = "rows",
         .dtype = dtype_f32,
         .shape = {3, 50},
         .strides = {0, 1},
         .data = matrix.data() + 50},
    };
    from[1].tag = "again";
    std::vector<float> rows(150);
    std::vector<WeightTensor> into{
        {.name = "t", .dtype = dtype_f32, .shape = {50, 24}, .data = row_major.data()},
        {.name = "t2",
         .dtype = dtype_f32,
         .shape = {50, 24},
         .strides = {32, 1},
         .data = padded.data()},
        {.name = "rows", .dtype = dtype_f32, .shape = {3, 50}, .data = rows.data()},
    };
    for (const std::uint64_t slot_bytes : {std::uint64_t{0}, std::uint64_t{1024}}) {
        sync(from, into, {.slot_bytes = slot_bytes, .checksums = true});
        for (std::size_t i = 0; i < 50; i++) {
            for (std::size_t j = 0; j < 24; j++) {
                CHECK(row_major[i * 24 + j] == static_cast<float>(j * 50 + i));
                CHECK(padded[i * 32 + j] == static_cast<float>(j * 50 + i));
            }
            CHECK(padded[i * 32 + 24] == -1.0F);
            for (std::size_t row = 0; row < 3; row++) {
                CHECK(rows[row * 50 + i] == static_cast<float>(50 + i));
            }
        }
    }
}

TEST_CASE("strides of a tensor without elements mean nothing, at either end") {
    std::vector<float> bias(4, 2.0F);
    std::vector<float> got(4);
    std::vector<WeightTensor> from{
        {.name = "bias", .dtype = dtype_f32, .shape = {4}, .data = bias.data()},
        {.name = "none", .dtype = dtype_f32, .shape = {0, 4}, .strides = {0, 0}},
    };
    std::vector<WeightTensor> into = from;  // numpy gives such strides
    into[0].data = got.data();
    sync(from, into, {});
    CHECK(got == bias);
}

TEST_CASE("f32 goes out as bf16 or f16, rounded to nearest even") {
    const std::vector<float> values{1.0F,
                                    -2.5F,
                                    1.00390625F,  // between two bf16: to even
                                    1.01171875F,  // likewise, the other way
                                    65519.0F,
                                    65520.0F,
                                    5.96e-8F,
                                    std::bit_cast<float>(0x7f800000U),
                                    std::bit_cast<float>(0xffc00001U)};
    const auto count = static_cast<std::int64_t>(values.size());
    std::vector<std::uint16_t> bf16(values.size());
    std::vector<std::uint16_t> f16(values.size());
    auto* data = const_cast<float*>(values.data());
    std::vector<WeightTensor> from{{.name = "b",
                                    .dtype = dtype_f32,
                                    .shape = {count},
                                    .data = data,
                                    .published_dtype = dtype_bf16},
                                   {.name = "h",
                                    .dtype = dtype_f32,
                                    .shape = {count},
                                    .data = data,
                                    .published_dtype = dtype_f16}};
    std::vector<WeightTensor> into{
        {.name = "b", .dtype = dtype_bf16, .shape = {count}, .data = bf16.data()},
        {.name = "h", .dtype = dtype_f16, .shape = {count}, .data = f16.data()}};
    sync(from, into);
    CHECK(bf16 == std::vector<std::uint16_t>{0x3f80, 0xc020, 0x3f80, 0x3f82, 0x4780, 0x4780, 0x3380,
                                             0x7f80, 0x7fff});
    CHECK(f16 == std::vector<std::uint16_t>{0x3c00, 0xc100, 0x3c04, 0x3c0c, 0x7bff, 0x7c00, 0x0001,
                                            0x7c00, 0x7fff});
}

TEST_CASE("tensors that are gathered one by one") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    std::vector<WeightTensor> without_address = trainer.list();
    for (WeightTensor& tensor : without_address) tensor.data = nullptr;
    auto publisher =
        Publisher::create(ring.name(), without_address, {.slot_bytes = 4096, .checksums = true});
    REQUIRE_OK(publisher);
    Subscriber subscriber = subscriber_on(ring, engine);
    std::thread other([&] { CHECK(*take(subscriber) == 1); });
    trainer.fill(1);
    auto transaction = publisher->begin(1);
    REQUIRE_OK(transaction);
    CHECK(transaction->put_all(patience()).error().code == Errc::invalid_argument);
    CHECK(transaction->put("no-such", nullptr, patience()).error().code == Errc::invalid_argument);
    for (const WeightTensor& tensor : trainer.list()) {
        if (tensor.name == "layer.0.bias") {
            const auto early = transaction->put("ids", tensor.data, patience());
            REQUIRE(!early);
            CHECK(early.error().message.find("layer.0.bias is next") != std::string::npos);
            CHECK(transaction->publish().error().code == Errc::invalid_argument);
        }
        REQUIRE_OK(transaction->put(tensor.name, tensor.data, patience()));
    }
    REQUIRE_OK(transaction->put_all(patience()));  // nothing is left that would need an address
    REQUIRE_OK(transaction->publish());
    REQUIRE_OK(transaction->commit(patience()));
    other.join();
    CHECK(engine.holds(1));
}

TEST_CASE("engines that load from views see every element once") {
    const TestRing ring;
    Tensors trainer = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.slot_bytes = 4096});
    auto attached = Subscriber::attach(ring.name(), {}, {}, patience());
    REQUIRE_OK(attached);
    Subscriber& subscriber = *attached;
    std::thread other([&] { REQUIRE_OK(send(publisher, trainer, 1).commit(patience())); });
    auto update = subscriber.next(patience());
    REQUIRE_OK(update);
    CHECK(update->load(patience()).error().code == Errc::invalid_argument);
    std::vector<std::uint64_t> seen(subscriber.tensors().size());
    for (std::uint32_t part = 0; part < update->parts(); part++) {
        const auto views = update->part(part, patience());
        REQUIRE_OK(views);
        for (const TensorPiece& piece : *views) {
            const TensorInfo& tensor = subscriber.tensors()[piece.tensor];
            CHECK(piece.first_element == seen[piece.tensor]);
            CHECK(reinterpret_cast<std::uintptr_t>(piece.data) % 512 == 0);
            if (tensor.name == "embed") CHECK(piece.elements % 100 == 0);  // whole rows
            seen[piece.tensor] += piece.elements;
            for (std::uint64_t i = 0; i < piece.elements * tensor.dtype.bytes(); i++) {
                const std::uint64_t place = piece.first_element * tensor.dtype.bytes() + i;
                REQUIRE(piece.data[i] == Tensors::byte_of(1, piece.tensor, place));
            }
        }
        REQUIRE_OK(update->done_reading(part));
    }
    for (std::size_t i = 0; i < seen.size(); i++) {
        CHECK(seen[i] * subscriber.tensors()[i].dtype.bytes() == subscriber.tensors()[i].bytes);
    }
    REQUIRE_OK(update->stage(patience()));
    REQUIRE_OK(update->adopt(patience()));
    other.join();
}

TEST_CASE("a flipped bit is found and the tensor named") {
    // Checksums are the publisher's; a source that changes while it is packed is not a fault, so
    // the slot itself is changed, by the test, in the moment between publish and load.
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.checksums = true});
    Subscriber subscriber = subscriber_on(ring, engine);
    Transaction transaction = send(publisher, trainer, 1);
    auto update = subscriber.next(patience());
    REQUIRE_OK(update);
    flip_bit_in_slots(trainer.memory()[5]);
    const auto part = update->part(0, patience());
    REQUIRE(!part);
    CHECK(part.error().code == Errc::checksum_mismatch);
    CHECK(part.error().message.find("'quantized'") != std::string::npos);
    CHECK(subscriber.state() == SubscriberState::ready);  // nothing was written
}

TEST_CASE("engine and channel must agree, tensor by tensor") {
    const TestRing ring;
    Tensors trainer = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    const auto refused = [&](const auto& change, const std::string& mentions,
                             SubscriberOptions options = {}) {
        Tensors engine = small_model();
        change(engine.list());
        const auto made = Subscriber::attach(ring.name(), engine.list(), options, patience());
        REQUIRE(!made);
        CHECK(made.error().code == Errc::layout_mismatch);
        CHECK_MESSAGE(made.error().message.find(mentions) != std::string::npos,
                      made.error().message);
    };
    using List = std::vector<WeightTensor>;
    refused([](List& list) { list[1].dtype = dtype_f16; },
            "'layer.0.q': dtype f16 here, bf16 published");
    refused([](List& list) { list[0].shape = {100, 33}; },
            "'embed': shape [100, 33] here, [33, 100] published");
    refused([](List& list) { list.pop_back(); },
            "1 of 7 published tensors are not among the engine's, 'ids' first");
    refused([](List& list) { list[0].name = "embedding"; }, "'embed'");
    refused(
        [](List& list) {
            static std::vector<float> elsewhere(3300);
            list.push_back(list[0]);
            list.back().name = "more";
            list.back().data = elsewhere.data();
        },
        "1 of 8 tensors of the engine are not published, 'more' first");
    refused(
        [](List& list) {
            for (WeightTensor& tensor : list) tensor.name.insert(0, "model.");
        },
        "7 of 7 tensors of the engine are not published, 'model.embed' first; the engine's begin "
        "with 'model.'");
    {  // a second name for memory that is written anyway
        Tensors engine = small_model();
        WeightTensor alias = engine.list().front();
        alias.name = "alias";
        engine.list().push_back(alias);
        REQUIRE_OK(Subscriber::attach(ring.name(), engine.list(), {}, patience()));
    }
    refused([](List& list) { list[4].data = nullptr; }, "'scale': no address");
    const auto unusable = [&](const auto& change, const std::string& mentions) {
        Tensors engine = small_model();
        change(engine.list());
        const auto made = Subscriber::attach(ring.name(), engine.list(), {}, patience());
        REQUIRE(!made);
        CHECK_MESSAGE(made.error().message.find(mentions) != std::string::npos,
                      made.error().message);
    };
    unusable([](List& list) { list[0].strides = {100, 1, 1, 1}; }, "'embed': strides and shape");
    unusable([](List& list) { list[0].strides = {0, 1}; }, "'embed': its elements overlap");
    unusable([](List& list) { list.push_back(list[0]); }, "'embed' is listed twice");
    Tensors engine = small_model();
    engine.list().erase(engine.list().begin() + 1);
    REQUIRE_OK(Subscriber::attach(ring.name(), engine.list(), {.partial = true}, patience()));
}

TEST_CASE("tensors that cannot be published are refused by name") {
    std::vector<float> memory(100);
    const WeightTensor good{
        .name = "w", .dtype = dtype_f32, .shape = {10, 10}, .data = memory.data()};
    const auto with = [&](const auto& change) {
        WeightTensor tensor = good;
        change(tensor);
        return std::vector<WeightTensor>{tensor};
    };
    CHECK(refusal(with([](WeightTensor& t) { t.name = ""; }), "1 to 1023 bytes") ==
          Errc::invalid_argument);
    CHECK(refusal(with([](WeightTensor& t) { t.dtype = {9, 13}; }), "'w': dtype code 9") ==
          Errc::unsupported);
    CHECK(refusal(with([](WeightTensor& t) { t.shape = {10, -1}; }), "'w': an extent") ==
          Errc::invalid_argument);
    CHECK(refusal(with([](WeightTensor& t) { t.shape = {1L << 40, 1L << 40}; }), "'w'") ==
          Errc::invalid_argument);
    CHECK(refusal(with([](WeightTensor& t) { t.strides = {10}; }), "'w': strides and shape") ==
          Errc::invalid_argument);
    CHECK(refusal(with([](WeightTensor& t) { t.strides = {-10, 1}; }), "'w': strides below") ==
          Errc::unsupported);
    CHECK(refusal(with([](WeightTensor& t) { t.published_dtype = dtype_f64; }),
                  "'w': cannot publish f32 as f64") == Errc::unsupported);
    CHECK(refusal({good, good}, "'w': its name is duplicated") == Errc::invalid_argument);
    CHECK(refusal(with([](WeightTensor& t) {
                      t.shape = {2, 2, 2, 2, 2, 2, 2};
                      t.strides = {1, 3, 9, 27, 5, 7, 11};
                  }),
                  "more than 6 dimensions") == Errc::unsupported);
}

TEST_CASE("a machine without a GPU says so") {
    if (!visible_gpus().empty()) return;
    CHECK_FALSE(why_no_gpu().empty());
    const TestRing ring;
    Tensors trainer = small_model();
    const auto gpu = Publisher::create(ring.name(), trainer.list(), {.device = Device::cuda(0)});
    REQUIRE(!gpu);
    CHECK(gpu.error().code == Errc::no_gpu);
    Publisher publisher = publisher_on(ring, trainer);
    const auto engine =
        Subscriber::attach(ring.name(), {}, {.device = Device::cuda(0)}, patience());
    REQUIRE(!engine);
    CHECK(engine.error().code == Errc::no_gpu);
    const auto memory =
        Publisher::create(ring.name(), trainer.list(), {.rank = 0, .memory = PayloadMemory::vmm});
    CHECK(memory.error().code == Errc::invalid_argument);
}

TEST_CASE("a channel without any tensor carries versions all the same") {
    std::vector<WeightTensor> nothing;
    sync(nothing, nothing);
}

}  // namespace rollring::test
