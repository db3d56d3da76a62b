#pragma once
// Records whose whole content follows from two numbers, so that any process can check any of them.

#include <cstdint>
#include <vector>

#include "process.hpp"
#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "splitmix64.hpp"

namespace rollring::test {

// Record `number` of `stream`.
class Load {
  public:
    static std::uint32_t tokens(std::uint64_t stream, std::uint64_t number) {
        return static_cast<std::uint32_t>(64 + mix(mix(stream) ^ number) % 1937);
    }
    static std::int32_t token(std::uint64_t stream, std::uint64_t number, std::uint32_t index) {
        return static_cast<std::int32_t>((stream * 31 + number * 7 + index) & 0x3fffffff);
    }

    // The draft points into this object and lives until the next call.
    Draft draft(std::uint64_t stream, std::uint64_t number) {
        values_.resize(tokens(stream, number));
        fill(values_, stream, number);
        Draft draft = named(stream, number);
        draft.set(Std::token_ids, values_);
        return draft;
    }

    // Three ways into the lane, by turns: encoded, in place with a shorter commit, and batched.
    Push push(Producer& producer, std::uint64_t stream, std::uint64_t number) {
        if (number % 3 != 1) return producer.push(draft(stream, number), patience());
        Draft shape = named(stream, number);
        const std::uint32_t count = tokens(stream, number);
        shape.add({static_cast<std::uint16_t>(Std::token_ids),
                   dtype_i32,
                   {count + 100, 0, 0, 0},
                   1,
                   nullptr});
        Reservation room;
        const Push got = producer.reserve(shape, patience(), room);
        if (got != Push::ok) return got;
        fill(room.values<std::int32_t>(Std::token_ids).first(count), stream, number);
        room.shrink(count);
        return room.commit();
    }

    static void fill(std::span<std::int32_t> to, std::uint64_t stream, std::uint64_t number) {
        for (std::uint32_t i = 0; i < to.size(); i++) to[i] = token(stream, number, i);
    }

    static Draft named(std::uint64_t stream, std::uint64_t number) {
        Draft draft("load");
        draft.meta.visit = stream;
        draft.meta.repetition_id = static_cast<std::uint32_t>(number);
        return draft;
    }

    static std::uint64_t stream_of(const Record& record) { return record.view.meta().visit; }
    static std::uint64_t number_of(const Record& record) {
        return record.view.meta().repetition_id.value_or(0);
    }

    // Every token, on top of the checksum that the consumer has verified.
    static void verify(const Record& record) {
        const std::uint64_t stream = stream_of(record);
        const std::uint64_t number = number_of(record);
        const auto ids = record.view.token_ids();
        require(record.view.instance_id() == "load", "a foreign record");
        require(ids.size() == tokens(stream, number), "record {}/{} has {} tokens of {}", stream,
                number, ids.size(), tokens(stream, number));
        std::uint64_t wrong = 0;
        for (std::uint32_t i = 0; i < ids.size(); i++) {
            wrong += ids[i] != token(stream, number, i) ? 1 : 0;
        }
        require(wrong == 0, "record {}/{} has {} wrong tokens", stream, number, wrong);
    }

  private:
    std::vector<std::int32_t> values_;
};

}  // namespace rollring::test
