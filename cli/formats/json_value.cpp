#include "cli/formats/json_value.hpp"

#include <fmt/core.h>

#include <array>
#include <bitset>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cli/formats/json_text.hpp"

namespace rollring::cli {
namespace {

bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

// Reads a text from front to back, and throws at the first byte that is not JSON. No recursion, so
// that the depth of a text does not depend on our stack.
class Checker {
  public:
    Checker(std::string_view text, std::size_t depth_max) : text_(text), depth_max_(depth_max) {}

    // The bytes of the one value that the text consists of.
    std::string_view check();

  private:
    [[noreturn]] void refuse(std::string_view why) const {
        throw BadRecord(fmt::format("not JSON: column {}: {}", at_ + 1, why));
    }
    [[nodiscard]] bool over() const { return at_ == text_.size(); }
    // The next character; at the end a zero byte, which is never valid.
    [[nodiscard]] char peek() const { return over() ? '\0' : text_[at_]; }
    bool take(char c) {
        if (peek() != c || over()) return false;
        at_++;
        return true;
    }
    void blanks() {
        while (!over() && is_blank(text_[at_])) at_++;
    }
    void expect(char c, std::string_view what) {
        if (!take(c)) unexpected(what);
    }
    [[noreturn]] void unexpected(std::string_view what) const {
        refuse(over() ? fmt::format("the text ends before {}", what)
                      : fmt::format("expected {}", what));
    }
    void open(bool object);
    void key();
    void scalar();
    void word(std::string_view whole);
    void number();
    void digits();
    void string();
    void escape();
    void hex4();
    void utf8();

