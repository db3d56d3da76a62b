#include "host_mover.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "checksum.hpp"
#include "host_difference.hpp"

namespace rollring::device {
namespace {

// Visits the elements of a job in row-major order, in runs of a constant distance; calls
// run(address of the first, elements, distance in elements).
template <class Run>
void for_each_run(const CopyJob& job, std::byte* tensor, const Run& run) {
    if (job.shape.empty()) {
        run(tensor + job.first_element * job.element_bytes, job.elements, std::int64_t{1});
        return;
    }
    const std::size_t last = job.shape.size() - 1;
    std::array<std::int64_t, CopyJob::dims_max> at{};
    std::uint64_t first = job.first_element;
    for (std::size_t dim = last + 1; dim-- > 0;) {
        at[dim] = static_cast<std::int64_t>(first % static_cast<std::uint64_t>(job.shape[dim]));
        first /= static_cast<std::uint64_t>(job.shape[dim]);
    }
    std::uint64_t left = job.elements;
    while (left > 0) {
        std::int64_t offset = 0;
        for (std::size_t dim = 0; dim <= last; dim++) offset += at[dim] * job.strides[dim];
        const std::uint64_t row = static_cast<std::uint64_t>(job.shape[last] - at[last]);
        const std::uint64_t now = row < left ? row : left;
        run(tensor + offset * job.element_bytes, now, job.strides[last]);
        left -= now;
        at[last] = 0;
        for (std::size_t dim = last; dim-- > 0;) {
            at[dim]++;
            if (at[dim] != job.shape[dim]) break;
            at[dim] = 0;
        }
    }
}

template <class From, class To, class Convert>
void convert_run(const std::byte* from, std::byte* to, std::uint64_t elements, std::int64_t stride,
                 const Convert& convert) {
    for (std::uint64_t i = 0; i < elements; i++) {
        From value;
        std::memcpy(&value,
                    from + static_cast<std::int64_t>(i) * stride * std::int64_t{sizeof value},
                    sizeof value);
        const To converted = convert(value);
        std::memcpy(to + i * sizeof converted, &converted, sizeof converted);
    }
}

template <class Element>
void gather(const std::byte* from, std::byte* to, std::uint64_t elements, std::int64_t stride) {
    convert_run<Element, Element>(from, to, elements, stride, [](Element value) { return value; });
}

template <class Element>
void scatter(const std::byte* from, std::byte* to, std::uint64_t elements, std::int64_t stride) {
    for (std::uint64_t i = 0; i < elements; i++) {
        std::memcpy(to + static_cast<std::int64_t>(i) * stride * std::int64_t{sizeof(Element)},
                    from + i * sizeof(Element), sizeof(Element));
    }
}

// Calls f with a value of the unsigned integer of that many bytes.
template <class F>
void with_element(std::uint32_t bytes, const F& f) {
    if (bytes == 1) f(std::uint8_t{});
    if (bytes == 2) f(std::uint16_t{});
    if (bytes == 4) f(std::uint32_t{});
    if (bytes == 8) f(std::uint64_t{});
}

void pack_job(const CopyJob& job, std::byte* tensor, std::byte* to) {
    for_each_run(job, tensor,
                 [&](const std::byte* from, std::uint64_t elements, std::int64_t stride) {
                     if (job.cast == Cast::f32_to_bf16) {
                         convert_run<float, std::uint16_t>(from, to, elements, stride, bf16_of);
                     } else if (job.cast == Cast::f32_to_f16) {
                         convert_run<float, std::uint16_t>(from, to, elements, stride, f16_of);
                     } else if (stride == 1) {
                         std::memcpy(to, from, elements * job.element_bytes);
                     } else {
                         with_element(job.element_bytes, [&](auto element) {
                             gather<decltype(element)>(from, to, elements, stride);
                         });
                     }
                     to += elements * job.packed_element_bytes();
                 });
}

void unpack_job(const CopyJob& job, const std::byte* from) {
    for_each_run(job, job.tensor, [&](std::byte* to, std::uint64_t elements, std::int64_t stride) {
        if (stride == 1) {
            std::memcpy(to, from, elements * job.element_bytes);
        } else {
            with_element(job.element_bytes, [&](auto element) {
                scatter<decltype(element)>(from, to, elements, stride);
            });
        }
        from += elements * job.element_bytes;
    });
}

// Copies from the slot, whose elements have an order of their own: rows of the last dimension.
void unpack_view(const CopyJob& job, const std::byte* from) {
    if (job.shape.empty()) {
        std::memcpy(job.tensor, from, job.elements * job.element_bytes);
        return;
    }
    const std::size_t last = job.shape.size() - 1;
    const std::int64_t bytes = job.element_bytes;
    const std::int64_t row = job.shape[last];
    const bool contiguous = job.strides[last] == 1 && job.packed_strides[last] == 1;
    std::array<std::int64_t, CopyJob::dims_max> at{};
    for (std::uint64_t done = 0; done < job.elements; done += static_cast<std::uint64_t>(row)) {
        std::int64_t to = 0;
        std::int64_t of = 0;
        for (std::size_t dim = 0; dim < last; dim++) {
            to += at[dim] * job.strides[dim];
            of += at[dim] * job.packed_strides[dim];
        }
        if (contiguous) {
            std::memcpy(job.tensor + to * bytes, from + of * bytes,
                        static_cast<std::size_t>(row * bytes));
        } else {
            with_element(job.element_bytes, [&](auto element) {
                for (std::int64_t i = 0; i < row; i++) {
                    std::memcpy(job.tensor + (to + i * job.strides[last]) * bytes,
                                from + (of + i * job.packed_strides[last]) * bytes, sizeof element);
                }
            });
        }
        for (std::size_t dim = last; dim-- > 0;) {
            at[dim]++;
            if (at[dim] != job.shape[dim]) break;
            at[dim] = 0;
        }
    }
}

class HostPlan : public CopyPlan {
  public:
    explicit HostPlan(std::vector<CopyJob> jobs) : jobs_(std::move(jobs)) {
        has_views_ = std::ranges::any_of(jobs_, &CopyJob::view);
    }

