#pragma once
// The columns that records of a ring may carry, and the dtypes of their elements. Columns are
// declared once, when the ring is created, and kept in the ring; records name a column by its
// index.

#include <array>
#include <concepts>
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
    [[nodiscard]] constexpr std::uint32_t bytes() const { return bits / 8; }
    [[nodiscard]] constexpr bool is_integer() const { return code <= 1; }

    // "i32", "u8", "f32", "bf16"; empty if unknown.
    [[nodiscard]] std::string to_string() const;
    static std::optional<DType> parse(std::string_view text);
};

struct KnownDType {
    std::string_view name;
    std::string_view full_name;  // numpy's, where it has one, and torch's
    DType dtype;
    const char* letter;  // of Python's struct; if there is none, that of an integer as long
    bool is_number;      // convert() knows its numbers; other dtypes are carried as bits
};
// All element types, a line each. Columns, weights, the program and the Python package take them
// from here.
inline constexpr KnownDType known_dtypes[] = {
    {"i8", "int8", {0, 8}, "b", true},
    {"i16", "int16", {0, 16}, "h", true},
    {"i32", "int32", {0, 32}, "i", true},
    {"i64", "int64", {0, 64}, "q", true},
    {"u8", "uint8", {1, 8}, "B", true},
    {"u16", "uint16", {1, 16}, "H", true},
    {"u32", "uint32", {1, 32}, "I", true},
    {"u64", "uint64", {1, 64}, "Q", true},
    {"f16", "float16", {2, 16}, "e", true},
    {"f32", "float32", {2, 32}, "f", true},
    {"f64", "float64", {2, 64}, "d", true},
    {"bf16", "bfloat16", {4, 16}, "H", true},
    {"bool", "bool", {6, 8}, "?", true},
    {"f8e4m3", "float8_e4m3fn", {10, 8}, "B", false},
    {"f8e5m2", "float8_e5m2", {12, 8}, "B", false},
};

namespace detail {
consteval DType dtype_named(std::string_view name) {
    for (const KnownDType& known : known_dtypes) {
        if (known.name == name) return known.dtype;
    }
    ROLLRING_ASSERT(false, name);  // which does not compile
}
}  // namespace detail

inline constexpr DType dtype_i32 = detail::dtype_named("i32");
inline constexpr DType dtype_i64 = detail::dtype_named("i64");
inline constexpr DType dtype_u8 = detail::dtype_named("u8");
inline constexpr DType dtype_u16 = detail::dtype_named("u16");
inline constexpr DType dtype_u32 = detail::dtype_named("u32");
inline constexpr DType dtype_f16 = detail::dtype_named("f16");
inline constexpr DType dtype_f32 = detail::dtype_named("f32");
inline constexpr DType dtype_f64 = detail::dtype_named("f64");
inline constexpr DType dtype_bf16 = detail::dtype_named("bf16");
inline constexpr DType dtype_bool = detail::dtype_named("bool");
inline constexpr DType dtype_f8_e4m3 = detail::dtype_named("f8e4m3");
inline constexpr DType dtype_f8_e5m2 = detail::dtype_named("f8e5m2");

namespace detail {
template <class... T>
struct Numbers {
    template <class U>
    static constexpr bool have = (std::same_as<T, U> || ...);
    template <class Visit>
    static constexpr bool visit(const Visit& one) {
        return (one(T{}) || ...);
    }
};
// The types of numbers that C++ itself has.
using OwnNumbers = Numbers<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t,
                           std::uint16_t, std::uint32_t, std::uint64_t, float, double>;
}  // namespace detail

template <class T>
    requires detail::OwnNumbers::have<T>
constexpr DType dtype_of() {
    constexpr std::uint8_t code = std::floating_point<T> ? 2 : std::unsigned_integral<T> ? 1 : 0;
    return {code, sizeof(T) * 8};
}

// Calls visit(T{}) for the C++ type T of the dtype. False if there is none, or if visit returns
// false.
template <class Visit>
constexpr bool with_number(DType dtype, const Visit& visit) {
    return detail::OwnNumbers::visit(
        [&]<class T>(T number) { return dtype == dtype_of<T>() && visit(number); });
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

// The index of a standard column in Schema::standard(): the same in every ring that uses it.
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
    // Errc::invalid_argument otherwise, or if a column is invalid.
    static Result<Schema> standard_with(std::vector<Column> more);

    [[nodiscard]] std::span<const Column> columns() const { return columns_; }
    [[nodiscard]] std::optional<std::uint16_t> find(std::string_view name) const;
    // Hash of the declaration: records of another schema are refused by it.
    [[nodiscard]] std::uint64_t id() const { return id_; }
    // Bit i is set if column i is required.
    [[nodiscard]] std::uint32_t required() const { return required_; }

    // The facts by which a column is checked in the common case: all columns in two cache lines.
    struct Rule {
        DType dtype;
        Per per;
        bool plain;  // exactly this dtype, and no inner dims
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

// Whether numbers of one dtype convert to another: 8 to 64 bit integers, f16, bf16, f32, f64 and
// bool do. They convert as in C++, a float to an integer towards zero, a float to a shorter one to
// the nearest (ties to even); every number but 0 is true. No allocation, any thread.
//
// Equal dtypes always convert, even those without arithmetic here (f8e4m3).
ROLLRING_API bool can_convert(DType from, DType to);

// False if a value is out of the range of an integer target (that element is 0 then, the others
// are right), or if it cannot be converted at all. `from` and `to` are aligned to their elements
// and do not overlap.
ROLLRING_API bool convert(DType from_type, const std::byte* from, DType to_type, std::byte* to,
                          std::uint64_t elements);

// Sets each element to one number. False as above, with nothing written.
ROLLRING_API bool fill(DType type, double value, std::byte* to, std::uint64_t elements);

}  // namespace rollring
