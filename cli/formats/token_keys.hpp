#pragma once
// The keys by which a line may have its tokens and the name of its prompt: ours, and those that
// other programs write.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/json_value.hpp"
#include "cli/formats/parsed_record.hpp"

namespace rollring::cli {

// Finds the tokens of a line and reads them. The line's members must outlive it.
class TokenKeys {
  public:
    explicit TokenKeys(std::span<const JsonMember> members);

    // Whether this key is one of those that the tokens, or columns of what was generated, are read
    // from: other readers leave it alone.
    [[nodiscard]] bool owns(std::string_view key) const;
    // Fills token_ids and, of a prompt and what was generated, n_prompt.
    void read(ParsedRecord& record) const;
    // Columns of what was generated: zeros stand before them for the prompt.
    void read_generated(ParsedRecord& record) const;
    // The keys that are missing, empty if none is: "'prompt_ids'".
    [[nodiscard]] std::string missing() const;
    // The text of a conversation is there, and no tokens: a tokenizer is needed.
    [[nodiscard]] bool only_text() const;

  private:
    [[nodiscard]] bool joined() const { return generated_ != nullptr; }

    std::span<const JsonMember> members_;
    const JsonMember* whole_ = nullptr;
    const JsonMember* prompt_ = nullptr;
    const JsonMember* generated_ = nullptr;
};

// instance_id of a line without one: what another key says, or a name made of the prompt's tokens.
// False if there is neither.
bool name_instance(std::span<const JsonMember> members, ParsedRecord& record);

// Whether name_instance() or TokenKeys read that key.
bool is_token_key(std::string_view key);

}  // namespace rollring::cli