    Result<void> pack(std::byte* slot, std::optional<std::uint64_t> sums_offset, Stream) override {
        if (has_views_) return only_unpacks();
        for (std::size_t i = 0; i < jobs_.size(); i++) {
            static_cast<void>(pack_one(i, jobs_[i].tensor, slot, sums_offset, {}));
        }
        return {};
    }

    Result<void> pack_one(std::size_t job, const void* tensor, std::byte* slot,
                          std::optional<std::uint64_t> sums_offset, Stream) override {
        if (has_views_) return only_unpacks();
        const CopyJob& one = jobs_[job];
        auto* from = static_cast<std::byte*>(const_cast<void*>(tensor));
        pack_job(one, from, slot + one.slot_offset);
        if (sums_offset) {
            const std::uint64_t sum = checksum(slot + one.slot_offset, one.packed_bytes());
            std::memcpy(slot + *sums_offset + job * sizeof sum, &sum, sizeof sum);
        }
        return {};
    }

    Result<void> unpack(const std::byte* slot, Stream) override {
        for (const CopyJob& job : jobs_) {
            if (job.view) {
                unpack_view(job, slot + job.slot_offset);
            } else {
                unpack_job(job, slot + job.slot_offset);
            }
        }
        return {};
    }

    Result<std::optional<std::size_t>> verify(const std::byte* slot, std::uint64_t sums_offset,
                                              Deadline) override {
        if (has_views_) return only_unpacks();
        for (std::size_t i = 0; i < jobs_.size(); i++) {
            std::uint64_t sum = 0;
            std::memcpy(&sum, slot + sums_offset + i * sizeof sum, sizeof sum);
            if (sum != checksum(slot + jobs_[i].slot_offset, jobs_[i].packed_bytes())) return i;
        }
        return std::nullopt;
    }

  private:
    static std::unexpected<Error> only_unpacks() {
        return refused(Errc::invalid_argument, "a plan with views can only unpack");
    }

    std::vector<CopyJob> jobs_;
    bool has_views_ = false;
};

}  // namespace

std::uint16_t bf16_of(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

std::uint16_t f16_of(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
    std::uint32_t size = bits & 0x7fffffff;
    if (size > 0x7f800000) return 0x7fff;
    if (size >= 0x477ff000) return sign | 0x7c00;  // 65520 and more round to infinity
    if (size < 0x38800000) {
        // Below 2^-14: adding 0.5 shifts the result's last bit to the sum's, so the addition
        // rounds.
        const float shifted = std::bit_cast<float>(size) + 0.5F;
        size = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F);
        return static_cast<std::uint16_t>(sign | size);
    }
    constexpr std::uint32_t exponent_shift = (127U - 15U) << 23;
    size = size - exponent_shift + 0xfff + (size >> 13 & 1);
    return static_cast<std::uint16_t>(sign | size >> 13);
}

std::uint64_t checksum(const std::byte* bytes, std::uint64_t count) {
    std::uint64_t sum = 0;
    std::uint32_t word = 0;
    for (std::uint64_t i = 0; i < count / 4; i++) {
        std::memcpy(&word, bytes + i * 4, sizeof word);
        sum += mix_word(word, i);
    }
    if (count % 4 != 0) {
        word = 0;
        std::memcpy(&word, bytes + count / 4 * 4, count % 4);
        sum += mix_word(word, count / 4);
    }
    return sum;
}

Result<std::unique_ptr<CopyPlan>> HostMover::plan(std::vector<CopyJob> jobs) {
    return std::make_unique<HostPlan>(std::move(jobs));
}

Result<std::unique_ptr<Difference>> HostMover::difference(std::vector<std::vector<CopyJob>> parts) {
    return make_host_difference(std::move(parts));
}

}  // namespace rollring::device
