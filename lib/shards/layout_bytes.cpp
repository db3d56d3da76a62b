// The table of a layout: header | tensors[] | memories[] | boxes[] | i64 dims[] | text.
// Little endian, every table 8-byte aligned. `hash` is XXH3-128 of all bytes with the hash as zero.
// Names and dims are in the order of the entries, without gaps, and bytes behind the text are zero:
// a layout has one table, and a table is not smaller than its layout.

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "layout_limits.hpp"
#include "rollring/weight_layout.hpp"
#include "round_up.hpp"
#include "xxh3.hpp"

namespace rollring {
namespace {

using namespace shards;

constexpr std::uint64_t layout_magic = 0x3154'5559'414c'4c52;  // "RLLAYUT1"
constexpr std::uint32_t layout_abi = 1;

struct LayoutHeader {
    std::uint64_t magic;
    std::uint32_t abi;
    std::uint32_t header_bytes;
    std::uint64_t bytes;
    std::uint64_t hash[2];
    std::uint32_t tensors;
    std::uint32_t memories;
    std::uint32_t boxes;
    std::uint32_t reserved;
    std::uint64_t dims;
    std::uint64_t text_bytes;
};
static_assert(sizeof(LayoutHeader) == 72);

struct TensorEntry {
    std::int64_t tied_to;
    std::uint64_t first_dim;  // of its shape
    std::uint32_t name_offset;
    std::uint16_t name_bytes;
    std::uint16_t dims;
};
static_assert(sizeof(TensorEntry) == 24);

struct MemoryEntry {
    std::uint64_t elements;
    std::uint32_t rank;
    std::uint32_t name_offset;
    std::uint16_t name_bytes;
    std::uint8_t dtype_code;
    std::uint8_t dtype_bits;
    std::uint32_t reserved;
};
static_assert(sizeof(MemoryEntry) == 24);

struct BoxEntry {
    std::uint64_t offset;
    std::uint64_t first_dim;  // start, length and strides follow each other
    std::uint32_t tensor;
    std::uint32_t memory;
};
static_assert(sizeof(BoxEntry) == 24);

struct LayoutOffsets {
    std::uint64_t tensors, memories, boxes, dims, text, end;

    explicit LayoutOffsets(const LayoutHeader& header)
        : tensors(sizeof header),
          memories(tensors + std::uint64_t{header.tensors} * sizeof(TensorEntry)),
          boxes(memories + std::uint64_t{header.memories} * sizeof(MemoryEntry)),
          dims(boxes + std::uint64_t{header.boxes} * sizeof(BoxEntry)),
          text(dims + header.dims * 8),
          end(text + round_up(header.text_bytes, 8)) {}
};

template <class T>
T layout_get(std::span<const std::byte> from, std::uint64_t offset) {
    T value;
    std::memcpy(&value, from.data() + offset, sizeof value);
    return value;
}

XXH128_hash_t layout_hash(std::span<const std::byte> bytes) {
    auto header = layout_get<LayoutHeader>(bytes, 0);
    header.hash[0] = header.hash[1] = 0;
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, &header, sizeof header);
    XXH3_128bits_update(&state, bytes.data() + sizeof header, bytes.size() - sizeof header);
    return XXH3_128bits_digest(&state);
}

class LayoutWriter {
  public:
    explicit LayoutWriter(const WeightLayout& layout) : layout_(layout) {
        for (const LayoutTensor& tensor : layout.tensors()) {
            header_.text_bytes += tensor.name.size();
            header_.dims += tensor.shape.size();
        }
        for (const LayoutMemory& memory : layout.memories()) {
            header_.text_bytes += memory.name.size();
        }
        for (std::size_t i = 0; i < layout.boxes(); i++) {
            header_.dims += 3 * layout.box(i).start.size();
        }
        header_.magic = layout_magic;
        header_.abi = layout_abi;
        header_.header_bytes = sizeof header_;
        header_.tensors = static_cast<std::uint32_t>(layout.tensors().size());
        header_.memories = static_cast<std::uint32_t>(layout.memories().size());
        header_.boxes = static_cast<std::uint32_t>(layout.boxes());
        at_ = LayoutOffsets(header_);
        header_.bytes = at_.end;
    }

