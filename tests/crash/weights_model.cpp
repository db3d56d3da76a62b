#include "weights_model.hpp"

#include <cstring>

#include "support/process.hpp"

namespace rollring::test {
namespace {

class HostStore : public Store {
  public:
    [[nodiscard]] Device device() const override { return Device::host(); }
    std::byte* make(std::size_t bytes) override {
        blocks_.push_back(std::make_unique<std::byte[]>(bytes + 1));
        return blocks_.back().get();
    }
    void write(std::byte* to, std::span<const std::byte> bytes) override {
        std::memcpy(to, bytes.data(), bytes.size());
    }
    void read(const std::byte* from, std::span<std::byte> bytes) override {
        std::memcpy(bytes.data(), from, bytes.size());
    }
    void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
        std::memcpy(to, from, bytes);
    }

  private:
    std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

std::byte byte_of(std::int64_t version, std::size_t tensor, std::size_t place) {
    return static_cast<std::byte>(static_cast<std::size_t>(version) * 131 + tensor * 31 +
                                  place * 7 + place / 251);
}

std::uint64_t hash_of(std::uint64_t value) {
    value *= 0x9e3779b97f4a7c15;
    return value ^ value >> 29;
}

// The version in which an element changed last. A version changes a share of all elements.
std::int64_t last_change(std::uint64_t element, std::int64_t version) {
    for (; version > 0; version--) {
        const std::uint64_t version_hash = hash_of(static_cast<std::uint64_t>(version) + 77);
        const std::uint64_t percent = (version_hash >> 20) % 61;
        if ((hash_of(element ^ version_hash) >> 24) % 100 < percent) break;
    }
    return version;
}

struct Shape {
    const char* name;
    DType dtype;
    std::vector<std::int64_t> extents;
};

}  // namespace

std::unique_ptr<Store> make_store(Device device) {
    if (device.is_gpu()) return make_gpu_store(device);
    return std::make_unique<HostStore>();
}

Model::Model(Store& store, Changes changes) : store_(&store), changes_(changes) {
    const Shape shapes[] = {{"embed", dtype_f32, {33, 100}},  {"layer.0.q", dtype_bf16, {40, 7}},
                            {"layer.0.bias", dtype_f16, {5}}, {"empty", dtype_f32, {0, 12}},
                            {"scale", dtype_f64, {}},         {"quantized", dtype_f8_e4m3, {1111}},
                            {"ids", dtype_i64, {3, 3}},       {"head", dtype_f32, {19, 97}}};
    for (const Shape& shape : shapes) {
        std::size_t bytes = shape.dtype.bytes();
        for (const std::int64_t extent : shape.extents) bytes *= static_cast<std::size_t>(extent);
        places_.push_back({store.make(bytes), bytes, shape.dtype.bytes()});
        list_.push_back({.name = shape.name,
                         .dtype = shape.dtype,
                         .shape = shape.extents,
                         .data = places_.back().at});
    }
}

std::uint64_t Model::element(std::size_t tensor, std::size_t place) const {
    return hash_of(place / places_[tensor].element_bytes + tensor * 1'000'003 + 1);
}

std::byte Model::value(std::int64_t version, std::size_t tensor, std::size_t place) const {
    if (changes_ == Changes::all) return byte_of(version, tensor, place);
    const std::uint64_t hash = element(tensor, place);
    if (changes_ == Changes::shares) {
        return byte_of(last_change(hash, version), tensor, place);
    }
    // An element has a period of its own, and changes once in it.
    constexpr std::int64_t periods[] = {1, 3, 5, 20, 20, 100, 100, 1000};
    const std::int64_t period = periods[hash % std::size(periods)];
    const auto phase = static_cast<std::int64_t>(hash >> 8 & 1023);
    return byte_of((version + phase) / period, tensor, place);
}

void Model::fill(std::int64_t version) {
    for (std::size_t i = 0; i < places_.size(); i++) {
        buffer_.resize(places_[i].bytes);
        for (std::size_t j = 0; j < buffer_.size(); j++) buffer_[j] = value(version, i, j);
        store_->write(places_[i].at, buffer_);
    }
}

bool Model::same(const std::byte* at, std::size_t tensor, std::size_t first, std::size_t bytes,
                 std::int64_t version) const {
    buffer_.resize(bytes);
    store_->read(at, buffer_);
    for (std::size_t j = 0; j < bytes; j++) {
        if (buffer_[j] != value(version, tensor, first + j)) return false;
    }
    return true;
}

bool Model::holds(std::int64_t version) const {
    for (std::size_t i = 0; i < places_.size(); i++) {
        if (!same(places_[i].at, i, 0, places_[i].bytes, version)) return false;
    }
    return true;
}

void Model::copy_from(const Model& other) {
    for (std::size_t i = 0; i < places_.size(); i++) {
        store_->copy(places_[i].at, other.places_[i].at, places_[i].bytes);
    }
}

bool Model::is_of(const TensorPiece& piece, std::int64_t version) const {
    const std::size_t each = places_.at(piece.tensor).element_bytes;
    return same(piece.data, piece.tensor, piece.first_element * each, piece.elements * each,
                version);
}

void Model::take(const TensorPiece& piece) {
    const Place& place = places_.at(piece.tensor);
    const std::size_t first = piece.first_element * place.element_bytes;
    const std::size_t bytes = piece.elements * place.element_bytes;
    require(first + bytes <= place.bytes, "a piece lies outside of its tensor");
    store_->copy(place.at + first, piece.data, bytes);
}

}  // namespace rollring::test
