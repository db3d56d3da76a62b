#pragma once
// The keys under which a line may have its tokens and the name of its prompt: ours, and those that
// other programs write.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/json_value.hpp"
#include "cli/formats/parsed_record.hpp"

namespace rollring::cli {

// Finds the tokens of a line and reads them. The line's members must outlive this object.
class TokenKeys {
  public:
    explicit TokenKeys(std::span<const JsonMember> members);

    // Whether the tokens, or columns of generated tokens, are read from this key: other readers
    // leave it alone.
    [[nodiscard]] bool owns(std::string_view key) const;
    // Fills token_ids and, for a prompt and a completion, n_prompt.
    void read(ParsedRecord& record) const;
    // Columns of generated tokens: zeros stand for the prompt before them.
    void read_generated(ParsedRecord& record) const;
    // The keys that are missing, empty if none is: "'prompt_ids'".
    [[nodiscard]] std::string missing() const;
    // Whether the line would have the name of its prompt if it had missing().
    [[nodiscard]] bool names_prompt() const;
    // The text of a conversation is there, without tokens: a tokenizer is needed.
    [[nodiscard]] bool only_text() const;
    // Tokens under a key of text: a sentence with the right key; empty if there are none.
    [[nodiscard]] std::string meant() const;

  private:
    [[nodiscard]] bool joined() const { return generated_ != nullptr; }

    std::span<const JsonMember> members_;
    const JsonMember* whole_ = nullptr;
    const JsonMember* prompt_ = nullptr;
    const JsonMember* generated_ = nullptr;
};

// The instance_id of a line without one: the value of another key, or a name made of the prompt's
// tokens. False if there is neither.
bool name_instance(std::span<const JsonMember> members, ParsedRecord& record);

// Whether name_instance() or TokenKeys read that key.
bool is_token_key(std::string_view key);

}  // namespace rollring::cli