    std::string_view text_;
    std::size_t depth_max_;
    std::size_t at_ = 0;
    std::size_t depth_ = 0;
    std::bitset<json_depth_max> objects_;  // the open ones: an object, or a list
};

std::string_view Checker::check() {
    blanks();
    const std::size_t from = at_;
    for (bool behind = false;;) {  // behind a value, or in front of one
        if (!behind) {
            if (peek() == '[' || peek() == '{') {
                const bool object = peek() == '{';
                open(object);
                blanks();
                behind = take(object ? '}' : ']');
                if (behind) {
                    depth_--;
                } else if (object) {
                    key();
                }
                continue;
            }
            scalar();
            behind = true;
        }
        if (depth_ == 0) break;
        blanks();
        const bool object = objects_[depth_ - 1];
        if (take(',')) {
            blanks();
            if (object) key();
            behind = false;
        } else {
            expect(object ? '}' : ']', object ? "a comma or }" : "a comma or ]");
            depth_--;
        }
    }
    const std::size_t end = at_;
    blanks();
    if (!over()) refuse("text after the end of the value");
    return text_.substr(from, end - from);
}

void Checker::open(bool object) {
    if (depth_ == depth_max_) {
        refuse(fmt::format("nested deeper than {} levels", json_depth_max));
    }
    objects_[depth_++] = object;
    at_++;
}

void Checker::key() {
    if (peek() != '"') unexpected("a key in quotes");
    string();
    blanks();
    expect(':', "a colon");
    blanks();
}

void Checker::scalar() {
    switch (peek()) {
        case '"':
            return string();
        case 't':
            return word("true");
        case 'f':
            return word("false");
        case 'n':
            return word("null");
        case 'N':
            return word("NaN");
        case 'I':
            return word("Infinity");
        default:
            return number();
    }
}

void Checker::word(std::string_view whole) {
    if (!text_.substr(at_).starts_with(whole)) unexpected("a value");
    at_ += whole.size();
}

void Checker::digits() {
    if (!is_digit(peek())) unexpected("a digit");
    while (is_digit(peek())) at_++;
}

void Checker::number() {
    if (take('-')) {
        if (peek() == 'I') return word("Infinity");
    } else if (!is_digit(peek())) {
        unexpected("a value");
    }
    if (!take('0')) digits();
    if (take('.')) digits();
    if (take('e') || take('E')) {
        if (!take('+')) take('-');
        digits();
    }
}

void Checker::string() {
    at_++;
    for (;;) {
        if (over()) unexpected("the end of a string");
        const auto c = static_cast<unsigned char>(text_[at_]);
        if (c == '"') break;
        if (c == '\\') {
            escape();
        } else if (c < 0x20) {
            refuse("a control character in a string: it must be escaped");
        } else if (c < 0x80) {
            at_++;
        } else {
            utf8();
        }
    }
    at_++;
}

void Checker::hex4() {
    for (int i = 0; i < 4; i++, at_++) {
        const char c = peek();
        const bool digit = is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if (!digit) unexpected("a hexadecimal digit");
    }
}

void Checker::escape() {
    at_++;
    const char c = peek();
    if (std::string_view("\"\\/bfnrt").contains(c)) {
        at_++;
        return;
    }
    if (!take('u')) unexpected("an escape that JSON knows");
    hex4();  // RFC 8259 allows half of a surrogate pair, too
}

void Checker::utf8() {
    const std::size_t bytes = utf8_bytes(text_.substr(at_));
    if (bytes == 0) refuse("bytes that are not UTF-8");
    at_ += bytes;
}

// The following functions walk over checked text.

const char* end_of_string(const char* at) {
    for (at++; *at != '"'; at++) {
        if (*at == '\\') at++;
    }
    return at + 1;
}

// Whether none of these eight bytes is a bracket, a brace or a quote, as in most of a long list of
// numbers. Tests of all bytes of a word at once are in Warren, Hacker's Delight, 6-1.
bool is_plain(const char* at) {
    constexpr std::uint64_t each = 0x0101010101010101U;
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof word);
    const std::uint64_t letters = word & (each * 0x40);  // brackets, braces and some others
    const std::uint64_t off_quote = word ^ (each * '"');
    const std::uint64_t quotes = (off_quote - each) & ~off_quote & (each * 0x80);
    return (letters | quotes) == 0;
}

// The end of the list or object that begins here, and ends before `limit`.
const char* end_of_nested(const char* at, const char* limit) {
    std::size_t depth = 0;
    do {
        while (limit - at >= 8 && is_plain(at)) at += 8;
        switch (*at) {
            case '"':
                at = end_of_string(at);
                continue;
            case '[':
            case '{':
                depth++;
                break;
            case ']':
            case '}':
                depth--;
                break;
            default:
                break;
        }
        at++;
    } while (depth != 0);
    return at;
}

// The end of the value that begins here, within a list or object.
const char* end_of_value(const char* at, const char* limit) {
    if (*at == '"') return end_of_string(at);
    if (*at == '[' || *at == '{') return end_of_nested(at, limit);
    while (*at != ',' && *at != ']' && *at != '}' && !is_blank(*at)) at++;
    return at;
}

const char* behind_blanks(const char* at) {
    while (is_blank(*at)) at++;
    return at;
}

void append_utf8(std::string& out, unsigned point) {
    const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (point >> shift & 0x3f)); };
    if (point < 0x80) {
        out += static_cast<char>(point);
    } else if (point < 0x800) {
        out += static_cast<char>(0xc0 | point >> 6);
        tail(0);
    } else if (point < 0x10000) {
        out += static_cast<char>(0xe0 | point >> 12);
        tail(6);
        tail(0);
    } else {
        out += static_cast<char>(0xf0 | point >> 18);
        tail(12);
        tail(6);
        tail(0);
    }
}

unsigned hex_at(const char* at) {
    unsigned value = 0;
    std::from_chars(at, at + 4, value, 16);
    return value;
}

bool is_first_half(unsigned point) {
    return point >= 0xd800 && point <= 0xdbff;
}

// The second half of a surrogate pair, if its escape begins here; otherwise 0.
unsigned second_half(const char* at) {
    if (at[0] != '\\' || at[1] != 'u') return 0;
    const unsigned point = hex_at(at + 2);
    return point >= 0xdc00 && point <= 0xdfff ? point : 0;
}

