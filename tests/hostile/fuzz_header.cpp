// Any bytes as the header and schema page of a segment: refused with a name, or consistent.

#include <cstdlib>
#include <cstring>

#include "schema_page.hpp"
#include "segment_object.hpp"
#include "xxh3.hpp"

using namespace rollring;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
    detail::HeaderImage image;
    constexpr std::size_t fixed = 9 + sizeof(SegmentHeader);
    if (count < fixed) return 0;
    std::memcpy(image.bytes, bytes + 9, sizeof image.bytes);
    auto& header = *reinterpret_cast<SegmentHeader*>(image.bytes);
    std::uint64_t object_bytes = 0;
    std::memcpy(&object_bytes, bytes + 1, sizeof object_bytes);
    // The fuzzer cannot guess a hash: let it set the fields and see them judged on their own.
    if ((bytes[0] & 1) != 0) {
        header.magic = segment_magic;
        header.abi = abi_version;
        header.header_bytes = sizeof(SegmentHeader);
        if ((bytes[0] & 2) != 0) {
            header.segment_bytes = detail::geometry_of(header).segment_bytes();
            object_bytes = header.segment_bytes;
        }
        header.check = XXH3_64bits(&header, detail::check_bytes);
    }
    if (detail::check_header(header, "/fuzz", object_bytes)) {
        const Geometry geometry = detail::geometry_of(header);
        const bool inside =
            geometry.segment_bytes() == object_bytes && geometry.lane_count > 0 &&
            geometry.data_offset(geometry.lane_count) + geometry.capacity(geometry.lane_count) ==
                geometry.board_offset() &&
            geometry.tombstones_offset() < geometry.share_seats_offset() &&
            geometry.share_seats_offset() + geometry.share_seats_bytes() == object_bytes &&
            geometry.owner_offset(0) > geometry.journal_offset() + geometry.journal_records &&
            geometry.lane_bytes % page_bytes == 0;
        if (!inside) std::abort();
    }
    SchemaPage page{};
    std::memcpy(&page, bytes + fixed, std::min(count - fixed, sizeof page));
    if (const auto schema = from_page(page)) {
        const SchemaPage again = to_page(*schema);
        if (!from_page(again)) std::abort();
    }
    return 0;
}
