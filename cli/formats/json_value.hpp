#pragma once
// JSON read in place: a text is checked as a whole, once, and its values are views into it. No tree
// is built, so a line costs its own bytes and the destinations of its values.
//
// As Python's json module writes it: NaN, Infinity and -Infinity are numbers. They are read, and
// never written (see append_compact).

#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace rollring::cli {

// Why a line cannot be a record. Thrown by the parsers, and caught by callers that know the line's
// number.
struct BadRecord : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The nesting of lists and objects. Other readers of our lines have a stack, too.
inline constexpr std::size_t json_depth_max = 256;

class JsonElements;
struct JsonMember;

// A value of a text that parse_json() has checked. Valid as long as that text.
class JsonValue {
  public:
    JsonValue() = default;  // null

    // As it is written, with its blanks.
    [[nodiscard]] std::string_view text() const { return text_; }

    [[nodiscard]] bool is_null() const { return text_.front() == 'n'; }
    [[nodiscard]] bool is_boolean() const { return text_.front() == 't' || text_.front() == 'f'; }
    [[nodiscard]] bool is_string() const { return text_.front() == '"'; }
    [[nodiscard]] bool is_array() const { return text_.front() == '['; }
    [[nodiscard]] bool is_object() const { return text_.front() == '{'; }
    [[nodiscard]] bool is_number() const;
    // Digits without point or exponent.
    [[nodiscard]] bool is_integer() const;

    [[nodiscard]] bool boolean() const { return text_.front() == 't'; }
    [[nodiscard]] std::string string() const;  // of a string: without quotes and escapes

    // The number nearest to the text, also for Python's three literals, and for these as strings,
    // which is the form that we write. Empty for any other kind of value, and for a number beyond
    // the type.
    template <class T>
    [[nodiscard]] std::optional<T> number() const;

    [[nodiscard]] JsonElements elements() const;            // of a list
    [[nodiscard]] std::size_t count() const;                // of a list; reads all of it
    [[nodiscard]] std::vector<JsonMember> members() const;  // of an object, in their order

  private:
    friend class JsonElements;
    friend JsonValue parse_json(std::string_view text, std::size_t depth);
    explicit JsonValue(std::string_view text) : text_(text) {}
    [[nodiscard]] std::optional<double> special() const;

    std::string_view text_ = "null";
};

struct JsonMember {
    std::string key;
    JsonValue value;
};

// The values of a list, one after the other.
class JsonElements {
  public:
    struct End {};
    class Iterator {
      public:
        JsonValue operator*() const { return JsonValue(value_); }
        Iterator& operator++() {
            step();
            return *this;
        }
        friend bool operator==(const Iterator& at, End) { return at.value_.empty(); }

      private:
        friend class JsonElements;
        Iterator(const char* at, const char* limit) : at_(at), limit_(limit) { step(); }
        void step();
        const char* at_;  // behind the value, or behind the opening bracket
        const char* limit_;
        std::string_view value_;
    };

    [[nodiscard]] Iterator begin() const { return {text_.data() + 1, text_.data() + text_.size()}; }
    [[nodiscard]] static End end() { return {}; }

  private:
    friend class JsonValue;
    explicit JsonElements(std::string_view text) : text_(text) {}
    std::string_view text_;
};

// Throws BadRecord with the position and the fault: also if the nesting is too deep, and for bytes
// that are not UTF-8. `depth` is the depth of the text itself in the output.
JsonValue parse_json(std::string_view text, std::size_t depth = 0);

// The same value without blanks, and with Python's own literals as strings, so that every reader of
// JSON accepts it. Numbers and strings stay as they are written.
void append_compact(std::string& out, JsonValue value);

template <class T>
std::optional<T> JsonValue::number() const {
    T parsed{};
    const char* const end = text_.data() + text_.size();
    const auto [at, error] = std::from_chars(text_.data(), end, parsed);
    if (error == std::errc{} && at == end) return parsed;
    if constexpr (std::is_floating_point_v<T>) {
        if (const auto value = special()) return static_cast<T>(*value);
        // from_chars also refuses a number that is too small, which is 0 or nearly so.
        if (error == std::errc::result_out_of_range) {
            const double wide = std::strtod(std::string(text_).c_str(), nullptr);
            if (wide > -1 && wide < 1) return static_cast<T>(wide);
        }
    }
    return std::nullopt;
}

}  // namespace rollring::cli