// Without its quotes. Half of a surrogate pair becomes the three bytes of its number in UTF-8, as
// by Python's "surrogatepass"; append_string() escapes them again.
std::string decode(std::string_view quoted) {
    constexpr std::string_view letters = "bfnrt";
    constexpr std::string_view meant = "\b\f\n\r\t";
    std::string out;
    out.reserve(quoted.size() - 2);
    const char* const end = quoted.data() + quoted.size() - 1;
    for (const char* at = quoted.data() + 1; at != end; at++) {
        if (*at != '\\') {
            out += *at;
        } else if (*++at == 'u') {
            unsigned point = hex_at(at + 1);
            at += 4;
            if (const unsigned second = second_half(at + 1); second != 0 && is_first_half(point)) {
                point = 0x10000 + ((point - 0xd800) << 10) + (second - 0xdc00);
                at += 6;
            }
            append_utf8(out, point);
        } else {
            const auto letter = letters.find(*at);
            out += letter == std::string_view::npos ? *at : meant[letter];
        }
    }
    return out;
}

}  // namespace

bool JsonValue::is_number() const {
    return is_digit(text_.front()) || std::string_view("-NI").contains(text_.front());
}

bool JsonValue::is_integer() const {
    return is_number() && text_.find_first_of(".eENI") == std::string_view::npos;
}

std::string JsonValue::string() const {
    return decode(text_);
}

std::optional<double> JsonValue::special() const {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const std::string_view text = is_string() ? text_.substr(1, text_.size() - 2) : text_;
    if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (text == "Infinity") return infinity;
    if (text == "-Infinity") return -infinity;
    return std::nullopt;
}

JsonElements JsonValue::elements() const {
    return JsonElements(text_);
}

std::size_t JsonValue::count() const {
    std::size_t found = 0;
    const auto all = elements();
    for (auto at = all.begin(); at != JsonElements::end(); ++at) found++;
    return found;
}

void JsonElements::Iterator::step() {
    at_ = behind_blanks(at_);
    if (*at_ == ',') at_ = behind_blanks(at_ + 1);
    if (*at_ == ']') {
        value_ = {};
        return;
    }
    const char* const end = end_of_value(at_, limit_);
    value_ = {at_, static_cast<std::size_t>(end - at_)};
    at_ = end;
}

std::vector<JsonMember> JsonValue::members() const {
    std::vector<JsonMember> found;
    for (const char* at = behind_blanks(text_.data() + 1); *at != '}';) {
        const char* end = end_of_string(at);
        JsonMember& member = found.emplace_back();
        member.key = decode({at, static_cast<std::size_t>(end - at)});
        at = behind_blanks(behind_blanks(end) + 1);  // over the colon
        end = end_of_value(at, text_.data() + text_.size());
        member.value = JsonValue({at, static_cast<std::size_t>(end - at)});
        at = behind_blanks(end);
        if (*at == ',') at = behind_blanks(at + 1);
    }
    return found;
}

JsonValue parse_json(std::string_view text, std::size_t depth) {
    return JsonValue(Checker(text, json_depth_max - depth).check());
}

void append_compact(std::string& out, JsonValue value) {
    const std::string_view text = value.text();
    const char* const end = text.data() + text.size();
    for (const char* at = text.data(); at != end;) {
        const char* next = at + 1;
        if (*at == '"') {
            next = end_of_string(at);
            out.append(at, next);
        } else if (*at == 'N' || *at == 'I' || (*at == '-' && at[1] == 'I')) {
            next = at + (*at == 'N' ? 3 : *at == 'I' ? 8 : 9);
            out += '"';
            out.append(at, next);
            out += '"';
        } else if (!is_blank(*at)) {
            out += *at;
        }
        at = next;
    }
}

}  // namespace rollring::cli
