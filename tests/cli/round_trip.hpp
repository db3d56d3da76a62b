#pragma once
// A record the way it goes through a ring: parsed, encoded, viewed.

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli/formats/json_text.hpp"
#include "cli/formats/rollring_json.hpp"
#include "integrations/atropos/atropos_json.hpp"

namespace rollring::cli {

// Owns the encoded bytes that its view lies in.
class Encoded {
  public:
    explicit Encoded(const ParsedRecord& record, const Schema& schema = Schema::standard()) {
        Draft draft;
        record.fill(draft);
        const Encoder encoder(draft, schema, Checksum::none);
        REQUIRE(encoder.problem() == "");
        memory_.reset(
            static_cast<std::byte*>(::operator new[](encoder.bytes(), std::align_val_t{64})));
        const std::span to(memory_.get(), encoder.bytes());
        encoder.write(to, 0, -1);
        REQUIRE(view.parse(to, schema) == "");
    }

    TrajectoryView view;

  private:
    struct Free {
        void operator()(std::byte* bytes) const {
            ::operator delete[](bytes, std::align_val_t{64});
        }
    };
    std::unique_ptr<std::byte[], Free> memory_;
};

inline ParsedRecord parsed(std::string_view line) {
    ParsedRecord record;
    parse_rollring(parse_json(line), Schema::standard(), record);
    return record;
}

inline std::string written(const ParsedRecord& record) {
    std::string out;
    append_rollring_line(out, Encoded(record).view, Schema::standard());
    return out;
}

// Same keys and values, in any order of keys; NaN, as Python writes it, equals "NaN", as we do.
inline bool same_json(std::string_view a, std::string_view b) {
    const auto document = [](std::string_view text) {
        std::string compact;
        append_compact(compact, parse_json(text));
        return nlohmann::json::parse(compact);
    };
    return document(a) == document(b);
}

// The reason why a line is refused; empty if it is not.
template <class Parse>
std::string refusal(const Parse& parse) {
    try {
        parse();
    } catch (const BadRecord& error) {
        return error.what();
    }
    return {};
}

}  // namespace rollring::cli
