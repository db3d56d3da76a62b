// Any bytes as a record: refused with a reason, or every column lies inside and can be read.

#include <cstdlib>
#include <cstring>
#include <memory>

#include "rollring/trajectory.hpp"
#include "round_up.hpp"
#include "wire.hpp"
#include "xxh3.hpp"

using namespace rollring;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
    static const Schema schema = Schema::standard();
    if (count < 1) return 0;
    const std::size_t record_bytes = count - 1;
    // A block of its own, exactly as long, so that one byte too far is seen.
    const std::unique_ptr<std::byte, decltype(&std::free)> block(
        static_cast<std::byte*>(std::aligned_alloc(line_bytes, round_up(record_bytes + 1, 64))),
        &std::free);
    std::byte* const at = block.get();
    std::memcpy(at, bytes + 1, record_bytes);
    if ((bytes[0] & 1) != 0 && record_bytes >= sizeof(RecordHeader)) {
        auto& header = *reinterpret_cast<RecordHeader*>(at);  // fields that it could not guess
        header.magic = record_magic;
        header.abi = record_abi;
        header.header_bytes = sizeof(RecordHeader);
        header.record_bytes = record_bytes;
        header.schema_id = schema.id();
        if ((bytes[0] & 2) != 0) header.checksum_kind = 0;
        const auto key = GroupKey::of("p", header.visit);
        if ((bytes[0] & 4) != 0) header.key_low = key.low;
        if ((bytes[0] & 4) != 0) header.key_high = key.high;
    }
    TrajectoryView view;
    if (!view.parse({at, record_bytes}, schema).empty()) return 0;
    std::uint64_t sum = view.digest(schema);
    for (const ColumnView& column : view.columns()) {
        if (column.data.data() < at ||
            column.data.data() + column.data.size() > at + record_bytes) {
            std::abort();
        }
        for (const std::byte one : column.data) sum += static_cast<std::uint64_t>(one);
    }
    for (const std::int32_t token : view.token_ids()) sum += static_cast<std::uint64_t>(token);
    if (view.token_ids().size() > view.n_tokens()) std::abort();
    return sum == 0x5eed ? 1 : 0;  // so that the reads are not dropped
}
