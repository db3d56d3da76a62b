#pragma once
// Reports as JSON documents: commands make them, and the commands that started those read them.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <list>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace rollring::cli {

// A value that owns its contents. Members of an object keep their order of insertion.
class Json {
  public:
    struct Member;

    // NOLINTBEGIN(google-explicit-constructor): reports are written as literals
    Json() = default;  // null
    Json(std::nullptr_t) {}
    template <std::same_as<bool> T>
    Json(T value) : kind_(Kind::boolean), unsigned_(value ? 1U : 0U) {}
    template <std::integral T>
        requires(!std::same_as<T, bool>)
    Json(T value) {
        if (std::cmp_less(value, 0)) {
            kind_ = Kind::negative;
            signed_ = static_cast<std::int64_t>(value);
        } else {
            kind_ = Kind::integer;
            unsigned_ = static_cast<std::uint64_t>(value);
        }
    }
    Json(double value) : kind_(Kind::real), real_(value) {}
    Json(std::string_view text) : kind_(Kind::text), text_(text) {}
    Json(const std::string& text) : Json(std::string_view(text)) {}
    Json(const char* text) : Json(std::string_view(text)) {}
    template <class T>
    Json(const std::vector<T>& values) : kind_(Kind::list) {
        for (const auto& value : values) list_.emplace_back(value);
    }
    Json(std::initializer_list<Member> members);  // an object
    // NOLINTEND(google-explicit-constructor)
    static Json array();
    static Json object();

    [[nodiscard]] bool is_null() const { return kind_ == Kind::null; }
    [[nodiscard]] bool is_object() const { return kind_ == Kind::object; }
    [[nodiscard]] bool is_number() const {
        return kind_ == Kind::integer || kind_ == Kind::negative || kind_ == Kind::real;
    }

    void push_back(Json value) { list_.push_back(std::move(value)); }  // to a list
    // The member of that name. A missing one is added as null, and a null value becomes an object.
    Json& operator[](std::string_view key);
    // Null if there is none.
    const Json& operator[](std::string_view key) const;
    const Json& operator[](std::size_t index) const { return list_.at(index); }
    [[nodiscard]] bool contains(std::string_view key) const { return find(key) != nullptr; }
    [[nodiscard]] Json value(std::string_view key, Json otherwise) const;

    [[nodiscard]] std::size_t size() const;  // of a list or an object; otherwise 0
    [[nodiscard]] bool empty() const { return size() == 0; }
    [[nodiscard]] auto begin() const { return list_.begin(); }  // of a list
    [[nodiscard]] auto end() const { return list_.end(); }
    [[nodiscard]] const std::list<Member>& items() const { return members_; }  // of an object

    // Throws std::runtime_error for another kind.
    template <class T>
    [[nodiscard]] T get() const {
        if constexpr (std::same_as<T, std::string>) {
            return text();
        } else if constexpr (std::floating_point<T>) {
            return static_cast<T>(number());
        } else {
            return static_cast<T>(whole());
        }
    }

    // On one line. NaN and infinite numbers become null.
    [[nodiscard]] std::string dump() const;

    // Numbers are equal by value, members in their order.
    friend bool operator==(const Json& one, const Json& other) { return one.equals(other); }

  private:
    enum class Kind : std::uint8_t {
        null,
        boolean,
        integer,
        negative,
        real,
        text,
        list,
        object,
    };

    [[nodiscard]] const Json* find(std::string_view key) const;
    [[nodiscard]] const std::string& text() const;
    [[nodiscard]] double number() const;
    [[nodiscard]] std::uint64_t whole() const;
    [[nodiscard]] bool equals(const Json& other) const;
    void append(std::string& out) const;

    Kind kind_ = Kind::null;
    // NOLINTBEGIN(readability-identifier-naming): private, although the union's members are public
    union {
        std::uint64_t unsigned_ = 0;
        std::int64_t signed_;
        double real_;
    };
    // NOLINTEND(readability-identifier-naming)
    std::string text_;
    std::vector<Json> list_;
    std::list<Member> members_;  // not a vector: Member is incomplete here
};

struct Json::Member {
    std::string key;
    Json value;
};

inline std::string dump_json(const Json& value) {
    return value.dump();
}
// Parses an output of dump(); null if it is truncated.
Json parse_report(std::string_view text);

}  // namespace rollring::cli
