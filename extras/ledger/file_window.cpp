#include "file_window.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "ledger_layout.hpp"

namespace rollring::ledger {
namespace {

constexpr std::uint64_t window_bytes = std::uint64_t{4} << 20;

}  // namespace

std::span<const std::byte> FileWindow::at(std::uint64_t offset, std::uint64_t bytes) {
    if (offset < begin_ || offset + bytes > end_) {
        fill(offset, std::max(bytes, std::min(file_bytes_ - offset, window_bytes)));
    }
    return {memory_.data() + (offset - begin_), bytes};
}

void FileWindow::fill(std::uint64_t offset, std::uint64_t bytes) {
    const bool overlaps = offset >= begin_ && offset < end_;
    const std::uint64_t there = overlaps ? std::min(end_ - offset, bytes) : 0;
    if (there != 0) std::memmove(memory_.data(), memory_.data() + (offset - begin_), there);
    if (memory_.size() < bytes) memory_.resize(bytes);
    begin_ = offset;
    end_ = offset + bytes;
    const std::span<std::byte> rest(memory_.data() + there, bytes - there);
    const auto read = file_->read_part(offset + there, rest.data(), rest.size());
    if (!read || !*read) fill_by_blocks(rest, offset + there);
}

void FileWindow::fill_by_blocks(std::span<std::byte> to, std::uint64_t offset) {
    while (!to.empty()) {
        const std::span<std::byte> part =
            to.first(std::min<std::uint64_t>(block - offset % block, to.size()));
        const auto read = file_->read_part(offset, part.data(), part.size());
        if (!read || !*read) {
            std::ranges::fill(part, std::byte{});
            if (problem_.empty()) {
                problem_ =
                    fmt::format("{}: byte {} cannot be read: {}", file_->path().string(), offset,
                                read ? "the file has become shorter"
                                     : std::generic_category().message(read.error().system_errno));
            }
        }
        to = to.subspan(part.size());
        offset += part.size();
    }
}

}  // namespace rollring::ledger
