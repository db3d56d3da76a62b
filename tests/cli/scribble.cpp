// Writes over a word of a ring's memory, as a broken process would: for tests of the program.
//
// usage: scribble RING FIELD VALUE
//   dropped_bytes  of lane 0, in the consumer's page

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "ring_map.hpp"

using namespace rollring;

int main(int argc, char** argv) {
    if (argc != 4 || std::string_view(argv[2]) != "dropped_bytes") {
        fmt::print(stderr, "usage: scribble RING dropped_bytes VALUE\n");
        return 2;
    }
    const auto segment = Segment::attach(argv[1], Deadline::now());
    if (!segment) {
        fmt::print(stderr, "{}\n", segment.error().to_string());
        return 1;
    }
    const Geometry& geometry = segment->geometry();
    const std::uint64_t from = geometry.reader_offset();
    const auto pages = segment->map(from, geometry.owners_offset() - from, true);
    if (!pages) {
        fmt::print(stderr, "{}\n", pages.error().to_string());
        return 1;
    }
    poke(pages->at<ReaderEntry>(geometry.entries_offset() - from).dropped_bytes,
         std::uint64_t{std::stoull(argv[3])});
    return 0;
}
