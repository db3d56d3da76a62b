#include "entry_list.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace rollring::device {
namespace {

constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;

}  // namespace

void EntryList::clear(std::uint64_t bytes_max, std::uint64_t bytes_kept) {
    const std::uint64_t keep = std::min(bytes_max, bytes_kept);
    while (!blocks_.empty() && allocated_ > keep) {
        allocated_ -= blocks_.back().bytes;
        blocks_.pop_back();
    }
    for (Block& block : blocks_) block.used = 0;
    current_ = 0;
    used_ = 0;
    bytes_max_ = bytes_max;
}

bool EntryList::add_block(std::uint64_t bytes) {
    const std::uint64_t left = bytes_max_ - std::min(bytes_max_, allocated_);
    lacks_memory_ = false;
    if (bytes > left) return false;
    const std::uint64_t size = std::min(left, std::max(bytes, block_bytes));
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[size]);
    lacks_memory_ = !memory;
    if (!memory) return false;
    blocks_.push_back({.memory = std::move(memory), .bytes = size});
    allocated_ += size;
    return true;
}

std::byte* EntryList::append(std::uint64_t bytes) {
    bytes = (bytes + 7) / 8 * 8;
    while (current_ < blocks_.size() && blocks_[current_].bytes - blocks_[current_].used < bytes) {
        current_++;
    }
    if (current_ == blocks_.size() && !add_block(bytes)) {
        current_ = blocks_.empty() ? 0 : blocks_.size() - 1;
        return nullptr;
    }
    Block& block = blocks_[current_];
    std::byte* const at = block.memory.get() + block.used;
    block.used += bytes;
    used_ += bytes;
    return at;
}

EntryList::Point EntryList::end() const {
    return {current_, current_ < blocks_.size() ? blocks_[current_].used : 0};
}

void EntryList::cut(Point at) {
    for (std::size_t i = at.block; i < blocks_.size(); i++) {
        const std::uint64_t left = i == at.block ? at.offset : 0;
        used_ -= blocks_[i].used - left;
        blocks_[i].used = left;
    }
    current_ = at.block;
}

}  // namespace rollring::device