    std::vector<std::byte> write() {
        bytes_.resize(at_.end);
        for (std::size_t i = 0; i < layout_.tensors().size(); i++) {
            const LayoutTensor& tensor = layout_.tensors()[i];
            put(at_.tensors, i,
                TensorEntry{tensor.tied_to, put_dims(tensor.shape), put_text(tensor.name),
                            static_cast<std::uint16_t>(tensor.name.size()),
                            static_cast<std::uint16_t>(tensor.shape.size())});
        }
        for (std::size_t i = 0; i < layout_.memories().size(); i++) {
            const LayoutMemory& memory = layout_.memories()[i];
            put(at_.memories, i,
                MemoryEntry{memory.elements, memory.rank, put_text(memory.name),
                            static_cast<std::uint16_t>(memory.name.size()), memory.dtype.code,
                            memory.dtype.bits, 0});
        }
        for (std::size_t i = 0; i < layout_.boxes(); i++) {
            const LayoutBox box = layout_.box(i);
            const std::uint64_t first = put_dims(box.start);
            put_dims(box.length);
            put_dims(box.strides);
            put(at_.boxes, i, BoxEntry{box.offset, first, box.tensor, box.memory});
        }
        put(0, 0, header_);
        const XXH128_hash_t hash = layout_hash(bytes_);
        header_.hash[0] = hash.low64;
        header_.hash[1] = hash.high64;
        put(0, 0, header_);
        return std::move(bytes_);
    }

  private:
    template <class T>
    void put(std::uint64_t table, std::size_t index, const T& value) {
        std::memcpy(bytes_.data() + table + index * sizeof value, &value, sizeof value);
    }
    std::uint64_t put_dims(std::span<const std::int64_t> dims) {
        const std::uint64_t first = dims_;
        for (const std::int64_t number : dims) put(at_.dims, dims_++, number);
        return first;
    }
    std::uint32_t put_text(std::string_view text) {
        std::memcpy(bytes_.data() + at_.text + text_, text.data(), text.size());
        text_ += text.size();
        return static_cast<std::uint32_t>(text_ - text.size());
    }

    const WeightLayout& layout_;
    LayoutHeader header_{};
    LayoutOffsets at_{header_};
    std::vector<std::byte> bytes_;
    std::uint64_t dims_ = 0;
    std::uint64_t text_ = 0;
};

// Reads a table. It leaves to the layout all that the layout checks when a part is added.
class LayoutReader {
  public:
    explicit LayoutReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

    Result<WeightLayout> read() {
        for (const auto step :
             {&LayoutReader::header, &LayoutReader::tensors, &LayoutReader::memories,
              &LayoutReader::boxes, &LayoutReader::end}) {
            if (auto done = (this->*step)(); !done) return std::unexpected(done.error());
        }
        return std::move(made_);
    }

  private:
    static std::unexpected<Error> bad(std::string_view what) {
        return refused(
            Errc::bad_manifest,
            fmt::format("the table of a layout is damaged or from another program: {}", what));
    }

    Result<void> header() {
        if (bytes_.size() < sizeof header_) return bad("it is too short");
        header_ = layout_get<LayoutHeader>(bytes_, 0);
        if (header_.magic != layout_magic) return bad("wrong magic");
        if (header_.abi == layout_abi && header_.header_bytes != sizeof header_) {
            return bad("the length of its header");
        }
        if (header_.abi != layout_abi) {
            return refused(Errc::abi_mismatch,
                           fmt::format("the table of a layout has ABI {}, this program {}: run one "
                                       "version of rollring on both sides",
                                       header_.abi, layout_abi));
        }
        if (header_.tensors > entries_max || header_.memories > entries_max ||
            header_.boxes > entries_max || header_.reserved != 0 ||
            header_.dims > bytes_.size() / 8 || header_.text_bytes > bytes_.size()) {
            return bad("counts");
        }
        at_ = LayoutOffsets(header_);
        if (header_.bytes != bytes_.size() || at_.end != bytes_.size()) return bad("its length");
        const XXH128_hash_t hash = layout_hash(bytes_);
        if (hash.low64 != header_.hash[0] || hash.high64 != header_.hash[1]) return bad("its hash");
        return {};
    }

    // Of entry `index` of a table.
    template <class Part>
    static std::unexpected<Error> bad(std::string_view part, std::uint64_t index, const Part& why) {
        return bad(fmt::format("{} {}: {}", part, index, why));
    }

