#include "weights/tensor_lists.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <random>

#include "bench.hpp"

namespace bench {
namespace {

// The dimensions of a dense or a mixture-of-experts decoder.
struct Model {
    std::int64_t vocabulary;
    std::int64_t hidden;
    std::int64_t layers;
    std::int64_t queries;    // width of all query heads
    std::int64_t keys;       // width of all key heads, and of all value heads
    std::int64_t inner;      // of the MLP, or of one expert
    std::int64_t experts;    // 0: a dense MLP
    std::int64_t head_norm;  // 0: no norms of q and k

    // Both sides of a matrix shrink alike. Counts stay: of tensors, layers, experts.
    [[nodiscard]] Model narrowed(double share) const {
        if (share >= 1) return *this;
        const auto narrow = [side = std::sqrt(share)](std::int64_t width) {
            constexpr std::int64_t step = 8;
            const auto less = static_cast<std::int64_t>(static_cast<double>(width) * side);
            return std::max<std::int64_t>(step, less / step * step);
        };
        Model made = *this;
        for (auto side :
             {&Model::vocabulary, &Model::hidden, &Model::queries, &Model::keys, &Model::inner}) {
            made.*side = narrow(made.*side);
        }
        return made;
    }
};

constexpr Model llama8b{128256, 4096, 32, 4096, 1024, 14336, 0, 0};
constexpr Model qwen30b{151936, 2048, 48, 4096, 512, 768, 128, 128};

// A million: 64 B to 4 KiB each, 2 GiB in all.
constexpr std::size_t tiny_count = 1'000'000;

class Builder {
  public:
    explicit Builder(const Model& model) : model_(model) {}

    TensorList build() {
        const Model& m = model_;
        add("model.embed_tokens.weight", {m.vocabulary, m.hidden});
        for (std::int64_t layer = 0; layer < m.layers; layer++) add_layer(layer);
        add("model.norm.weight", {m.hidden});
        add("lm_head.weight", {m.vocabulary, m.hidden});
        return std::move(list_);
    }

  private:
    void add(std::string name, std::vector<std::int64_t> shape) {
        list_.push_back({std::move(name), rollring::dtype_bf16, std::move(shape)});
    }
    void add_mlp(const std::string& at) {
        add(at + "gate_proj.weight", {model_.inner, model_.hidden});
        add(at + "up_proj.weight", {model_.inner, model_.hidden});
        add(at + "down_proj.weight", {model_.hidden, model_.inner});
    }
    void add_layer(std::int64_t layer) {
        const Model& m = model_;
        const std::string at = fmt::format("model.layers.{}.", layer);
        add(at + "self_attn.q_proj.weight", {m.queries, m.hidden});
        add(at + "self_attn.k_proj.weight", {m.keys, m.hidden});
        add(at + "self_attn.v_proj.weight", {m.keys, m.hidden});
        add(at + "self_attn.o_proj.weight", {m.hidden, m.queries});
        if (m.head_norm != 0) {
            add(at + "self_attn.q_norm.weight", {m.head_norm});
            add(at + "self_attn.k_norm.weight", {m.head_norm});
        }
        if (m.experts == 0) {
            add_mlp(at + "mlp.");
        } else {
            add(at + "mlp.gate.weight", {m.experts, m.hidden});
            for (std::int64_t expert = 0; expert < m.experts; expert++) {
                add_mlp(fmt::format("{}mlp.experts.{}.", at, expert));
            }
        }
        add(at + "input_layernorm.weight", {m.hidden});
        add(at + "post_attention_layernorm.weight", {m.hidden});
    }

    Model model_;
    TensorList list_;
};

TensorList tiny_list(double share) {
    const auto count = std::max<std::size_t>(
        1, static_cast<std::size_t>(std::llround(static_cast<double>(tiny_count) * share)));
    std::mt19937_64 random(20261121);
    TensorList list(count);
    for (std::size_t i = 0; i < count; i++) {
        constexpr std::uint64_t least = 64 / 2;
        constexpr std::uint64_t most = 4096 / 2;
        const std::uint64_t elements = least + random() % (most - least + 1);
        list[i] = {
            fmt::format("tiny.{}", i), rollring::dtype_bf16, {static_cast<std::int64_t>(elements)}};
    }
    return list;
}

}  // namespace

std::uint64_t ListedTensor::elements() const {
    std::uint64_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::uint64_t>(extent);
    return count;
}

std::uint64_t payload_bytes(const TensorList& list) {
    std::uint64_t sum = 0;
    for (const ListedTensor& tensor : list) sum += tensor.bytes();
    return sum;
}

TensorList make_list(std::string_view name, double share) {
    if (name == "llama8b") return Builder(llama8b.narrowed(share)).build();
    if (name == "qwen30b") return Builder(qwen30b.narrowed(share)).build();
    if (name == "tiny") return tiny_list(share);
    if (name == "empty") return {{"empty", rollring::dtype_bf16, {0}}};
    fail(fmt::format("--list {}: llama8b, qwen30b, tiny and empty are known", name));
}

double share_for(std::string_view name, std::uint64_t bytes) {
    const std::uint64_t whole = payload_bytes(make_list(name, 1));
    if (whole <= bytes) return 1;
    // Parts that do not shrink (norms, roundings) make the first guess too large by a little.
    double share = static_cast<double>(bytes) / static_cast<double>(whole);
    while (share > 1e-7 && payload_bytes(make_list(name, share)) > bytes) share *= 0.97;
    return share;
}

void write_list(const TensorList& list, const std::string& path) {
    std::ofstream file(path);
    for (const ListedTensor& tensor : list) {
        const Json line{
            {"name", tensor.name}, {"dtype", tensor.dtype.to_string()}, {"shape", tensor.shape}};
        file << line.dump() << '\n';
    }
    if (!file.flush()) fail(fmt::format("cannot write {}", path));
}

}  // namespace bench
