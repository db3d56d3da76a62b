#include "cli/formats/custom_columns.hpp"

#include <algorithm>

#include "cli/formats/json_columns.hpp"
#include "cli/formats/json_values.hpp"

namespace rollring::cli {
namespace {

constexpr std::uint8_t dims_max = 4;

struct Shape {
    std::array<std::uint32_t, dims_max> lengths{};
    std::uint8_t dims = 0;
};

bool has_any_shape(const Column& declared) {
    return declared.per == Per::record && declared.dims.empty();
}

// Lists within lists, as deep as the first element of each.
std::uint8_t nesting(JsonValue value) {
    std::uint8_t dims = 0;
    while (value.is_array() && dims <= dims_max) {
        dims++;
        const auto elements = value.elements();
        const auto first = elements.begin();
        if (first == JsonElements::end()) break;
        value = *first;
    }
    return dims;
}

std::string wanted_text(const Column& declared) {
    std::string text =
        declared.dtype.to_string() + (declared.per == Per::token ? "[n_tokens" : "[rows");
    for (const std::uint32_t length : declared.dims) {
        text += length == 0 ? ", any" : fmt::format(", {}", length);
    }
    return text + "]";
}

void check_shape(const Column& declared, const Shape& shape) {
    if (has_any_shape(declared)) return;
    bool good = shape.dims == declared.dims.size() + 1;
    for (std::size_t i = 0; good && i < declared.dims.size(); i++) {
        good = declared.dims[i] == 0 || declared.dims[i] == shape.lengths[i + 1];
    }
    if (good) return;
    std::string text;
    for (std::uint8_t i = 0; i < shape.dims; i++) {
        text += fmt::format("{}{}", i == 0 ? "" : ", ", shape.lengths[i]);
    }
    bad(declared.name, fmt::format("has the shape [{}], but the ring's schema requires {}", text,
                                   wanted_text(declared)));
}

// Measures the lists at `level`, which all have one length, and the lists in them.
void measure(const Column& declared, JsonValue value, std::uint8_t level, std::uint8_t dims,
             std::array<std::optional<std::uint32_t>, dims_max>& lengths) {
    if (!value.is_array()) {
        bad(declared.name,
            fmt::format("must be lists as {}, not {}", wanted_text(declared), excerpt(value)));
    }
    const std::uint32_t here = count(declared.name, value);
    if (lengths[level].value_or(here) != here) {
        bad(declared.name,
            fmt::format("has lists of length {} and {} at the same level", *lengths[level], here));
    }
    lengths[level] = here;
    if (level + 1 == dims) return;
    for (const JsonValue inner : value.elements()) {
        measure(declared, inner, static_cast<std::uint8_t>(level + 1), dims, lengths);
    }
}

// If no list shows a length, the schema's holds.
Shape shape_of(const Column& declared, JsonValue value) {
    Shape shape;
    shape.dims = has_any_shape(declared) ? nesting(value)
                                         : static_cast<std::uint8_t>(declared.dims.size() + 1);
    if (shape.dims == 0 || shape.dims > dims_max) {
        bad(declared.name,
            fmt::format("must be lists of 1 to {} dims, not {}", dims_max, excerpt(value)));
    }
    std::array<std::optional<std::uint32_t>, dims_max> lengths;
    measure(declared, value, 0, shape.dims, lengths);
    for (std::uint8_t i = 0; i < shape.dims; i++) {
        const std::uint32_t said = i == 0 || has_any_shape(declared) ? 0 : declared.dims[i - 1U];
        shape.lengths[i] = lengths[i].value_or(said);
    }
    check_shape(declared, shape);
    return shape;
}

template <class T>
T element(std::string_view key, JsonValue value) {
    if constexpr (std::is_floating_point_v<T>) {
        return real<T>(key, value);
    } else {
        return integer<T>(key, value);
    }
}

std::uint8_t truth(std::string_view key, JsonValue value) {
    if (value.is_boolean()) return value.boolean() ? 1 : 0;
    const auto number = integer<std::uint8_t>(key, value);
    if (number > 1) bad(key, fmt::format("holds {}, which is neither 0 nor 1", number));
    return number;
}

// Writes the elements of nested lists in order; returns their number.
template <class T, class Read>
std::size_t fill(std::string_view key, JsonValue value, std::uint8_t dims, std::span<T> out,
                 const Read& read) {
    std::size_t done = 0;
    for (const JsonValue inner : value.elements()) {
        if (dims == 1) {
            out[done++] = read(key, inner);
        } else {
            done += fill(key, inner, static_cast<std::uint8_t>(dims - 1), out.subspan(done), read);
        }
    }
    return done;
}

template <class T, class Read>
void fill_bytes(const Column& declared, JsonValue value, std::uint8_t dims,
                std::span<std::byte> bytes, const Read& read) {
    const std::span<T> out(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
    try {
        fill(std::string_view(declared.name), value, dims, out, read);
    } catch (const BadRecord& error) {
        throw BadRecord(
            fmt::format("{}; its dtype is {}", error.what(), declared.dtype.to_string()));
    }
}

}  // namespace

std::optional<std::uint16_t> custom_column(const Schema& schema, std::string_view name) {
    const auto found = schema.find(name);
    if (!found || *found < static_cast<std::uint16_t>(Std::count)) return std::nullopt;
    return found;
}

void read_column(JsonValue value, const Schema& schema, std::uint16_t column,
                 ParsedRecord& record) {
    const Column& declared = schema.columns()[column];
    if (value.is_object()) return read_blob(declared.name, value, schema, column, record);
    const DType dtype = declared.dtype;
    const bool listed = dtype == dtype_bool || with_number(dtype, [](auto) { return true; });
    if (!listed) {
        bad(declared.name, fmt::format("is {}, which has no JSON number: use "
                                       "{{\"dtype\":\"{}\",\"shape\":[...],\"base64\":\"...\"}}",
                                       dtype.to_string(), dtype.to_string()));
    }
    const Shape shape = shape_of(declared, value);
    const auto bytes = record.make(column, dtype, shape.lengths, shape.dims);
    if (dtype == dtype_bool) {
        fill_bytes<std::uint8_t>(declared, value, shape.dims, bytes, truth);
        return;
    }
    with_number(dtype, [&]<class T>(T) {
        fill_bytes<T>(declared, value, shape.dims, bytes, element<T>);
        return true;
    });
}

void read_blob(std::string_view key, JsonValue value, const Schema& schema, std::uint16_t column,
               ParsedRecord& record) {
    const Column& declared = schema.columns()[column];
    std::optional<DType> dtype;
    Shape shape;
    std::optional<std::vector<std::byte>> bytes;
    for (const auto& [name, part] : members(value)) {
        if (name == "dtype") {
            dtype = DType::parse(string(key, part));
        } else if (name == "shape" && part.is_array() && part.count() <= dims_max) {
            for (const JsonValue length : part.elements()) {
                shape.lengths[shape.dims++] = integer<std::uint32_t>(key, length);
            }
        } else if (name == "base64") {
            bytes = from_base64(string(key, part));
        } else {
            bad(key, "must be lists, or {\"dtype\",\"shape\",\"base64\"}");
        }
    }
    if (!dtype || shape.dims == 0 || !bytes) {
        bad(key, "needs a dtype, a shape of 1 to 4 lengths and base64");
    }
    const bool allowed = declared.accepts == Accepts::any ||
                         (declared.accepts == Accepts::any_integer && dtype->is_integer()) ||
                         *dtype == declared.dtype;
    if (!allowed) {
        bad(key, fmt::format("has the dtype {}, but the ring's schema requires {}",
                             dtype->to_string(), wanted_text(declared)));
    }
    check_shape(declared, shape);
    std::uint64_t wanted = dtype->bytes();
    bool fits = true;
    for (std::uint8_t i = 0; i < shape.dims; i++) {
        fits &= !__builtin_mul_overflow(wanted, std::uint64_t{shape.lengths[i]}, &wanted);
    }
    if (!fits || wanted != bytes->size()) {
        bad(key,
            fmt::format("has {} bytes in base64, which does not match its shape", bytes->size()));
    }
    std::ranges::copy(*bytes, record.make(column, *dtype, shape.lengths, shape.dims).begin());
}

void append_custom(std::string& out, const ColumnView& column, const Column& declared) {
    const bool lists_say_all =
        column.dtype == declared.dtype && (column.dims == 1 || !column.data.empty());
    lists_say_all ? append_column(out, column) : append_blob(out, column);
}

}  // namespace rollring::cli