    // The next name, and the next dims; nothing if the entry says that they are elsewhere.
    std::optional<std::string_view> text(std::uint64_t offset, std::uint64_t bytes) {
        if (offset != text_ || bytes > header_.text_bytes - text_) return std::nullopt;
        text_ += bytes;
        return std::string_view(reinterpret_cast<const char*>(bytes_.data()) + at_.text + offset,
                                bytes);
    }

    std::optional<std::vector<std::int64_t>> dims(std::uint64_t first, std::uint64_t count) {
        if (first != dims_ || count > header_.dims - dims_) return std::nullopt;
        dims_ += count;
        std::vector<std::int64_t> made;
        made.reserve(count);
        for (std::uint64_t i = first; i < dims_; i++) {
            made.push_back(layout_get<std::int64_t>(bytes_, at_.dims + i * 8));
        }
        return made;
    }

    Result<void> tensors() {
        for (std::uint64_t i = 0; i < header_.tensors; i++) {
            const auto entry =
                layout_get<TensorEntry>(bytes_, at_.tensors + i * sizeof(TensorEntry));
            const auto name = text(entry.name_offset, entry.name_bytes);
            if (!name) return bad("tensor", i, "the place of its name");
            const auto shape = dims(entry.first_dim, entry.dims);
            if (!shape) return bad("tensor", i, "the place of its shape");
            const auto added = made_.add_tensor(*name, *shape, entry.tied_to);
            if (!added) return bad("tensor", i, added.error().message);
            if (*added != i) return bad("tensor", i, "another one has its name");
        }
        return {};
    }

    Result<void> memories() {
        for (std::uint64_t i = 0; i < header_.memories; i++) {
            const auto entry =
                layout_get<MemoryEntry>(bytes_, at_.memories + i * sizeof(MemoryEntry));
            const auto name = text(entry.name_offset, entry.name_bytes);
            if (!name) return bad("memory", i, "the place of its name");
            if (entry.reserved != 0) return bad("memory", i, "its last field is not 0");
            const auto added = made_.add_memory({.rank = entry.rank,
                                                 .name = std::string(*name),
                                                 .dtype = {entry.dtype_code, entry.dtype_bits},
                                                 .elements = entry.elements});
            if (!added) return bad("memory", i, added.error().message);
        }
        return {};
    }

    Result<void> boxes() {
        for (std::uint64_t i = 0; i < header_.boxes; i++) {
            const auto entry = layout_get<BoxEntry>(bytes_, at_.boxes + i * sizeof(BoxEntry));
            if (entry.tensor >= header_.tensors) return bad("box", i, "the index of its tensor");
            const std::size_t count = made_.tensors()[entry.tensor].shape.size();
            const auto numbers = dims(entry.first_dim, 3 * count);
            if (!numbers) return bad("box", i, "the place of its dims");
            const std::span<const std::int64_t> all = *numbers;
            const auto added = made_.add_box({.tensor = entry.tensor,
                                              .memory = entry.memory,
                                              .offset = entry.offset,
                                              .start = all.first(count),
                                              .length = all.subspan(count, count),
                                              .strides = all.last(count)});
            if (!added) return bad("box", i, added.error().message);
            if (made_.boxes() != i + 1) return bad("box", i, "it has no elements");
        }
        return {};
    }

    Result<void> end() {
        const auto padding = bytes_.subspan(at_.text + text_);
        const bool zero =
            std::ranges::all_of(padding, [](std::byte one) { return one == std::byte{}; });
        if (text_ == header_.text_bytes && dims_ == header_.dims && zero) return {};
        return bad("names, dims or bytes that belong to no entry");
    }

    std::span<const std::byte> bytes_;
    LayoutHeader header_{};
    LayoutOffsets at_{header_};
    WeightLayout made_;
    std::uint64_t dims_ = 0;  // that were read, as the bytes of the text
    std::uint64_t text_ = 0;
};

}  // namespace

std::vector<std::byte> WeightLayout::to_bytes() const {
    return LayoutWriter(*this).write();
}

Result<WeightLayout> WeightLayout::from_bytes(std::span<const std::byte> bytes) {
    return LayoutReader(bytes).read();
}

std::string WeightLayout::hash() const {
    const auto header = layout_get<LayoutHeader>(to_bytes(), 0);
    return fmt::format("{:016x}{:016x}", header.hash[1], header.hash[0]);
}

}  // namespace rollring
