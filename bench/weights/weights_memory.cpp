#include "weights/weights_memory.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <random>

#include "bench.hpp"
#include "rounding.hpp"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace bench {
namespace {

constexpr std::uint64_t window_bytes = std::uint64_t{64} << 20;  // read or written at once
constexpr std::uint64_t tensor_alignment = 512;

class HostArena final : public Arena {
  public:
    explicit HostArena(std::uint64_t bytes) : memory_(allocate(bytes)) {
        std::memset(memory_.get(), 0, bytes);  // its pages are there before anything is measured
    }
    std::byte* data() const override { return memory_.get(); }
    void read(std::byte* to, std::uint64_t offset, std::uint64_t bytes) override {
        std::memcpy(to, data() + offset, bytes);
    }
    void write(std::uint64_t offset, const std::byte* from, std::uint64_t bytes) override {
        std::memcpy(data() + offset, from, bytes);
    }
    std::int64_t two_copies_ns(std::uint64_t bytes) override {
        if (!scratch_) {
            const std::uint64_t size = std::min(bytes, copy_chunk_bytes);
            scratch_ = allocate(size);
            std::memset(scratch_.get(), 0, size);
        }
        const std::int64_t began_ns = now_ns();
        for (std::uint64_t at = 0; at < bytes; at += copy_chunk_bytes) {
            const std::uint64_t size = std::min(copy_chunk_bytes, bytes - at);
            std::memcpy(scratch_.get(), data() + at, size);
            std::memcpy(data() + at, scratch_.get(), size);
        }
        return now_ns() - began_ns;
    }
    void copy_from(const Arena& other, std::uint64_t bytes) override {
        std::memcpy(data(), other.data(), bytes);
    }
    void exchange(Arena& other, std::uint64_t bytes) override {
        std::swap_ranges(data(), data() + bytes, other.data());
    }
    std::uint64_t free_bytes() const override { return 0; }

  private:
    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };
    using Memory = std::unique_ptr<std::byte, Free>;
    static Memory allocate(std::uint64_t bytes) {
        constexpr std::uint64_t page = 4096;
        void* at = std::aligned_alloc(page, (bytes + page) / page * page);
        if (at == nullptr) fail(fmt::format("{} bytes of host memory: no room", bytes));
        return Memory(static_cast<std::byte*>(at));
    }
    Memory memory_;
    Memory scratch_;
};

// To nearest even; the contents are finite.
std::uint16_t to_bf16(std::uint32_t bits) {
    return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

class Digest {
  public:
    Digest() { XXH3_64bits_reset(&state_); }
    void add(const std::byte* data, std::uint64_t bytes) {
        XXH3_64bits_update(&state_, data, bytes);
    }
    void add_as_bf16(const std::byte* data, std::uint64_t bytes) {
        rounded_.resize(bytes / sizeof(std::uint32_t));
        for (std::size_t i = 0; i < rounded_.size(); i++) {
            std::uint32_t bits = 0;
            std::memcpy(&bits, data + i * sizeof bits, sizeof bits);
            rounded_[i] = to_bf16(bits);
        }
        XXH3_64bits_update(&state_, rounded_.data(), rounded_.size() * sizeof(std::uint16_t));
    }
    [[nodiscard]] std::uint64_t value() const { return XXH3_64bits_digest(&state_); }

  private:
    XXH3_state_t state_{};
    std::vector<std::uint16_t> rounded_;
};

}  // namespace

std::unique_ptr<Arena> Arena::make(rollring::Device device, std::uint64_t bytes) {
    if (!device.is_gpu()) return std::make_unique<HostArena>(bytes);
#ifdef ROLLRING_BENCH_CUDA
    return make_gpu_arena(device, bytes);
#else
    fail("this rollring-bench was built without CUDA: --device host");
#endif
}

Placement::Placement(const TensorList& list, bool as_f32) : list_(&list), as_f32_(as_f32) {
    for (const ListedTensor& tensor : list) {
        offsets_.push_back(bytes_);
        const std::uint64_t bytes = tensor.bytes() * (as_f32 ? 2 : 1);
        bytes_ += round_up(bytes, tensor_alignment);
    }
}

std::vector<rollring::WeightTensor> Placement::tensors(std::byte* base) const {
    std::vector<rollring::WeightTensor> made;
    made.reserve(list_->size());
    for (std::size_t i = 0; i < list_->size(); i++) {
        const ListedTensor& tensor = (*list_)[i];
        made.push_back({.name = tensor.name,
                        .dtype = as_f32_ ? rollring::dtype_f32 : tensor.dtype,
                        .shape = tensor.shape,
                        .data = base + offsets_[i]});
        if (as_f32_) made.back().published_dtype = tensor.dtype;
    }
    return made;
}

void Placement::fill(Arena& arena, std::uint64_t seed) const {
    constexpr std::uint64_t shift_bytes = 64;
    constexpr std::uint64_t shifts = 4096;
    const std::uint64_t size = std::min(bytes_, window_bytes);
    std::vector<std::uint64_t> block((size + shifts * shift_bytes) / sizeof(std::uint64_t) + 1);
    std::mt19937_64 random(seed);
    for (std::uint64_t& word : block) {
        word = random();
        // Finite, whether read as f32 or bf16: one bit of the exponents' eight is never set.
        word &= ~std::uint64_t{0x4000'4000'4000'4000};
    }
    for (std::uint64_t window = 0; window * size < bytes_; window++) {
        // Each window starts elsewhere in the block: a swapped one is noticed.
        const auto* from = reinterpret_cast<const std::byte*>(block.data());
        arena.write(window * size, from + window % shifts * shift_bytes,
                    std::min(size, bytes_ - window * size));
    }
}

void Placement::change(Arena& arena, double share, std::uint64_t seed) const {
    if (share <= 0) return;
    const std::uint64_t element_bytes = as_f32_ ? 4 : 2;
    std::vector<std::byte> window(std::min(bytes_, window_bytes));
    std::mt19937_64 random(seed);
    std::geometric_distribution<std::uint64_t> unchanged(std::min(share, 1.0));
    std::uint64_t next = unchanged(random) * element_bytes;
    for (std::uint64_t at = 0; at < bytes_; at += window.size()) {
        const std::uint64_t end = std::min(bytes_, at + window.size());
        arena.read(window.data(), at, end - at);
        for (; next < end; next += (1 + unchanged(random)) * element_bytes) {
            window[next - at + element_bytes / 2 - 1] ^= std::byte{1 << 3};
        }
        arena.write(at, window.data(), end - at);
    }
}

std::uint64_t Placement::digest(Arena& arena) const {
    std::vector<std::byte> window(std::min(bytes_, window_bytes));
    Digest digest;
    std::size_t tensor = 0;
    for (std::uint64_t at = 0; at < bytes_; at += window.size()) {
        const std::uint64_t end = std::min(bytes_, at + window.size());
        arena.read(window.data(), at, end - at);
        for (; tensor < offsets_.size() && offsets_[tensor] < end; tensor++) {
            const std::uint64_t tensor_end =
                offsets_[tensor] + (*list_)[tensor].bytes() * (as_f32_ ? 2 : 1);
            const std::uint64_t first = std::max(at, offsets_[tensor]);
            const std::uint64_t last = std::min(end, tensor_end);
            if (first < last && as_f32_) digest.add_as_bf16(&window[first - at], last - first);
            if (first < last && !as_f32_) digest.add(&window[first - at], last - first);
            if (tensor_end > end) break;  // it goes on in the next window
        }
    }
    return digest.value();
}

}  // namespace bench
