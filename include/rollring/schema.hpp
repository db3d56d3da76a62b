#pragma once
// The columns that records of a ring may carry. Declared once, when the ring is created, and kept
// in the ring; records then name a column by its index. And the dtypes of their elements.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/version.hpp"

namespace rollring {

// Element type, in DLPack's codes: int 0, uint 1, float 2, bfloat 4, bool 6.
struct ROLLRING_API DType {
    std::uint8_t code;
    std::uint8_t bits;  // per element: 8, 16, 32, 64

    friend bool operator==(const DType&, const DType&) = default;
    [[nodiscard]] std::uint32_t bytes() const { return bits / 8; }
    [[nodiscard]] bool is_integer() const { return code <= 1; }

    // "i32", "u8", "f32", "bf16"; empty if unknown.
    [[nodiscard]] std::string to_string() const;
    static std::optional<DType> parse(std::string_view text);
};

inline constexpr DType dtype_i32{0, 32};
inline constexpr DType dtype_i64{0, 64};
inline constexpr DType dtype_u8{1, 8};
inline constexpr DType dtype_u16{1, 16};
inline constexpr DType dtype_u32{1, 32};
inline constexpr DType dtype_f32{2, 32};
inline constexpr DType dtype_f64{2, 64};

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<std::int32_t>() {
    return dtype_i32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
    return dtype_i64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
    return dtype_u8;
}
template <>
constexpr DType dtype_of<std::uint16_t>() {
    return dtype_u16;
}
template <>
constexpr DType dtype_of<std::uint32_t>() {
    return dtype_u32;
}
template <>
constexpr DType dtype_of<float>() {
    return dtype_f32;
}
template <>
constexpr DType dtype_of<double>() {
    return dtype_f64;
}

enum class Per : std::uint8_t {
    token = 0,   // shape [n_tokens, dims...]
    record = 1,  // shape [rows, dims...] with any number of rows
};

// Which element types a record may use for a column.
enum class Accepts : std::uint8_t {
    exact = 0,
    any_integer = 1,  // routed_experts: u8, u16 or i32, whichever the expert count needs
    any = 2,          // multimodal blobs
};

struct Column {
    std::string name;  // 1 to 39 of a-z 0-9 _ .
    DType dtype;
    Per per = Per::token;
    bool required = false;  // in records with a status that promises tokens
    Accepts accepts = Accepts::exact;
    // Inner dims, at most 3; 0 stands for any length. Per record and empty: any shape of 1 to 4
    // dims.
    std::vector<std::uint32_t> dims = {};
};

// The place of a standard column in Schema::standard(): the same in every ring that uses it.
enum class Std : std::uint16_t {
    token_ids,          // i32[n], required
    loss_mask,          // u8[n], 0 or 1
    logprobs,           // f32[n], of the sampler
    advantages,         // f32[n]
    ref_logprobs,       // f32[n]
    token_rewards,      // f32[n]
    routed_experts,     // u8|u16|i32[n, layers, k]
    topk_ids,           // i32[n, k]
    topk_logprobs,      // f32[n, k]
    labels,             // i32[n]: token id or -100, where loss_mask alone does not give them
    policy_version,     // i64[runs, 2]: {start token, version}
    instance_id,        // u8[bytes], UTF-8
    source,             // u8[bytes], UTF-8: the environment's name
    messages,           // u8[bytes], UTF-8 JSON
    generation_params,  // u8[bytes], UTF-8 JSON
    overrides,          // u8[bytes], UTF-8 JSON
    group_overrides,    // u8[bytes], UTF-8 JSON
    images,             // any dtype and shape
    extra,              // u8[bytes], UTF-8 JSON: fields that rollring does not know
    user,               // u8[bytes], opaque
    count,
};

// The use of a ring's records. open() refuses an end of another purpose: a trainer on a store's
// ring would take its values away.
enum class Purpose : std::uint8_t {
    records,  // for one consumer
    values,   // of a Store
};

struct SchemaPage;  // a schema in the memory of a ring

class ROLLRING_API Schema {
  public:
    // The columns of enum Std, in its order.
    static const Schema& standard();

    // The standard columns followed by `more`: at most 32 in all, each with a name of its own.
    // Errc::invalid_argument otherwise, or where a column cannot be.
    static Result<Schema> standard_with(std::vector<Column> more);

    [[nodiscard]] std::span<const Column> columns() const { return columns_; }
    [[nodiscard]] std::optional<std::uint16_t> find(std::string_view name) const;
    // Hash of the declaration: records of another schema are refused by it.
    [[nodiscard]] std::uint64_t id() const { return id_; }
    // Bit i is set if column i is required.
    [[nodiscard]] std::uint32_t required() const { return required_; }

    // What a column needs to be judged in the common case, all columns in two cache lines.
    struct Rule {
        DType dtype;
        Per per;
        bool plain;  // this dtype, and one dimension will do
    };
    [[nodiscard]] Rule rule(std::uint16_t column) const { return rules_[column]; }

  private:
    friend Result<Schema> from_page(const SchemaPage& page);
    ROLLRING_LOCAL static Result<Schema> make(std::vector<Column> columns);
    ROLLRING_LOCAL static Schema of(std::vector<Column> columns);
    std::vector<Column> columns_;
    std::uint64_t id_ = 0;
    std::uint32_t required_ = 0;
    std::array<Rule, 32> rules_{};
};

// Numbers of one dtype as numbers of another: 8 to 64 bit integers, f16, bf16, f32, f64, bool. As
// C++ converts them, a float to an integer towards zero, a float to a shorter one to the nearest
// (ties to even); every number but 0 is true. No allocation, any thread.
//
// Equal dtypes always can, also those that are no numbers here (f8e4m3).
ROLLRING_API bool can_convert(DType from, DType to);

// False if a value is out of the range of an integer target (that element is 0 then, the others
// are right), or if it cannot be converted at all. `from` and `to` are aligned to their elements
// and do not overlap.
ROLLRING_API bool convert(DType from_type, const std::byte* from, DType to_type, std::byte* to,
                          std::uint64_t elements);

// The same number in each element. False as above, and nothing is written.
ROLLRING_API bool fill(DType type, double value, std::byte* to, std::uint64_t elements);

}  // namespace rollring
