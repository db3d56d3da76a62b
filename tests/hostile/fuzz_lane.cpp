// Any lane: whatever its words and frames claim, the reader stays inside and comes to an end.
//
// The input is a list of 8-byte steps: frames that are sound but for one field, words that move,
// and the consumer's steps in between.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "lane_reader.hpp"
#include "orders.hpp"

using namespace rollring;

namespace {

constexpr std::uint64_t capacity = 4096;

using NativeReader = LaneReader<NativePlatform>;

struct alignas(line_bytes) Data {
    std::byte bytes[capacity];
};

struct Lane {
    std::atomic<std::uint64_t> tail{};
    std::atomic<std::uint64_t> head{};
    std::atomic<std::uint64_t> cursor{};
    std::atomic<std::uint64_t> bits[capacity / line_bytes / 64]{};
    std::vector<Data> data = std::vector<Data>(1);  // on the heap, with a guard behind it
    std::uint64_t write_at = 0;
    std::uint64_t restart_at = 0;

    NativeReader reader() {
        return {tail, head, cursor, bits, NativePlatform::Frames{data[0].bytes}, capacity};
    }
    // One producer is done with, and the next one begins.
    void begin(NativeReader& reader) {
        restart_at = write_at = reader.read_position();
        reader.stop(restart_at);
        Frame frame{};
        if (reader.poll(frame) != LanePoll::empty || !reader.drained()) std::abort();
        tail = restart_at;
        reader.go_on();
    }
    void append(const std::uint8_t* step) {
        Frame frame{};
        frame.magic = frame_magic;
        frame.kind = static_cast<std::uint16_t>(1 + (step[1] & 1));
        frame.bytes = (1 + step[2] % 16) * line_bytes;
        const std::uint64_t left = capacity - write_at % capacity;
        if (frame.bytes > left) frame.bytes = left;
        frame.position = write_at;
        frame.payload_bytes = frame.bytes - line_bytes;
        const std::uint64_t bytes = frame.bytes;
        std::uint32_t value;
        std::memcpy(&value, step + 4, sizeof value);
        if ((step[1] & 2) != 0) {  // break one word of it
            std::memcpy(reinterpret_cast<std::byte*>(&frame) + std::size_t{4} * (step[3] % 15),
                        &value, 4);
        }
        std::memcpy(data[0].bytes + write_at % capacity, &frame, sizeof frame);
        write_at += bytes;
        if ((step[1] & 4) == 0) tail = write_at;
    }
};

void consume(Lane& lane, NativeReader& reader, std::vector<Span>& held, const std::uint8_t* step) {
    for (int i = 0; i < step[1] % 8; i++) {
        Frame frame{};
        const LanePoll got = reader.poll(frame);
        if (got == LanePoll::bad_frame && reader.read_position() < lane.restart_at) {
            if (reader.held_bytes() != 0) return;
            reader.pass_over(lane.restart_at);
            if (reader.read_position() != lane.restart_at) std::abort();
            continue;
        }
        if (got != LanePoll::record) return;
        const bool earlier = frame.position < lane.restart_at;
        if (earlier && frame.position + frame.bytes > lane.restart_at) std::abort();
        const std::uint64_t offset = frame.position % capacity;
        if (frame.bytes > capacity - offset || frame.payload_bytes > frame.bytes - line_bytes) {
            std::abort();
        }
        held.push_back({frame.position, frame.bytes});
    }
    if (reader.held_bytes() > 2 * capacity) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
    Lane lane;
    NativeReader reader = lane.reader();
    static_cast<void>(reader.recover());
    std::vector<Span> held;
    for (; count >= 8; bytes += 8, count -= 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes, sizeof word);
        switch (bytes[0] % 8) {
            case 0:
            case 1:
            case 2:
                lane.append(bytes);
                break;
            case 3:
                consume(lane, reader, held, bytes);
                break;
            case 4:
                if (held.empty()) break;
                std::swap(held[bytes[1] % held.size()], held.back());
                reader.release(held.back());
                held.pop_back();
                break;
            case 5:  // the consumer dies, and its own words may be damaged too
                if ((bytes[1] & 1) != 0) lane.cursor = word >> 16;
                if ((bytes[1] & 2) != 0) lane.head = word >> 24;
                if ((bytes[1] & 4) != 0) lane.bits[0] = word;
                reader = lane.reader();
                held.clear();
                if (reader.recover(0, lane.restart_at)) break;
                if (reader.held_bytes() != 0) std::abort();
                static_cast<void>(reader.start_over());  // as a quarantined lane's end is
                lane.begin(reader);
                break;
            case 6:
                lane.tail = (bytes[1] & 1) != 0 ? word : word >> 32 & ~std::uint64_t{63};
                break;
            default:
                if ((bytes[1] & 1) != 0) {
                    if (!held.empty()) break;
                    static_cast<void>(reader.start_over());
                } else if (!reader.drained()) {
                    break;
                }
                lane.begin(reader);
                break;
        }
    }
    return 0;
}
